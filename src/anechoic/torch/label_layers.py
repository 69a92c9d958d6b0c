"""Rules of labels for layers, for places that are picked by indices, and for losses."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import _reduction

from anechoic.torch.label_calls import OpCall, aligned, axis_rule, divided_by_all, place_of, rule
from anechoic.torch.label_rules import _pointwise
from anechoic.torch.labels import LOSSES, Label, LabelledTensor, Mixing, OfRow, OnAxis, OverRows

# -- layers: axis 0 is the batch ------------------------------------------------------------------


def _examples(c: OpCall, needs: int = 2) -> Label:
    """Rows on axis 0 of everything that has a label, and of a mask that has the axes of the rest."""
    mask = next((m for name in ("attn_mask", "attn_bias") if (m := c.get(name)) is not None), None)
    if mask is not None and c.of(mask) is not None and mask.dim() < c.args[0].dim():
        return c.mixed("a mask of rows that is broadcast to others")
    found = {label for _, label in c.seen}
    if len(found) == 1 and c.args[0].dim() >= needs:
        label = found.pop()
        if isinstance(label, OnAxis) and label.axis == 0:
            return label
    return c.mixed("the rows must be its first axis, the batch")


rule(
    "max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d _adaptive_avg_pool2d"
    " _adaptive_avg_pool3d adaptive_avg_pool1d adaptive_max_pool2d adaptive_max_pool3d reflection_pad1d"
    " reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d"
    " max_unpool2d max_unpool3d fractional_max_pool2d fractional_max_pool3d"
    " _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention"
    " _scaled_dot_product_fused_attention_overrideable _fused_sdp_choice multinomial",
    backward=True,
)(_examples)
rule(
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d"
    " upsample_bicubic2d upsample_trilinear3d _upsample_nearest_exact1d _upsample_nearest_exact2d"
    " _upsample_bilinear2d_aa _upsample_bicubic2d_aa grid_sampler_2d"
    " grid_sampler_3d affine_grid_generator channel_shuffle linalg_inv_ex _linalg_det _linalg_slogdet"
    " linalg_cholesky_ex linalg_lu_factor_ex linalg_qr _linalg_eigh _linalg_svd linalg_lu linalg_lu_solve"
    " linalg_matrix_exp linalg_solve_triangular _linalg_solve_ex cholesky_inverse cholesky cholesky_solve"
    " linalg_pinv lu_unpack linalg_eig linalg_eigvals triangular_solve linalg_lstsq",
    backward=True,
)(partial(_examples, needs=3))
rule("col2im")(partial(_examples, needs=3))  # with fewer axes these have no batch
rule("im2col pixel_shuffle pixel_unshuffle")(partial(_examples, needs=4))


@rule("_trilinear")
def _bilinear(c: OpCall) -> Label:
    expanded = [dims for t, dims in zip(c.args[:3], c.args[3:6], strict=True) if c.of(t) is not None]
    return c.mixed("over the rows") if any(0 in d for d in (*expanded, c.args[6])) else _examples(c)


@axis_rule("constant_pad_nd")
def _padded(c: OpCall, tensor: Tensor, label: OnAxis) -> Label:
    before = tensor.dim() - 1 - label.axis
    own = c.args[1][2 * before : 2 * before + 2]
    return label if not any(own) else c.mixed("the axis of the rows is padded")


@rule("convolution")
def _convolution(c: OpCall) -> Label:
    if c.of(c.args[1]) is not None or c.args[0].dim() != c.args[1].dim():
        return c.mixed("with rows as its weights, or without an axis for the batch")
    return _examples(c, needs=3)


@rule("convolution_backward native_group_norm_backward native_layer_norm_backward")
def _layer_backward(c: OpCall) -> Any:
    """The gradient of the input is by rows; those of weights are sums over rows."""
    if c.op.name.startswith("native_layer"):
        found = aligned(c, [(t, c.of(t)) for t in c.args[:2]], c.args[1])
    else:
        found = _examples(c)
    return found if not isinstance(found, OnAxis) else lambda place, _: OverRows() if place else found


@rule("native_group_norm")
def _group_norm(c: OpCall) -> Label:
    return _examples(c) if c.of(c.args[0]) is not None else c.mixed("rows as its weights")


@rule("native_layer_norm _fused_rms_norm")
def _layer_norm(c: OpCall) -> Label:
    label = c.of(c.args[0])
    if not isinstance(label, OnAxis) or len(c.seen) > 1:
        return c.mixed("rows as its weights")
    return label if label.axis < c.args[0].dim() - len(c.args[1]) else c.mixed("over the rows")


@rule(
    "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional"
    " _batch_norm_with_update _batch_norm_no_update cudnn_batch_norm native_batch_norm_backward"
    " _native_batch_norm_legit_no_training batch_norm_backward"
)
def _batch_norm(c: OpCall) -> Any:
    back = "backward" in c.op.name
    label = c.of(c.args[1] if back else c.args[0]) or c.of(c.args[0])
    train = c.get("train" if back else "training")
    train = "no_" not in c.op.name if train is None else bool(train)
    if not isinstance(label, OnAxis):
        return c.mixed("rows as its weights")
    if train and label.axis != 1:
        return Mixing("batch normalisation by the statistics of the batch")
    rest = OnAxis(0, label.inner) if label.axis == 1 else OverRows() if back else None
    return lambda place, _: rest if place else label


@rule("embedding")
def _embedding(c: OpCall) -> Label:
    weight, places = c.of(c.args[0]), c.of(c.args[1])
    return places if weight is None else c.mixed("rows as its table")


@rule("_embedding_bag _embedding_bag_forward_only")
def _bag(c: OpCall) -> Any:
    """Bags of one length, one after the other: offsets are public then."""
    places, offsets, label = c.args[1], c.args[2], c.of(c.args[1])
    bags = len(offsets) - bool(c.get("include_last_offset"))
    words = len(places) // max(bags, 1)
    if isinstance(label, OnAxis) and len(c.seen) == 1 and label.inner % max(words, 1) == 0:
        found = OnAxis(0, label.inner // max(words, 1))
        if bags * words == len(places) and offsets.tolist()[:bags] == [i * words for i in range(bags)]:
            return lambda place, _: label if place == 1 else found
    return c.mixed("bags of several lengths, or rows as its table or weights")


rule("embedding_dense_backward")(lambda _: OverRows())


# -- places ---------------------------------------------------------------------------------------


def _own_places(index: Tensor, rows: int) -> bool:
    """Whether a public index is row r's place for row r: that of a range over the rows."""
    first = index.dim() and index.shape[0] == index.numel() == rows
    return bool(first) and index.flatten().tolist() == list(range(rows))


@rule("index _unsafe_index index_put _index_put_impl _unsafe_index_put")
def _index(c: OpCall) -> Label:
    tensor, given = c.args[0], list(c.args[1])
    puts = "put" in c.op.name
    label, value = c.of(tensor), c.of(c.args[2]) if puts else None
    used = [(i, t) for i, t in enumerate(given) if t is not None]
    if any(t.dtype in (torch.bool, torch.uint8) for _, t in used):
        alone = len(used) == 1 and used[0][1].dim() == tensor.dim()
        if puts and alone and value is None and not c.args[2].dim():  # masked_fill
            return aligned(c, [(tensor, label), (used[0][1], c.of(used[0][1]))], tensor)
        return c.mixed("what a mask picks has no row an example: multiply by the mask, or torch.where")
    places = [c.of(t) for _, t in used]
    shape = torch.broadcast_shapes(*(t.shape for _, t in used))
    together = used[-1][0] - used[0][0] == len(used) - 1
    start = used[0][0] if together else 0
    meeting = {OnAxis(l.axis + len(shape) - t.dim(), l.inner) for (_, t), l in zip(used, places, strict=True)
               if isinstance(l, OnAxis)}  # fmt: skip
    if len(meeting) > 1 or any(not isinstance(l, (OnAxis, type(None))) for l in places):
        return c.mixed("places of rows meet other rows")
    at = meeting.pop() if meeting else None
    if isinstance(label, (OverRows, OfRow)) or isinstance(value, (OverRows, OfRow)):
        return c.mixed("places in numbers of all rows") if label != value else label
    if label is None and not puts:
        return OnAxis(start + at.axis, at.inner) if at else None
    # axes of the tensor that no index takes away are behind, or before, those of the indices
    row = label.axis if isinstance(label, OnAxis) else None
    if puts and row is None:
        mine = [i for i, t in used if c.of(t) is None and _own_places(t, c.rows)]
        if isinstance(value, OnAxis) and not mine and at is None:
            axis = value.axis + (c.out.dim() - len(used) + len(shape)) - c.args[2].dim()
            inside = start <= axis < start + len(shape)
            row = None if inside else axis if axis < start else axis - len(shape) + len(used)
        elif mine:
            row = mine[0]
        label = OnAxis(row) if row is not None else None
    if row is None or not isinstance(label, OnAxis):
        return c.mixed("rows are put to places of their own in a tensor that all rows share")
    inner = label.inner
    if row in [i for i, _ in used]:  # every row at its own place
        own = next(t for i, t in used if i == row)
        if inner != 1 or tensor.shape[row] != c.rows or c.of(own) is not None or not _own_places(own, c.rows):
            return c.mixed("rows are put in another order, or some are left out")
        own_axis = len(shape) - own.dim()
        if at not in (None, OnAxis(own_axis)) or (
            value is not None and value != OnAxis(value_axis(c, start + own_axis))
        ):
            return c.mixed("places of rows meet other rows")
        return OnAxis(row) if puts else OnAxis(start + own_axis)
    if at is not None:
        return c.mixed("places of rows in other rows")
    axis = row if row < start else row - len(used) + len(shape)
    if puts:
        same = value is None or value == OnAxis(value_axis(c, axis), inner)
        return label if same else c.mixed("rows meet other rows")
    return OnAxis(axis if together else row + len(shape) - sum(i < row for i, _ in used), inner)


def value_axis(c: OpCall, axis: int) -> int:
    """Where an axis of what is indexed is in the values that are put there."""
    used = [t for t in c.args[1] if t is not None]
    whole = c.args[0].dim() - len(used) + len(torch.broadcast_shapes(*(t.shape for t in used)))
    return axis - whole + c.args[2].dim()


@rule("index_select index_add index_copy index_fill")
def _chosen(c: OpCall) -> Label:
    tensor, index = c.args[0], c.get("index")
    label, places = c.of(tensor), c.of(index)
    dim = place_of(c.get("dim"), tensor.dim())
    if label is None and c.op.name == "index_select":
        return OnAxis(dim, places.inner) if isinstance(places, OnAxis) else places
    found = aligned(c, [(t, l) for t, l in c.seen if t is not index])
    if places is None and isinstance(found, OnAxis) and found.axis != dim:
        return found
    return c.mixed("along the rows, or by places of rows")


# -- losses ---------------------------------------------------------------------------------------


def _loss(c: OpCall) -> Any:
    found, reduction = aligned(c, out=c.args[0] if c.args[0].dim() else None), c.get("reduction")
    axes = {(t.dim(), label) for t, label in c.seen if isinstance(label, OnAxis)}
    if len(axes) > 1 and isinstance(found, OnAxis):
        found = c.mixed("rows meet rows on another axis")
    if isinstance(found, OnAxis) and reduction:
        return OverRows(-1 if reduction == 1 else 0)
    return found


rule(
    "mse_loss smooth_l1_loss huber_loss soft_margin_loss binary_cross_entropy"
    " binary_cross_entropy_with_logits"
)(_loss)
rule(
    "mse_loss_backward smooth_l1_loss_backward huber_loss_backward soft_margin_loss_backward"
    " binary_cross_entropy_backward log_sigmoid_forward log_sigmoid_backward rrelu_with_noise prelu"
    " _prelu_kernel _prelu_kernel_backward masked_fill rrelu_with_noise_backward _fused_dropout elu_backward"
    " hardshrink_backward floor_divide hardsigmoid_backward hardswish_backward hardtanh_backward"
    " leaky_relu_backward mish_backward hardswish softplus_backward softshrink_backward remainder isclose"
)(_pointwise)


def _without_classes(tensor: Tensor, label: Label) -> Label:
    """The label of a row's outputs by classes on axis 1, as one of its targets."""
    if isinstance(label, OnAxis) and tensor.dim() > 1:
        return None if label.axis == 1 else OnAxis(label.axis - (label.axis > 1), label.inner)
    return label


@rule("nll_loss_forward nll_loss2d_forward")
def _nll(c: OpCall) -> Any:
    outputs, targets, weight, reduction = c.args[:4]
    one, two = _without_classes(outputs, c.of(outputs)), c.of(targets)
    if (isinstance(one, OnAxis) and two not in (None, one)) or (one is None and c.of(outputs) is not None):
        return c.mixed("outputs and targets differ in their rows")
    found = one or two
    if not isinstance(found, OnAxis) or c.of(weight) is not None:
        return c.mixed("rows as its weights")
    return lambda place, _: None if place else (found, OverRows(-1), OverRows())[reduction]


@rule("nll_loss_backward nll_loss2d_backward")
def _nll_backward(c: OpCall) -> Label:
    # (grad_output, self, target, weight, reduction, ignore_index, total_weight), of which the last is public
    pulled, outputs, targets = c.args[0], c.args[1], c.args[2]
    given = [c.of(targets), _without_classes(outputs, c.of(outputs)), c.of(pulled)]
    found = {label for label in given if label is not None}
    if len(found) != 1 or not isinstance(label := found.pop(), OnAxis):
        return c.mixed("rows meet other rows")
    return OnAxis(label.axis + (label.axis >= 1), label.inner)


@rule(
    "multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_forward"
    " multilabel_margin_loss_backward"
)
def _margin(c: OpCall) -> Any:
    back = "backward" in c.op.name
    found = _examples(c, needs=0) if c.args[int(back)].dim() > 1 else c.mixed("the rows as classes")
    if isinstance(found, OnAxis) and not back and (reduction := c.get("reduction")):
        return lambda place, _: found if place else OverRows(-1 if reduction == 1 else 0)
    return found


@rule("_ctc_loss _ctc_loss_backward")
def _ctc(c: OpCall) -> Any:
    back = "backward" in c.op.name
    tensors = [(t, c.of(t)) for t in c.args[:6] if isinstance(t, Tensor) and c.of(t) is not None]
    outputs = c.args[1] if back else c.args[0]
    if all(label == OnAxis(1 if t is outputs else 0) for t, label in tensors):
        return OnAxis(1) if back else OnAxis(0)
    return c.mixed("outputs need their rows on axis 1, targets on axis 0")


# -- losses under "mean" are those of "none", and the mean of them -----------------------------------


def _as_mean(signature: inspect.Signature, name: str, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
    """Call a loss for "none", and take the mean: pulled back, it is 1 for each row, and not 1/N rounded."""
    given = signature.bind(*args, **kwargs).arguments
    reduction = given.get("reduction", "mean")
    if given.get("size_average") is not None or given.get("reduce") is not None:
        reduction = _reduction.legacy_get_string(given.pop("size_average", None), given.pop("reduce", None))
        given["reduction"] = reduction
    if reduction != "mean":
        return (), given, None
    if name in _DIVIDING and (given.get("weight") is not None or given.get("ignore_index", -100) != -100):
        divided_by_all(name)
    given["reduction"] = "none"
    if name in ("cross_entropy", "nll_loss") and not given["target"].is_floating_point():
        return (), given, partial(_mean_of_rows, given["target"] != given.get("ignore_index", -100))
    if name == "ctc_loss":
        lengths = given["target_lengths"]
        return (), given, lambda out: (out / torch.as_tensor(lengths).clamp(min=1)).mean()
    return (), given, torch.mean


def _mean_of_rows(counted: Tensor, losses: Tensor) -> Tensor:
    """The mean over rows of each row's mean over its own targets that count, whatever the padding."""
    label, rows = (losses.label, losses.batch.rows) if isinstance(losses, LabelledTensor) else (None, 0)
    if not isinstance(label, OnAxis) or not rows or losses.numel() == rows:
        return losses.mean()
    shape = (-1, rows, label.inner)
    own, count = (
        part.unflatten(label.axis, shape).movedim(label.axis + 1, 0).flatten(1) for part in (losses, counted)
    )
    return (own.sum(1) / count.sum(1).clamp(min=1)).mean()


#: Whose means divide by what weights and labels sum up to.
_DIVIDING = ("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")


for _name, _function in vars(F).items():
    if inspect.isfunction(_function) and not _name.startswith("_") and _name != "linear_cross_entropy":
        _signature = inspect.signature(_function)
        if "reduction" in _signature.parameters:
            LOSSES[_function] = partial(_as_mean, _signature, _name)
