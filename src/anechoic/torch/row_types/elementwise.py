"""Operations element by element: rows meet rows in their places, totals add up."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anechoic.torch.row_types.call import EACH_ROW, Call, NotApart, flat, packets
from anechoic.torch.row_types.labels import PICKED, TOTAL, Label, RowAxis


def pointwise(call: Call) -> Label | None:
    return met(call, call.out if isinstance(call.out, Tensor) else flat(call.out)[0])


def met(call: Call, out: Tensor | torch.Size) -> Label:
    """What is element by element in tensors that are broadcast to the shape of `out`."""
    shape = out if isinstance(out, torch.Size) else out.shape
    found = [label for _, label in call.labelled]
    if any(label in (TOTAL, PICKED) for label in found):
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
    if isinstance(label, RowAxis) and label.axis not in (call.dims(flat(call.out)[0]) or [label.axis]):
        return label
    raise NotApart(f"{call} goes along the rows")


def _of_totals(call: Call, found: list[Label]) -> Label:
    packet = call.func.overloadpacket
    if set(found) == {TOTAL}:
        alone = len(found) == 1
        if packet in _ADDING or (packet in _SCALING and alone):
            return TOTAL
        if packet in _DIVIDING and alone and call.label(call["self"]) == TOTAL:
            return TOTAL
        if packet in _DIVIDING:
            raise NotApart(f"the loss is divided by a number that the rows of the batch decide; {EACH_ROW}")
        raise NotApart(f"{call} of a total over rows is no sum over rows")
    if found == [PICKED]:
        return PICKED
    raise NotApart(f"{call}: a total over rows, or values of some of them, meet other rows")


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
    *("positive", "contiguous", "view_as_real", "_conj", "conj", "real"),
)
_SCALING = packets("mul", "mul_")
_DIVIDING = packets("div", "div_", "true_divide")
