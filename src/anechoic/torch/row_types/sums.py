"""Reductions, normalisations, products of matrices and layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anechoic.torch.row_types.call import EACH_ROW, Call, NotApart, Rule, packets, words
from anechoic.torch.row_types.labels import MEAN, TOTAL, Label, Picked, RowAxis, Total
from anechoic.torch.row_types.shapes import alone, no_rule_for

_aten: Any = torch.ops.aten


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


_TOTALS = packets("sum", "mean", "nansum")


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


def drawn(call: Call) -> Label:
    """Places that are drawn by each row's own chances."""
    label = call.only("self")
    if label.axis != 0 or call["self"].dim() < 2:
        raise NotApart(f"{call} goes along the rows")
    return label


def by_first(call: Call) -> Any:
    """Layers of images and sequences: example by example along the first axis."""
    (given, label), *others = call.labelled
    rows_first = isinstance(label, RowAxis) and label.axis == 0 and given is call.tensors[0]
    batched = call.packet is not _aten.convolution or given.dim() == call["weight"].dim()
    if others or not rows_first or not batched:
        raise NotApart(f"{call} goes along the rows")
    return [label if t.numel() else None for t in call.made]
