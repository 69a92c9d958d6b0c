"""What an operation makes of the labels of its arguments; see `following`.

A rule is a function of a `Call` that returns the label of its results, or one for each. It holds whatever the
sizes are: axes are told apart by labels, not by lengths. An operation without a rule is done once more for
each row alone: where that gives the same numbers, rows are kept apart.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anechoic.torch.row_types import axes, places
from anechoic.torch.row_types.labels import Call, Label, Mixed, NotApart, One, RowAxis, Rule, packets, words
from anechoic.torch.structure import tensors_in

_aten: Any = torch.ops.aten
#: What has the size of a tensor, and nothing else of it.
LIKE = packets("zeros_like ones_like empty_like full_like rand_like randn_like randint_like")
_PUBLIC = LIKE | packets("new_zeros new_ones new_empty new_full new_empty_strided sym_size sym_numel")


def labels_of(call: Call) -> list[Label | None]:
    """Labels of the tensors that an operation made, at least one of whose arguments has one; None: public."""
    made, labels = call.made, call.labels
    if call.packet in _PUBLIC or not made:
        return [None] * len(made)
    mixed = next((found for found in labels.values() if isinstance(found, Mixed)), None)
    if mixed is not None:
        return [mixed] * len(made)
    if call.rows == 1:
        return [RowAxis(0)] * len(made)  # a row alone meets nobody
    rule = _RULES.get(call.packet) or (places.pointwise if call.facts.pointwise else _by_rows)
    one = next(iter(labels.values()))
    if isinstance(one, One) and len(set(labels.values())) == 1 and rule is not axes.put_back:
        return [one] * len(made)  # whatever is made of a row alone is its own
    try:
        found = rule(call)
    except NotApart as error:
        found = Mixed(str(error))
    each = list(found) if isinstance(found, list) else [found] * len(made)
    for place, (tensor, label) in enumerate(zip(made, each, strict=True)):
        if isinstance(label, RowAxis):  # is held to the shape
            axis, length = label.axis, call.rows * label.inner
            if tensor.dim() <= axis or tensor.shape[axis] != length:
                each[place] = Mixed(f"{call} makes other rows of the rows")
    return each


def _by_rows(call: Call) -> Any:
    """What has no rule is done for each row alone: where that gives the same numbers, rows are apart."""
    if call.facts.mutable or call.facts.drawing:
        raise NotApart(f"{call} has no rule")
    found: list[Label | None] = [None] * len(call.made)
    for row in range(call.rows):
        args, kwargs = _of_row(call, call.args, row), _of_row(call, call.kwargs, row)
        try:
            alone = tensors_in(call.func(*args, **kwargs))
        except (RuntimeError, NotImplementedError, ValueError, IndexError) as error:
            raise NotApart(f"{call} has no rule, and cannot be done for one row alone") from error
        if len(alone) != len(call.made):
            raise NotApart(f"{call} has no rule, and gives less for one row alone")
        where = [_where(*pair, row, call.rows) for pair in zip(call.made, alone, strict=True)]
        if None in where or (row and where != found):
            raise NotApart(f"{call} has no rule, and other rows change its result")
        found = where
    return found


def _of_row(call: Call, value: Any, row: int) -> Any:
    """Arguments of which only one row is left."""
    if isinstance(value, (list, tuple)):
        return type(value)(_of_row(call, part, row) for part in value)
    if isinstance(value, dict):
        return {key: _of_row(call, part, row) for key, part in value.items()}
    if (label := call.label(value)) is None:
        return value
    if not isinstance(label, RowAxis):
        raise NotApart(f"{call} has no rule for {words(label)}")
    return value.narrow(label.axis, row * label.inner, label.inner)


def _where(out: Tensor, alone: Tensor, row: int, rows: int) -> Label | None:
    """The axis along which the result for a row alone is that row of the whole; None where it is not."""
    if out.dim() != alone.dim() or not out.layout == alone.layout == torch.strided:
        return None
    other = [axis for axis in range(out.dim()) if out.shape[axis] != alone.shape[axis]]
    if len(other) != 1 or out.shape[other[0]] != rows * (inner := alone.shape[other[0]]):
        return None
    own = out.narrow(other[0], row * inner, inner)
    if not out.dtype.is_floating_point and not out.is_complex():
        same = torch.equal(own, alone)
    else:
        near = _ROUNDING.get(out.dtype, 1e-2)
        finite = alone[torch.isfinite(alone)].abs()
        scale = float(finite.max()) if finite.numel() else 0.0
        same = torch.allclose(own, alone, rtol=near, atol=near * scale, equal_nan=True)
    return RowAxis(other[0], inner) if same else None


#: By how much kernels may round one row otherwise than many.
_ROUNDING = {torch.float32: 1e-4, torch.float64: 1e-9, torch.complex64: 1e-4, torch.complex128: 1e-9}
#: What each operation does with rows; names that torch does not have are left out.
_TABLE: list[tuple[Rule, str]] = [
    (
        places.pointwise,
        "_to_copy clone detach alias lift_fresh native_dropout bernoulli bernoulli_ normal masked_fill "
        "masked_fill_ where copy_ fill_ zero_ contiguous dropout nan_to_num isfinite isnan _conj lerp "
        "addcmul addcdiv threshold mse_loss_backward smooth_l1_loss_backward huber_loss_backward "
        "binary_cross_entropy_backward soft_margin_loss_backward log_sigmoid_forward log_sigmoid_backward",
    ),
    (axes.reshaped, "view _unsafe_view reshape squeeze flatten unflatten _reshape_alias"),
    (axes.expanded, "expand broadcast_to"),
    (axes.unsqueezed, "unsqueeze"),
    (axes.permuted, "permute transpose transpose_ t t_ movedim"),
    (axes.part, "slice select split split_with_sizes chunk unbind narrow unsafe_split"),
    (axes.joined, "cat stack"),
    (axes.put_back, "select_backward slice_backward"),
    (places.same_axis, "view_as_real view_as_complex"),
    (
        axes.untouched("dim"),
        "_softmax _log_softmax _safe_softmax softmax log_softmax cumsum cumprod logcumsumexp cummax "
        "cummin sort topk kthvalue glu argsort diff",
    ),
    (axes.untouched("dims"), "flip roll"),
    (places.met_along, "_softmax_backward_data _log_softmax_backward_data"),
    (axes.padded, "constant_pad_nd"),
    (axes.repeated, "repeat"),
    (axes.triangle, "tril triu"),
    (
        axes.reduced,
        "sum mean nansum amax amin max min any all argmax argmin prod logsumexp linalg_vector_norm norm "
        "var std var_mean std_mean median count_nonzero aminmax mode",
    ),
    (axes.drawn, "multinomial"),
    (axes.normalised, "native_layer_norm _fused_rms_norm"),
    (
        axes.batch_normalised,
        "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm "
        "_batch_norm_with_update _batch_norm_no_update batch_norm",
    ),
    (axes.product("self", "mat2", 0), "mm"),
    (axes.product("mat1", "mat2", 0), "addmm"),
    (axes.product("self", "mat2", 1), "bmm"),
    (axes.product("batch1", "batch2", 1), "baddbmm"),
    (axes.product("self", "vec", 0), "mv"),
    (axes.product("mat", "vec", 0), "addmv"),
    (axes.product("self", "tensor", 0), "dot"),
    (axes.product("self", "other", 0), "vdot"),
    (axes.linear, "linear"),
    (
        axes.attended,
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
        "_scaled_dot_product_attention_math _scaled_dot_product_fused_attention_overrideable "
        "_scaled_dot_product_attention_math_for_mps scaled_dot_product_attention",
    ),
    (
        axes.by_first,
        "convolution max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d "
        "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d "
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_bilinear2d upsample_bicubic2d "
        "upsample_linear1d native_group_norm pixel_shuffle pixel_unshuffle reflection_pad1d "
        "reflection_pad2d replication_pad1d replication_pad2d im2col col2im",
    ),
    (axes.groups_pulled, "native_group_norm_backward"),
    (places.embedded, "embedding"),
    (
        places.gathered,
        "gather take_along_dim scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_",
    ),
    (places.selected, "index_select"),
    (places.indexed, "index"),
    (places.masked, "masked_select"),
    (
        places.elementwise_loss,
        "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy soft_margin_loss "
        "binary_cross_entropy_with_logits",
    ),
    (places.ctc, "_ctc_loss"),
    (places.ctc_pulled, "_ctc_loss_backward"),
    (places.margin_loss, "multi_margin_loss multilabel_margin_loss_forward"),
    (places.put, "index_put index_put_ _index_put_impl_"),
    (places.nll_pulled, "nll_loss_backward nll_loss2d_backward multi_margin_loss_backward"),
    (places.nll_pulled, "multilabel_margin_loss_backward"),
    (places.nll, "nll_loss_forward nll_loss2d_forward nll_loss nll_loss2d"),
]
_RULES = {packet: rule for rule, names in _TABLE for packet in packets(names)}
