"""Reductions, normalisations, products of matrices and layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anechoic.torch.row_types.call import EACH_ROW, Call, NotApart, Rule, packets, words
from anechoic.torch.row_types.labels import PICKED, TOTAL, Label, RowAxis
from anechoic.torch.row_types.shapes import alone, no_rule_for

_aten: Any = torch.ops.aten


def reduced(call: Call) -> Any:
    tensor, label = alone(call)
    packet, made = call.func.overloadpacket, len(call.made)
    if label == TOTAL:
        return TOTAL if packet in _TOTALS else no_rule_for(call, label)
    if label == PICKED:
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
            return TOTAL
        raise NotApart(f"{call} is taken over the rows of the batch")
    left = rows.axis if call["keepdim"] else rows.axis - sum(axis < rows.axis for axis in axes)
    return [RowAxis(left, rows.inner)] * made


_TOTALS = packets("sum", "mean", "nansum")


def normalised(call: Call) -> Any:
    label = call.only("input")
    last = call["input"].dim() - len(call["normalized_shape"])
    if label.axis >= last:
        raise NotApart(f"{call} is taken over the rows of the batch")
    return [label if t.dim() > label.axis else None for t in call.made]


def batch_normalised(call: Call) -> Any:
    label = call.only("input")
    of_batch = call["training"] or call["use_input_stats"]
    if label.axis > 1 or (of_batch and label.axis == 0):  # channels of rows, as instance norm has, are apart
        raise NotApart(f"{call} is taken over the rows of the batch")
    others = call.made[1:]
    return [label, *[RowAxis(0, label.inner) if label.axis and t.dim() == 1 else None for t in others]]


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
    if TOTAL in (la, lb) and None in (la, lb):
        return TOTAL
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
    return [label if t.dim() >= 3 and t.shape[0] == size else None for t in call.made]


def by_first(call: Call) -> Any:
    """Layers of images and sequences: example by example along the first axis."""
    found = {label for _, label in call.labelled}
    label = found.pop()
    given: Tensor = call.labelled[0][0]
    weight = call["weight"]
    batched = call.func.overloadpacket is not _aten.convolution or given.dim() == weight.dim()
    if (
        found
        or not isinstance(label, RowAxis)
        or label.axis != 0
        or not batched
        or call.label(weight) is not None
    ):
        raise NotApart(f"{call} goes along the rows")
    return [label if t.dim() and t.shape[0] == given.shape[0] else None for t in call.made]
