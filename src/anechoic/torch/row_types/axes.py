"""Operations on shapes: where an axis goes."""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from typing import Any

import torch
from torch import Tensor

from anechoic.torch.row_types.labels import (
    EACH_ROW,
    MEAN,
    TOTAL,
    Call,
    Label,
    Mixed,
    NotApart,
    One,
    Picked,
    RowAxis,
    Rule,
    Total,
    packets,
    words,
)

_aten: Any = torch.ops.aten


def alone(call: Call) -> tuple[Tensor, Label]:
    """The one tensor that an operation on shapes is given."""
    (tensor, label), *others = call.labelled
    if others:
        raise NotApart(f"{call} takes rows beside rows")
    return tensor, label


def reshaped(call: Call) -> Label:
    tensor, label = alone(call)
    if not isinstance(label, RowAxis):
        return label
    out: Tensor = call.out
    outside = math.prod(tensor.shape[: label.axis])
    before = 1
    for axis, size in enumerate(out.shape):
        if before == outside and size and size % call.rows == 0:
            return RowAxis(axis, size // call.rows)
        before *= size
    raise NotApart(f"a reshape from {tuple(tensor.shape)} to {tuple(out.shape)} takes rows to pieces")


def expanded(call: Call) -> Label:
    tensor, label = alone(call)
    if not isinstance(label, RowAxis):
        return label if isinstance(label, Total) else no_rule_for(call, label)
    axis = label.axis + call.out.dim() - tensor.dim()
    if call.out.shape[axis] != tensor.shape[label.axis]:
        raise NotApart(f"{call} spreads a row over several")
    return RowAxis(axis, label.inner)


def no_rule_for(call: Call, label: Label) -> Any:
    raise NotApart(f"{call} of {words(label)}")


def unsqueezed(call: Call) -> Label:
    tensor, label = alone(call)
    if not isinstance(label, RowAxis):
        return label
    at = call["dim"] % (tensor.dim() + 1)
    return RowAxis(label.axis + (at <= label.axis), label.inner)


def permuted(call: Call) -> Label:
    tensor, label = alone(call)
    if not isinstance(label, RowAxis):
        return label
    order = list(range(tensor.dim()))
    if call["dims"] is not None:
        order = [axis % tensor.dim() for axis in call["dims"]]
    elif call["dim0"] is not None:
        first, second = (call[name] % tensor.dim() for name in ("dim0", "dim1"))
        order[first], order[second] = second, first
    else:
        order.reverse()  # t()
    return RowAxis(order.index(label.axis), label.inner)


def part(call: Call) -> Any:
    """A part along one axis: slice, select, split, unbind, narrow."""
    tensor, label = alone(call)
    if not isinstance(label, RowAxis):
        return label
    axis = (call["dim"] or 0) % tensor.dim()
    packet = call.packet
    gone = packet in _LESS_AN_AXIS
    if axis == label.axis:
        if not gone and call.made[0].shape[axis] == tensor.shape[axis]:
            return label
        return _single_rows(call, tensor, axis, label.inner)
    return RowAxis(label.axis - (gone and axis < label.axis), label.inner)


_LESS_AN_AXIS = packets("select unbind")


def _single_rows(call: Call, tensor: Tensor, axis: int, inner: int) -> list[Label]:
    """Parts along the rows, of which each belongs to one."""
    packet, size = call.packet, tensor.shape[axis]
    lengths = [1 if packet in _LESS_AN_AXIS else t.shape[axis] for t in call.made]
    start, step = call["index"] or call["start"] or 0, call["step"] or 1
    places, found = min(start + size * (start < 0), size), []
    for length in lengths:
        rows = {place // inner for place in range(places, places + length * step, step)}
        if len(rows) != 1 or call.batch.decided:
            raise NotApart(f"{call} takes a part of the rows")
        found.append(One(rows.pop()))
        places += length
    return found  # type: ignore[return-value]


def put_back(call: Call) -> Label:
    """The gradient of a part: nothing but in its place."""
    tensor, label = alone(call)
    shape = call["input_sizes"]
    axis, size = call["dim"] % len(shape), shape[call["dim"] % len(shape)]
    taken = call.packet is _aten.select_backward
    if isinstance(label, RowAxis):
        if not taken and axis == label.axis and tensor.shape[axis] != size:
            raise NotApart(f"{call} puts rows in other places")
        return RowAxis(label.axis + (taken and axis <= label.axis), label.inner)
    if isinstance(label, One) and size % call.rows == 0:
        inner, first = size // call.rows, call["index"] if taken else call["start"] or 0
        first = max(0, first + size * (first < 0))
        last = first if taken else first + (tensor.shape[axis] - 1) * (call["step"] or 1)
        if first // inner == label.row == last // inner:
            return RowAxis(axis, inner)
    raise NotApart(f"{call} of {words(label)}, in another place")


def joined(call: Call) -> Label:
    tensors = _taken(call)
    found = {label for t in tensors if (label := call.label(t)) is not None}
    if any(isinstance(label, One) for label in found):
        return _of_single_rows(call, tensors)
    if len(found) > 1:
        raise NotApart(f"{call} puts rows beside rows in another place")
    label = found.pop()
    if not isinstance(label, RowAxis):
        return label
    stacked = call.packet is _aten.stack
    axis = (call["dim"] or 0) % (tensors[0].dim() + stacked)
    if axis == label.axis and not stacked:
        raise NotApart(f"{call} puts rows behind one another")
    if any(call.label(t) is None and t.shape[label.axis] != label.inner * call.rows for t in tensors):
        raise NotApart(f"{call} of tensors of other shapes")
    return RowAxis(label.axis + (stacked and axis <= label.axis), label.inner)


def _taken(call: Call) -> list[Tensor]:
    """The tensors that are joined: torch leaves out an empty one of one axis, with which caches begin."""
    given: list[Tensor] = list(call["tensors"])
    if call.packet is _aten.stack:
        return given
    return [t for t in given if t.dim() != 1 or len(t) or call.label(t) is not None]


def _of_single_rows(call: Call, tensors: list[Tensor]) -> Label:
    """One row behind the other, all of them."""
    stacked = call.packet is _aten.stack
    axis = (call["dim"] or 0) % (tensors[0].dim() + stacked)
    inner = 1 if stacked else tensors[0].shape[axis]
    in_order = all(call.label(t) in (None, One(row)) for row, t in enumerate(tensors))
    if not in_order or len(tensors) != call.rows or any(t.shape != tensors[0].shape for t in tensors):
        raise NotApart(f"{call} of single rows, and not of all in their order")
    return RowAxis(axis, inner)


def along(axes: Callable[[Call, Tensor], Container[int] | None]) -> Rule:
    """Operations along some axes of one tensor, which leave the others as they are; None for all axes."""

    def rule(call: Call) -> Label:
        tensor, label = alone(call)
        if not isinstance(label, RowAxis):
            return no_rule_for(call, label)  # type: ignore[no-any-return]
        taken = axes(call, tensor)
        if taken is None or label.axis in taken:
            raise NotApart(f"{call} goes along the rows")
        return label

    return rule


def untouched(name: str) -> Rule:
    """Operations along axes that are named."""
    return along(lambda call, tensor: call.dims(tensor, name))


padded = along(lambda call, t: [t.dim() - 1 - i // 2 for i, size in enumerate(call["pad"]) if size])
triangle = along(lambda call, t: (t.dim() - 2, t.dim() - 1))
#: Places that are drawn by each row's own chances.
drawn = along(lambda call, t: range(t.dim() > 1, t.dim()))


def repeated(call: Call) -> Label:
    tensor, label = alone(call)
    new = len(call["repeats"]) - tensor.dim()
    if not isinstance(label, RowAxis) or call["repeats"][label.axis + new] != 1:
        raise NotApart(f"{call} makes several rows of one")
    return RowAxis(label.axis + new, label.inner)


def reduced(call: Call) -> Any:
    tensor, label = alone(call)
    packet, made = call.packet, len(call.made)
    if isinstance(label, Total):
        return label if packet in _TOTALS else no_rule_for(call, label)
    if isinstance(label, Picked):
        if packet is _aten.sum:
            return TOTAL
        raise NotApart(
            f"the divisor of a mean is a number of values that the rows of the batch decide; {EACH_ROW}"
        )
    axes = call.dims(tensor)
    rows: RowAxis = label  # type: ignore[assignment]
    if axes is None or rows.axis in axes:
        if packet is _aten.sum and tensor.dtype == torch.bool and bool(tensor.all()):
            return None  # a count in which every row counts: as many as there are
        if packet in _TOTALS:
            return MEAN if packet is _aten.mean else TOTAL
        raise NotApart(f"{call} is taken over the rows of the batch")
    left = rows.axis if call["keepdim"] else rows.axis - sum(axis < rows.axis for axis in axes)
    return [RowAxis(left, rows.inner)] * made


_TOTALS = packets("sum mean nansum")


def normalised(call: Call) -> Any:
    label = call.only("input")
    last = call["input"].dim() - len(call["normalized_shape"])
    if label.axis >= last:
        raise NotApart(f"{call} is taken over the rows of the batch")
    return [label if t.dim() > label.axis else None for t in call.made]


def batch_normalised(call: Call) -> Any:
    label = call.only("input")
    of_batch = call["training"] or call["use_input_stats"] or call.packet in _OF_BATCH
    if label.axis > 1 or (of_batch and label.axis == 0):  # channels of rows, as instance norm has, are apart
        raise NotApart(f"{call} is taken over the rows of the batch")
    others = call.made[1:]
    return [label, *[RowAxis(0, label.inner) if label.axis and t.dim() == 1 else None for t in others]]


_OF_BATCH = packets("_batch_norm_with_update")


def product(left: str, right: str, batch: int) -> Rule:
    """Products of matrices: `batch` leading axes, then (n, k) times (k, m); a vector has k alone."""

    def rule(call: Call) -> Label:
        a, b = call[left], call[right]
        la, lb = call.label(a), call.label(b)
        bias = [label for t, label in call.labelled if t is not a and t is not b]
        found = _of_product(call, a, b, la, lb, batch)
        if bias and (found != TOTAL or set(bias) != {TOTAL}) and set(bias) != {found}:
            raise NotApart(f"{call} adds rows in another place")
        return found

    return rule


def _of_product(call: Call, a: Tensor, b: Tensor, la: Any, lb: Any, batch: int) -> Label:
    if isinstance(la or lb, Total) and None in (la, lb):
        return la or lb  # type: ignore[no-any-return]
    inner_a, inner_b = a.dim() - 1, batch
    if la is not None and lb is not None:
        if isinstance(la, RowAxis) and isinstance(lb, RowAxis) and la.inner == lb.inner:
            if la.axis == lb.axis < batch:
                return la
            if la.axis == inner_a and lb.axis == inner_b:
                return TOTAL
        raise NotApart(f"{call} of rows with rows: each with every other")
    if isinstance(la, RowAxis):
        return TOTAL if la.axis == inner_a else la
    if isinstance(lb, RowAxis):
        if lb.axis == inner_b:
            return TOTAL
        return lb if lb.axis < batch else RowAxis(lb.axis - (a.dim() == batch + 1), lb.inner)
    raise NotApart(f"{call} of {words(la or lb)}")


def linear(call: Call) -> Label:
    label = call.only("input")
    if label.axis == call["input"].dim() - 1:
        raise NotApart(f"{call} goes along the rows")
    return label


def attended(call: Call) -> Any:
    found = {label for _, label in call.labelled}
    if len(found) != 1 or not isinstance(label := found.pop(), RowAxis) or label.axis != 0:
        raise NotApart(f"{call} of rows in several places")
    size = call["query"].shape[0]
    if any(call.label(call[name]) is None for name in ("query", "key", "value")):
        raise NotApart(f"{call} of rows with what all rows share")
    if any(t.dim() != call["query"].dim() for t, _ in call.labelled):
        raise NotApart(f"{call} with a mask whose first axis is not that of the rows (unsqueeze it)")
    return [label if t.dim() >= 3 and t.shape[0] == size else None for t in call.made]


def groups_pulled(call: Call) -> Any:
    """The backward pass of a norm over groups of channels: example by example, but for weights' gradients."""
    kinds = {label for _, label in call.labelled}
    if kinds != {RowAxis(0)} or call.label(call["weight"]) is not None:
        raise NotApart(f"{call} goes along the rows")
    mixed = Mixed(f"{call} adds up the rows")
    return [RowAxis(0) if t.dim() > 1 else mixed for t in call.made]


def by_first(call: Call) -> Any:
    """Layers of images and sequences: example by example along the first axis."""
    (given, label), *others = call.labelled
    rows_first = isinstance(label, RowAxis) and label.axis == 0 and given is call.tensors[0]
    batched = call.packet is not _aten.convolution or given.dim() == call["weight"].dim()
    if others or not rows_first or not batched:
        raise NotApart(f"{call} goes along the rows")
    return [label if t.numel() else None for t in call.made]
