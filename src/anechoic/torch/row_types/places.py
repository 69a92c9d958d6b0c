"""Operations that take values from places, and losses with targets."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anechoic.torch.row_types.call import Call, NotApart
from anechoic.torch.row_types.elementwise import met
from anechoic.torch.row_types.labels import PICKED, TOTAL, Label, Mixed, RowAxis
from anechoic.torch.row_types.shapes import no_rule_for


def embedded(call: Call) -> Label:
    return call.only("indices")


def gathered(call: Call) -> Label:
    """gather, scatter, take_along_dim: the same place in all axes but one."""
    label = call.only("self", "index", "src")
    axis = call["dim"] % max(1, call["index"].dim())
    if axis == label.axis and call.label(call["self"]) is not None:
        raise NotApart(f"{call} goes along the rows")
    if call["index"].shape[label.axis] != label.inner * call.rows:
        raise NotApart(f"{call} of tensors of other shapes")
    if call["src"] is not None and axis == label.axis:
        raise NotApart(f"{call} puts rows at places that the data decide")
    return label


def selected(call: Call) -> Label:
    own, index = call.label(call["self"]), call.label(call["index"])
    axis = call["dim"] % max(1, call["self"].dim())
    if own is None and isinstance(index, RowAxis):
        return RowAxis(axis, index.inner)
    if index is None and isinstance(own, RowAxis) and own.axis != axis:
        return own
    raise NotApart(f"{call} takes some of the rows")


def indexed(call: Call) -> Label:
    own: Any = call.label(call["self"])
    places = list(call["indices"])
    given = [(axis, t) for axis, t in enumerate(places) if isinstance(t, Tensor)]
    labels: list[Any] = [call.label(t) for _, t in given]
    if any(t.dtype == torch.bool for _, t in given):
        known = {label for label in (own, labels[0]) if label is not None}
        if len(given) == 1 and given[0][0] == 0 and known == {RowAxis(0)}:
            return PICKED
        raise NotApart("values are taken by a mask in several axes")
    if own is None and len(given) == 1 and isinstance(labels[0], RowAxis):
        return RowAxis(labels[0].axis + given[0][0], labels[0].inner)
    if not isinstance(own, RowAxis):
        return no_rule_for(call, own if own is not None else labels[0])  # type: ignore[no-any-return]
    axes = [axis for axis, _ in given]
    if own.axis not in axes and not any(labels):
        together = axes == list(range(axes[0], axes[0] + len(axes)))
        if together and own.axis < axes[0]:
            return own
        raise NotApart("values are taken in several axes")
    # x[arange(rows), target]: the same row everywhere
    if own == RowAxis(0) and axes == list(range(len(axes))) and labels[0] is None:
        first = given[0][1]
        same = set(labels) <= {None, RowAxis(0)} and all(t.shape == first.shape for _, t in given)
        if same and first.dim() == 1 and torch.equal(first, torch.arange(call.rows, device=first.device)):
            return RowAxis(0)
    raise NotApart("rows are taken from places that the data, or the script, decide")


def masked(call: Call) -> Label:
    found = {label for _, label in call.labelled}
    if len(found) == 1 and isinstance(found.pop(), RowAxis):
        return PICKED
    raise NotApart(f"{call} of rows in several places")


_MEAN = 1  # of torch's enum of reductions
_DIVISOR = (
    "the divisor of the mean depends on the targets of other rows ({}); take reduction='none', a mean of each"
    " row, and then mean(), or sum() / a public number"
)


def elementwise_loss(call: Call) -> Label:
    shapes = [t.shape for t in call.tensors]
    label = met(call, torch.broadcast_shapes(*shapes))
    return TOTAL if call["reduction"] else label


def nll(call: Call) -> Any:
    label = call.only("self", "target")
    if label.axis != 0:
        raise NotApart(f"{call} goes along the rows")
    if call["reduction"] == _MEAN:
        if call["weight"] is not None:
            raise NotApart(_DIVISOR.format("class weights"))
        if bool((call["target"] == call["ignore_index"]).any()):
            raise NotApart(_DIVISOR.format("ignore_index"))
    return [TOTAL if call["reduction"] else label, Mixed("the weights of all targets")]
