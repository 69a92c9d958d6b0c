"""Operations on shapes: where an axis goes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from anechoic.torch.row_types.call import Call, NotApart, Rule, flat, packets, words
from anechoic.torch.row_types.labels import TOTAL, Label, RowAxis

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
        return label if label == TOTAL else no_rule_for(call, label)
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


def part(call: Call) -> Label:
    """A part along one axis: slice, select, split, unbind, narrow."""
    tensor, label = alone(call)
    if not isinstance(label, RowAxis):
        return label
    axis = (call["dim"] or 0) % tensor.dim()
    packet = call.func.overloadpacket
    gone = packet in _LESS_AN_AXIS
    if axis == label.axis:
        out = flat(call.out)[0]
        if gone or out.shape[axis] != tensor.shape[axis]:
            raise NotApart(f"{call} takes a part of the rows")
        return label
    return RowAxis(label.axis - (gone and axis < label.axis), label.inner)


_LESS_AN_AXIS = packets("select", "unbind")


def joined(call: Call) -> Label:
    tensors: list[Tensor] = list(call["tensors"])
    found = {label for t in tensors if (label := call.label(t)) is not None}
    if len(found) > 1:
        raise NotApart(f"{call} puts rows beside rows in another place")
    label = found.pop()
    if not isinstance(label, RowAxis):
        return label
    stacked = call.func.overloadpacket is _aten.stack
    axis = (call["dim"] or 0) % (tensors[0].dim() + stacked)
    if axis == label.axis and not stacked:
        raise NotApart(f"{call} puts rows behind one another")
    if any(call.label(t) is None and t.shape[label.axis] != label.inner * call.rows for t in tensors):
        raise NotApart(f"{call} of tensors of other shapes")
    return RowAxis(label.axis + (stacked and axis <= label.axis), label.inner)


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
