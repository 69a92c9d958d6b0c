"""Operations element by element: rows meet rows in their places, totals add up."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from anechoic.torch.row_types.axes import no_rule_for
from anechoic.torch.row_types.labels import (
    EACH_ROW,
    MEAN,
    TOTAL,
    Call,
    Label,
    NotApart,
    One,
    Picked,
    RowAxis,
    Total,
    packets,
)


def pointwise(call: Call, shape: torch.Size | None = None) -> Label:
    """What is element by element in tensors that are broadcast to the shape of what is made."""
    shape = call.made[0].shape if shape is None else shape
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
    "add add_ sub sub_ rsub neg clone _to_copy detach alias copy_ lift_fresh positive contiguous _conj conj"
)
_SCALING = packets("mul mul_")
_DIVIDING = packets("div div_ true_divide")


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
    if call.packet not in _READS and axis == label.axis:
        raise NotApart(f"{call} puts rows at places that the data decide")
    return label


_READS = packets("gather take_along_dim")


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
        if len(given) == 1 and given[0][0] == 0 and len(known) == 1:
            label = known.pop()
            if isinstance(label, RowAxis) and label.axis < given[0][1].dim():
                return Picked(_which(given[0][1]))
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
    leading = own == RowAxis(0) and axes == list(range(len(axes)))
    if leading and (_one_a_row(call, given) or _own_row(call, given)):
        return RowAxis(0)
    raise NotApart("rows are taken from places that the data, or the script, decide")


def _which(mask: Tensor) -> Any:
    """What a mask picks: by its values, as another one may come to lie in its place, or be written there."""
    return mask.shape, mask.detach().cpu().numpy().tobytes()


def masked(call: Call) -> Label:
    found = {label for _, label in call.labelled}
    if len(found) == 1 and isinstance(found.pop(), RowAxis):
        return Picked(_which(call["mask"]))
    raise NotApart(f"{call} of rows in several places")


_MEAN = 1  # of torch's enum of reductions
_WEIGHTS = (
    "the divisor of the mean depends on the targets of other rows (class weights); take"
    " F.cross_entropy(outputs, targets, weight=weights, reduction='none').mean()"
)
_IGNORED = f"the divisor of the mean depends on the targets of other rows (ignore_index); {EACH_ROW}"


def elementwise_loss(call: Call) -> Label:
    shapes = [t.shape for t in call.tensors]
    label = pointwise(call, torch.broadcast_shapes(*shapes))
    return _over_rows(call, label)


def _over_rows(call: Call, label: Label) -> Label:
    return (label, MEAN, TOTAL)[call["reduction"]]


def margin_loss(call: Call) -> Any:
    """Losses of classes: a sum or mean over rows, class weights or not."""
    label = call.only("self", "target")
    if label.axis != 0 or call["self"].dim() < 2:
        raise NotApart(f"{call} goes along the rows")
    found = _over_rows(call, label)
    return [found, label] if isinstance(call.out, tuple) else found


def put(call: Call) -> Label:
    """x[mask] = number, x[arange(rows), places] = number, x[:, places] = number.

    And gradients of what was picked by a mask, or from one place a row, where it was picked.
    """
    own: Any = call.label(call["self"])
    given = [(axis, t) for axis, t in enumerate(call["indices"]) if isinstance(t, Tensor)]
    value, labels = call["values"], [call.label(t) for _, t in given]
    public = call.label(value) is None
    same_number = public and (value.numel() == 1 or bool((value == value.reshape(-1)[:1]).all()))
    first = given[0][1]
    picked = isinstance(call.label(value), Picked) and call.label(value) == Picked(_which(first))
    if (same_number or picked) and first.dtype == torch.bool and len(given) == 1 and given[0][0] == 0:
        known = {label for label in (own, labels[0]) if label is not None}
        if len(known) == 1 and isinstance(label := known.pop(), RowAxis) and label.axis < first.dim():
            return label
    leading = [axis for axis, _ in given] == list(range(len(given)))
    same = own in (None, RowAxis(0)) and len(call["self"]) == call.rows
    rows = call.label(value) in (None, RowAxis(0)) and value.shape[:1] == first.shape[:1]
    if leading and same and _one_a_row(call, given) and (same_number or rows):
        return RowAxis(0)
    if not same_number:
        raise NotApart(f"{call} of more than one number")
    if isinstance(own, RowAxis) and not any(labels) and own.axis not in [axis for axis, _ in given]:
        return own
    raise NotApart(f"{call} writes to places that the data, or the script, decide")


def _own_row(call: Call, given: list[tuple[int, Tensor]]) -> bool:
    """Whether places are arange(rows)[:, None, …], beside others of as many axes: masks of attention."""
    first = given[0][1]
    if call.label(first) is not None or first.dim() < 2 or first.dtype == torch.bool:
        return False
    beside = all(
        t.dtype != torch.bool
        and t.dim() <= first.dim()
        and (call.label(t) is None or (call.label(t) == RowAxis(0) and t.dim() == first.dim()))
        for _, t in given[1:]
    )
    rows = torch.arange(call.rows, device=first.device)
    one_axis = first.shape == (call.rows, *[1] * (first.dim() - 1))
    return beside and one_axis and torch.equal(first.reshape(-1), rows)


def _one_a_row(call: Call, given: list[tuple[int, Tensor]]) -> bool:
    """Whether places are arange(rows), and then some of each row's own."""
    first = given[0][1]
    same = all(
        call.label(t) in (None, RowAxis(0)) and t.dtype != torch.bool and t.shape == first.shape
        for _, t in given
    )
    return same and first.dim() == 1 and torch.equal(first, torch.arange(call.rows, device=first.device))


def nll(call: Call) -> Any:
    label = call.only("self", "target")
    if label.axis != 0:
        raise NotApart(f"{call} goes along the rows")
    if call["reduction"] == _MEAN:
        if call["weight"] is not None:
            raise NotApart(_WEIGHTS)
        if bool((call["target"] == call["ignore_index"]).any()):
            raise NotApart(_IGNORED)
    return [_over_rows(call, label), None]


def ctc(call: Call) -> Any:
    """Losses of sequences: log-probabilities with rows second, targets with rows first, padded."""
    of_targets, of_lengths = call.label(call["targets"]), call.label(call["target_lengths"])
    if (
        call.label(call["log_probs"]) != RowAxis(1)
        or call["targets"].dim() != 2
        or {of_targets, of_lengths, call.label(call["input_lengths"])} - {None, RowAxis(0)}
    ):
        raise NotApart(f"{call} of rows in other places (pad the targets, shape (rows, length))")
    return [RowAxis(0), RowAxis(0)]


def ctc_pulled(call: Call) -> Label:
    if call.label(call["grad"]) not in (None, RowAxis(0)) or call.label(call["log_probs"]) != RowAxis(1):
        raise NotApart(f"{call} of rows in other places")
    return RowAxis(1)


def nll_pulled(call: Call) -> Any:
    """Gradients of `nll`: those of each row, once its own divisor was looked at on the way there."""
    return call.only("self", "target", "grad_output", "is_target")
