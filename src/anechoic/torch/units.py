"""What make_private checks where units own several examples, and the order of a delivered batch's rows."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from anechoic.batches import UnitBatches
from anechoic.duplicates import check_schema, find_duplicates
from anechoic.errors import DesynchronizedError, MismatchError, UnsupportedError
from anechoic.mechanism import Mechanism
from anechoic.sampling import External
from anechoic.torch.ledger import ReleaseLedger
from anechoic.units import Units

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
    if isinstance(mechanism, Mechanism):
        unit = mechanism.unit
        adjacency = mechanism.adjacency
        promised = isinstance(mechanism.sampling, External)
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
            " never has the gradient of a unit. Use 'hooks' or 'functorch'."
        )
    check_schema(unit or "unit", units=units, adjacency=adjacency or "zero_out")


def report_units(batches: UnitBatches, unit: str, dataset: Any) -> None:
    """Log who owns what, what can never be used, and copies of one example that different units own."""
    logger.info("unit %r: %s; gradients are clipped by %s", unit, batches.units.describe(), unit)
    if batches.unreachable:
        logger.warning(
            "%d of %d examples can be in no batch: their owners never take part in the same step, or their"
            " batch is left out.",
            batches.unreachable,
            batches.units.examples,
        )
    if type(dataset) is TensorDataset and all(t.device.type == "cpu" for t in dataset.tensors):
        try:
            check_schema(unit, units=batches.units, duplicates=find_duplicates(_arrays(dataset)))
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
            DesynchronizedError: if rows were moved from one unit to another.
        """
        delivery = self._ledger.in_hand
        if delivery is None or delivery.units is None or not module.training or not torch.is_grad_enabled():
            return
        items = torch.from_numpy(delivery.units.items)
        for given in _tensors([*args, *kwargs.values()]):
            for own in _tensors(delivery.content):
                if own.shape == given.shape and self._moved(own, given, items):
                    raise DesynchronizedError(
                        f"the rows of batch {delivery.step} reached the model in another order: which rows"
                        " are clipped together is known by their place, so units would be mixed. Feed the"
                        " batch as it was delivered."
                    )

    def _moved(self, own: Tensor, given: Tensor, items: Tensor) -> bool:
        if own is given or own.dim() <= self._dimension or own.shape[self._dimension] != len(items):
            return False
        given = given.detach().to(own.device)
        if given.dtype != own.dtype or torch.equal(own, given):
            return False
        # sums tell at once that other values, not another order, came: as a rule
        sums, found = (t.double().movedim(self._dimension, 0).flatten(1).sum(1) for t in (own, given))
        if not torch.allclose(sums.sort().values, found.sort().values, equal_nan=True):
            return False
        rows, others = (t.movedim(self._dimension, 0).reshape(len(items), -1) for t in (own, given))
        _, names = torch.unique(torch.cat([rows, others]), dim=0, return_inverse=True)
        before, after = names[: len(items)].cpu(), names[len(items) :].cpu()
        if not torch.equal(before.sort().values, after.sort().values):
            return False
        size = int(names.max()) + 1
        return not torch.equal((items * size + before).sort().values, (items * size + after).sort().values)

    def __reduce__(self) -> Any:
        return _idle, ()


class _Idle:
    """The hook of a copy of the model, which is another model."""

    def __call__(self, *_: Any) -> None:
        pass


def _idle() -> _Idle:
    return _Idle()


def _arrays(dataset: TensorDataset) -> list[Any]:
    """The tensors as bytes; NumPy does not have all of torch's types."""
    kept = [t.detach().reshape(len(t), t[0].numel()).contiguous() for t in dataset.tensors]
    return [t.view(torch.uint8).numpy() for t in kept]


def _tensors(content: Any) -> Iterator[Tensor]:
    if isinstance(content, Tensor):
        yield content
    elif isinstance(content, Mapping):
        for value in content.values():
            yield from _tensors(value)
    elif isinstance(content, (list, tuple)):
        for value in content:
            yield from _tensors(value)
