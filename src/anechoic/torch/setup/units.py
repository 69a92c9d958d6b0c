"""Checks of make_private where units own several examples."""

from __future__ import annotations

import logging
from typing import Any

from torch.utils.data import TensorDataset

from anechoic.batches.base import Batches
from anechoic.errors import MismatchError, UnsupportedError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.torch.setup.arguments import Setup
from anechoic.torch.structure import bits
from anechoic.units.duplicates import check_schema, find_duplicates
from anechoic.units.ownership import Units

logger = logging.getLogger("anechoic")


def check_units(setup: Setup) -> None:
    """Refuse units that do not fit the statement, and another unit than an example without them.

    Raises:
        MismatchError, UnsupportedError: naming the remedy.
    """
    units, mechanism, unit, adjacency = setup.units, setup.mechanism, setup.unit, setup.adjacency
    promised = setup.participation is not None
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
    if setup.grad_sample_mode == "ghost":
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
        # as bytes: NumPy does not have all of torch's types
        arrays = [bits(t.detach()).reshape(len(t), -1).numpy() for t in dataset.tensors]
        try:
            check_schema(unit, units=units, duplicates=find_duplicates(arrays))
        except MismatchError as error:
            logger.warning("%s", error)
