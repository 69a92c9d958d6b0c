"""What make_private checks where units own several examples, and the order of a delivered batch's rows."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from anechoic.batches.base import Batches
from anechoic.errors import DesynchronizedError, MismatchError, UnsupportedError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.runs.ledger import ReleaseLedger
from anechoic.torch.idle import idle
from anechoic.torch.structure import tensors_in
from anechoic.units.duplicates import check_schema, find_duplicates
from anechoic.units.ownership import Units

logger = logging.getLogger("anechoic")


def units_of(unit_ids: Any, examples: int) -> Units | None:
    """`unit_ids` as Units for a data set of `examples`; None stays None.

    Raises:
        ValueError: for labels that are missing or not hashable.
        MismatchError: if they are not those of `examples` examples.
    """
    if unit_ids is None:
        return None
    units = unit_ids if isinstance(unit_ids, Units) else Units(unit_ids)
    if units.examples != examples:
        raise MismatchError(
            f"unit_ids name the owners of {units.examples} examples, and the data set has {examples}: give"
            " one label for each index of data_loader.dataset, in its order."
        )
    return units


def check_units(
    units: Units | None,
    mechanism: Any,
    *,
    unit: str | None,
    adjacency: str | None,
    promised: bool,
    mode: str,
) -> None:
    """Refuse units that do not fit the statement, and another unit than an example without them.

    Args:
        units: who owns what, or None.
        mechanism: the Mechanism, or the name of the strategy that is to be planned.
        unit, adjacency: as given to make_private.
        promised: whether `participation` is given.
        mode: grad_sample_mode.

    Raises:
        MismatchError, UnsupportedError: naming the remedy.
    """
    if unit is not None and (not isinstance(unit, str) or not unit.strip()):
        raise ValueError(f"unit={unit!r} must be a word that names what is protected, such as 'user'.")
    if units is not None and unit is None and not isinstance(mechanism, Mechanism):
        logger.warning(
            "unit_ids are given and unit= is not, so the statement names what is protected as 'one unit':"
            " say what it is, unit='user' for instance."
        )
    if isinstance(mechanism, Mechanism):
        unit = mechanism.unit
        adjacency = mechanism.adjacency
        promised = mechanism.sampling.formed_outside
    if units is None:
        if unit not in (None, "example") and not promised:
            raise MismatchError(
                f"unit={unit!r}, but unit_ids is missing: batches would be drawn and clipped by example. Give"
                " unit_ids, one label an example; or say what the loader's own batches keep to"
                " (participation=…, External sampling), where a row of a batch is a whole unit."
            )
        return
    if mode == "ghost":
        raise UnsupportedError(
            "grad_sample_mode='ghost' with unit_ids: ghost clipping scales each example by its own norm, and"
            " never has the gradient of a unit. Use 'rows'."
        )
    check_schema(unit or "unit", units=units, adjacency=adjacency or "zero_out")


def report_units(batches: Batches, units: Units, unit: str, dataset: Any, *, secret: bool) -> None:
    """Log who owns what, what can never be used, and copies of one example that different units own.

    Args:
        batches: those of the run.
        units: who owns what.
        unit: what is protected.
        dataset: the user's.
        secret: whether the guarantee rests on who is drawn; then what follows from that is not logged.
    """
    logger.info("unit %r: %s; gradients are clipped by %s", unit, units.describe(), unit)
    if batches.unreachable:
        how_many = "some examples"
        if not secret:  # the number would tell who is in which secret bin
            how_many = f"{batches.unreachable} of {units.examples} examples"
        logger.warning(
            "%s can be in no batch: their owners never take part in the same step, or their batch is left"
            " out. Give each example one owner, or leave such examples out of the data.",
            how_many,
        )
    if type(dataset) is TensorDataset and all(t.device.type == "cpu" for t in dataset.tensors):
        try:
            check_schema(unit, units=units, duplicates=find_duplicates(_arrays(dataset)))
        except MismatchError as error:
            logger.warning("%s", error)


class OrderWatch:
    """Refuses a batch that reaches the model with its rows in another order, where that can be seen.

    Which rows are clipped together is known by their place. A tensor that the model is called with is
    compared with every delivered one of its shape: the same rows in other places are refused. Rows that were
    changed on the way (normalised, augmented), and labels, cannot be followed.

    Args:
        module: the plain module.
        ledger: knows the batch in hand.
    """

    def __init__(self, module: nn.Module, ledger: ReleaseLedger, batch_first: bool) -> None:
        self._ledger = ledger
        self._dimension = 0 if batch_first else 1
        module.register_forward_pre_hook(self, with_kwargs=True)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Forward pre-hook.

        Raises:
            DesynchronizedError: see `check`.
        """
        if module.training and torch.is_grad_enabled():
            self.check([*args, *kwargs.values()])

    def check(self, tensors: Any) -> None:
        """Compare what a computation is fed with to the batch in hand, if it is one of units.

        Args:
            tensors: a tensor, or lists, tuples and dicts of them: inputs and targets.

        Raises:
            DesynchronizedError: if rows were moved from one unit to another.
        """
        delivery = self._ledger.in_hand
        if delivery is None or delivery.units is None:
            return
        items = torch.from_numpy(delivery.units.items)
        for given in tensors_in(tensors):
            for own in tensors_in(delivery.content):
                if own.shape == given.shape and moved(own, given, items, self._dimension):
                    raise DesynchronizedError(
                        f"the rows of batch {delivery.step} reached the model in another order: which rows"
                        " are clipped together is known by their place, so units would be mixed. Feed the"
                        " batch as it was delivered."
                    )

    def __reduce__(self) -> Any:
        return idle, ()


def moved(own: Tensor, given: Tensor, items: Tensor, dimension: int = 0) -> bool:
    """Whether `given` holds the rows of `own`, some of them in the place of another item.

    Args:
        own, given: of one shape.
        items: which item each row belongs to.
        dimension: where the rows are.
    """
    if own is given or own.dim() <= dimension or own.shape[dimension] != len(items):
        return False
    given = given.detach().to(own.device)
    if given.dtype != own.dtype or torch.equal(own, given):
        return False
    # sums tell at once that other values, not another order, came: as a rule
    sums, found = (_sums(t.movedim(dimension, 0)) for t in (own, given))
    if not torch.allclose(sums.sort().values, found.sort().values, equal_nan=True):
        return False
    rows, others = (t.movedim(dimension, 0).reshape(len(items), -1) for t in (own, given))
    _, names = torch.unique(torch.cat([rows, others]), dim=0, return_inverse=True)
    before, after = names[: len(items)].cpu(), names[len(items) :].cpu()
    if not torch.equal(before.sort().values, after.sort().values):
        return False
    size = int(names.max()) + 1
    return not torch.equal((items * size + before).sort().values, (items * size + after).sort().values)


def _sums(rows: Tensor) -> Tensor:
    return rows.double().reshape(len(rows), -1).sum(1)  # labels have one dimension


def _arrays(dataset: TensorDataset) -> list[Any]:
    """The tensors as bytes; NumPy does not have all of torch's types."""
    kept = [t.detach().reshape(len(t), t[0].numel()).contiguous() for t in dataset.tensors]
    return [t.view(torch.uint8).numpy() for t in kept]
