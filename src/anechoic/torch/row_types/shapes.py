"""Operations on shapes: where an axis goes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from anechoic.torch.row_types.call import Call, NotApart, Rule, packets, words
from anechoic.torch.row_types.labels import Label, One, RowAxis, Total

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


_LESS_AN_AXIS = packets("select", "unbind")


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
    tensors: list[Tensor] = list(call["tensors"])
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


def _of_single_rows(call: Call, tensors: list[Tensor]) -> Label:
    """One row behind the other, all of them."""
    stacked = call.packet is _aten.stack
    axis = (call["dim"] or 0) % (tensors[0].dim() + stacked)
    inner = 1 if stacked else tensors[0].shape[axis]
    in_order = all(call.label(t) in (None, One(row)) for row, t in enumerate(tensors))
    if not in_order or len(tensors) != call.rows or any(t.shape != tensors[0].shape for t in tensors):
        raise NotApart(f"{call} of single rows, and not of all in their order")
    return RowAxis(axis, inner)


def untouched(*names: str) -> Rule:
    """Operations along axes that are named, which leave the others as they are."""

    def rule(call: Call) -> Label:
        tensor, label = alone(call)
        if not isinstance(label, RowAxis):
            return no_rule_for(call, label)  # type: ignore[no-any-return]
        for name in names:
            axes = call.dims(tensor, name)
            if call[name] is not None and (axes is None or label.axis in axes):
                raise NotApart(f"{call} goes along the rows")
        if all(call[name] is None for name in names):
            raise NotApart(f"{call} goes along the rows")
        return label

    return rule


def padded(call: Call) -> Label:
    tensor, label = alone(call)
    touched = [tensor.dim() - 1 - i // 2 for i, size in enumerate(call["pad"]) if size]
    if not isinstance(label, RowAxis) or label.axis in touched:
        raise NotApart(f"{call} goes along the rows")
    return label


def repeated(call: Call) -> Label:
    tensor, label = alone(call)
    new = len(call["repeats"]) - tensor.dim()
    if not isinstance(label, RowAxis) or call["repeats"][label.axis + new] != 1:
        raise NotApart(f"{call} makes several rows of one")
    return RowAxis(label.axis + new, label.inner)


def triangle(call: Call) -> Label:
    tensor, label = alone(call)
    if not isinstance(label, RowAxis) or label.axis >= tensor.dim() - 2:
        raise NotApart(f"{call} goes along the rows")
    return label
