"""What an operation makes of the labels of its arguments; see `following`.

A rule is a function of a `Call` that returns the label of its results, or one for each. It holds whatever the
sizes are: axes are told apart by labels, not by lengths. An operation without a rule is tried: where other
data in some rows change these rows of the result and no others, rows are kept apart.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anechoic.torch.row_types.call import Call, NotApart, Rule, flat, packets, words
from anechoic.torch.row_types.elementwise import met_along, pointwise
from anechoic.torch.row_types.labels import Label, Mixed, RowAxis
from anechoic.torch.row_types.places import (
    elementwise_loss,
    embedded,
    gathered,
    indexed,
    margin_loss,
    masked,
    nll,
    nll_pulled,
    put,
    selected,
)
from anechoic.torch.row_types.shapes import (
    expanded,
    joined,
    padded,
    part,
    permuted,
    repeated,
    reshaped,
    triangle,
    unsqueezed,
    untouched,
)
from anechoic.torch.row_types.sums import (
    attended,
    batch_normalised,
    by_first,
    linear,
    normalised,
    product,
    reduced,
)

_aten: Any = torch.ops.aten
_PUBLIC = packets(
    *("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like"),
    *("new_zeros", "new_ones", "new_empty", "new_full", "new_empty_strided", "sym_size", "sym_numel"),
)


def labels_of(
    rows: int, func: Any, args: Any, kwargs: Any, out: Any, labels: dict[int, Label]
) -> list[Label | None]:
    """Labels of the tensors in `out`; None for what is public.

    Args:
        rows: of the batch, at least two.
        func, args, kwargs, out: of the operation.
        labels: of the tensors among the arguments, by identity; at least one.
    """
    call = Call(rows, func, args, kwargs, out, labels)
    made = call.made
    packet = func.overloadpacket
    if packet in _PUBLIC or not made:
        return [None] * len(made)
    mixed = next((found for found in labels.values() if isinstance(found, Mixed)), None)
    if mixed is not None:
        return [mixed] * len(made)
    if rows == 1:
        return [RowAxis(0)] * len(made)  # a row alone meets nobody
    rule = _RULES.get(packet) or (pointwise if torch.Tag.pointwise in func.tags else _tried)
    try:
        found = rule(call)
    except NotApart as error:
        found = Mixed(str(error))
    return list(found) if isinstance(found, list) else [found] * len(made)


def _tried(call: Call) -> Any:
    """Other data in half of the rows: where they change those rows of the result alone, rows are apart."""
    if call.func._schema.is_mutable or torch.Tag.nondeterministic_seeded in call.func.tags:
        raise NotApart(f"{call} has no rule")
    half = call.rows // 2
    places = torch.arange(call.rows)
    places[:half] = torch.arange(call.rows - 1, call.rows - 1 - half, -1)

    def other(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(other(part) for part in value)
        if isinstance(value, dict):
            return {key: other(part) for key, part in value.items()}
        label = call.label(value)
        if label is None:
            return value
        if not isinstance(label, RowAxis):
            raise NotApart(f"{call} has no rule for {words(label)}")
        apart = value.unflatten(label.axis, (call.rows, label.inner))
        return apart.index_select(label.axis, places.to(value.device)).flatten(label.axis, label.axis + 1)

    args, kwargs = other(call.args), other(call.kwargs)
    try:
        again = call.func(*args, **kwargs)
    except (RuntimeError, ValueError, IndexError) as error:
        raise NotApart(f"{call} has no rule, and fails on other rows") from error
    pairs = zip(flat(call.out), flat(again), strict=True)
    return [_changed(call, one, two, half) for one, two in pairs if isinstance(one, Tensor)]


def _changed(call: Call, out: Tensor, again: Tensor, half: int) -> Label:
    if out.shape == again.shape:
        for axis, size in enumerate(out.shape):
            if not size or size % call.rows:
                continue
            one, two = (
                t.unflatten(axis, (call.rows, -1)).movedim(axis, 0).reshape(call.rows, -1).double()
                if not t.is_complex()
                else torch.view_as_real(t)
                .unflatten(axis, (call.rows, -1))
                .movedim(axis, 0)
                .flatten(1)
                .double()
                for t in (out, again)
            )
            same = torch.isclose(one, two, rtol=1e-5, atol=1e-30, equal_nan=True).all(1)
            if bool(same[half:].all()) and not bool(same[:half].all()):
                return RowAxis(axis, size // call.rows)
            if bool(same.all()) and RowAxis(axis, size // call.rows) in {label for _, label in call.labelled}:
                return RowAxis(axis, size // call.rows)  # these data show nothing either way
    return Mixed(f"{call} has no rule, and other rows change its result")


def _rules() -> dict[Any, Rule]:
    made: dict[Any, Rule] = {}

    def enter(rule: Rule, *names: str) -> None:
        for name in names:
            if hasattr(_aten, name):
                made[getattr(_aten, name)] = rule

    enter(
        pointwise,
        *("_to_copy", "clone", "detach", "alias", "lift_fresh", "native_dropout", "bernoulli", "bernoulli_"),
        *("masked_fill", "masked_fill_", "where", "copy_", "fill_", "zero_", "contiguous", "dropout"),
        *(
            "nan_to_num",
            "isfinite",
            "isnan",
            "_conj",
            "view_as_real",
            "lerp",
            "addcmul",
            "addcdiv",
            "threshold",
        ),
        *(
            "mse_loss_backward",
            "smooth_l1_loss_backward",
            "huber_loss_backward",
            "binary_cross_entropy_backward",
        ),
        *("soft_margin_loss_backward", "log_sigmoid_forward", "log_sigmoid_backward"),
    )
    enter(reshaped, "view", "_unsafe_view", "reshape", "squeeze", "flatten", "unflatten", "_reshape_alias")
    enter(expanded, "expand", "broadcast_to")
    enter(unsqueezed, "unsqueeze")
    enter(permuted, "permute", "transpose", "t", "movedim")
    enter(part, "slice", "select", "split", "split_with_sizes", "chunk", "unbind", "narrow", "unsafe_split")
    enter(joined, "cat", "stack")
    enter(
        untouched("dim"),
        *("_softmax", "_log_softmax", "_safe_softmax", "softmax", "log_softmax", "cumsum", "cumprod"),
        *("logcumsumexp", "cummax", "cummin", "sort", "topk", "kthvalue", "glu", "argsort", "diff"),
    )
    enter(untouched("dims"), "flip", "roll")
    enter(met_along, "_softmax_backward_data", "_log_softmax_backward_data")
    enter(padded, "constant_pad_nd")
    enter(repeated, "repeat")
    enter(triangle, "tril", "triu")
    enter(
        reduced,
        *("sum", "mean", "nansum", "amax", "amin", "max", "min", "any", "all", "argmax", "argmin", "prod"),
        *("logsumexp", "linalg_vector_norm", "norm", "var", "std", "var_mean", "std_mean", "median"),
        *("count_nonzero", "aminmax", "mode"),
    )
    enter(normalised, "native_layer_norm", "_fused_rms_norm")
    enter(
        batch_normalised,
        *("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training"),
        *("cudnn_batch_norm", "_batch_norm_with_update", "_batch_norm_no_update", "batch_norm"),
    )
    enter(product("self", "mat2", 0), "mm")
    enter(product("mat1", "mat2", 0), "addmm")
    enter(product("self", "mat2", 1), "bmm")
    enter(product("batch1", "batch2", 1), "baddbmm")
    enter(product("self", "vec", 0), "mv")
    enter(product("mat", "vec", 0), "addmv")
    enter(product("self", "tensor", 0), "dot")
    enter(product("self", "other", 0), "vdot")
    enter(linear, "linear")
    enter(
        attended,
        *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention"),
        *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"),
        *("_scaled_dot_product_attention_math", "_scaled_dot_product_fused_attention_overrideable"),
        *("_scaled_dot_product_attention_math_for_mps", "scaled_dot_product_attention"),
    )
    enter(
        by_first,
        *("convolution", "max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d"),
        *("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_max_pool2d", "adaptive_max_pool3d"),
        *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_bilinear2d"),
        *("upsample_bicubic2d", "upsample_linear1d", "native_group_norm", "pixel_shuffle", "pixel_unshuffle"),
        *(
            "reflection_pad1d",
            "reflection_pad2d",
            "replication_pad1d",
            "replication_pad2d",
            "im2col",
            "col2im",
        ),
    )
    enter(embedded, "embedding")
    enter(gathered, "gather", "scatter", "scatter_", "take_along_dim")
    enter(selected, "index_select")
    enter(indexed, "index")
    enter(masked, "masked_select")
    enter(
        elementwise_loss,
        *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "soft_margin_loss"),
        *("binary_cross_entropy_with_logits",),
    )
    enter(margin_loss, "multi_margin_loss", "multilabel_margin_loss_forward")
    enter(put, "index_put", "index_put_", "_index_put_impl_")
    enter(nll_pulled, "nll_loss_backward", "nll_loss2d_backward")
    enter(nll, "nll_loss_forward", "nll_loss2d_forward", "nll_loss", "nll_loss2d")
    return made


_RULES = _rules()
