"""Operations element by element: rows meet rows in their places, totals add up."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from anechoic.torch.row_types.call import EACH_ROW, Call, NotApart, packets
from anechoic.torch.row_types.labels import TOTAL, Label, One, Picked, RowAxis, Total


def pointwise(call: Call) -> Label | None:
    return met(call, call.made[0])


def met(call: Call, out: Tensor | torch.Size) -> Label:
    """What is element by element in tensors that are broadcast to the shape of `out`."""
    shape = out if isinstance(out, torch.Size) else out.shape
    found = [label for _, label in call.labelled]
    if not all(isinstance(label, RowAxis) for label in found):
        return _of_totals(call, found)
    places = set()
    for tensor, label in call.labelled:
        rows: Any = label
        axis = rows.axis + len(shape) - tensor.dim()
        if axis < 0 or shape[axis] != tensor.shape[rows.axis]:
            raise NotApart(f"{call} spreads a row over several")
        places.add(RowAxis(axis, rows.inner))
    if len(places) > 1:
        shapes = " and ".join(str(tuple(tensor.shape)) for tensor, _ in call.labelled)
        raise NotApart(
            f"rows meet rows on another axis: {call} of tensors of shapes {shapes}, which broadcasting"
            " spreads over one another; squeeze() one, or unsqueeze(1) the other"
        )
    return places.pop()


def met_along(call: Call) -> Label:
    """The same, but for one axis that is named, along which entries meet each other."""
    label = pointwise(call)
    if isinstance(label, RowAxis) and label.axis not in (call.dims(call.made[0]) or [label.axis]):
        return label
    raise NotApart(f"{call} goes along the rows")


def same_axis(call: Call) -> Label:
    """One more axis, or one less, behind all others."""
    label = call.only("self")
    if label.axis >= min(call["self"].dim(), call.out.dim()):
        raise NotApart(f"{call} takes rows to pieces")
    return label


def _of_totals(call: Call, found: list[Label]) -> Label:
    packet = call.packet
    if packet in _ADDING and all(isinstance(label, (Total, One)) for label in found):
        totals = {TOTAL if isinstance(label, One) else label for label in found}
        if len(totals) > 1:
            raise NotApart(
                "a mean over the rows and a sum over them are added, which differ by the number of rows; take"
                " the mean of both"
            )
        return totals.pop()
    if len(set(found)) == 1 and isinstance(found[0], Picked):
        return found[0]
    (total, *others) = found
    if packet in _DIVIDING and (others or call.label(call["self"]) is None):
        raise NotApart(f"the loss is divided by a number that the rows of the batch decide; {EACH_ROW}")
    if isinstance(total, Total) and not others and packet in _SCALING | _DIVIDING:
        return _scaled(call, total)
    if isinstance(total, Total) and not others:
        raise NotApart(f"{call} of a total over rows is no sum over rows")
    raise NotApart(f"{call}: a total over rows, or values of some of them, meet other rows")


def _scaled(call: Call, total: Total) -> Total:
    """A total times, or through, public numbers: the number of rows makes means of sums, sums of means."""
    other = next((t for t in (call["self"], call["other"]) if call.label(t) is None), None)
    if isinstance(other, Tensor):
        other = other.item() if other.numel() == 1 else None
    if not isinstance(other, (int, float)) or not other or not math.isfinite(other):
        return total
    size = abs(other) if call.packet in _DIVIDING else 1 / abs(other)
    if not total.mean:
        return Total(mean=call.batch.counts_rows(size))
    return Total(mean=not call.batch.counts_rows(1 / size, once=True))


_ADDING = packets(
    *(
        "add",
        "add_",
        "sub",
        "sub_",
        "rsub",
        "neg",
        "clone",
        "_to_copy",
        "detach",
        "alias",
        "copy_",
        "lift_fresh",
    ),
    *("positive", "contiguous", "_conj", "conj"),
)
_SCALING = packets("mul", "mul_")
_DIVIDING = packets("div", "div_", "true_divide")
