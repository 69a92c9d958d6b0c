"""Batches on their way in: read by all statistics, and held to the contribution bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from logging import getLogger
from typing import Any

import numpy as np

from anechoic.streaming.joint_release import SharedRelease
from anechoic.streaming.ledger import Ledger
from anechoic.streaming.statistic import Integers, Records
from anechoic.streaming.stream_state import plain_time


@dataclass(frozen=True, eq=False)
class Addition:
    """A batch that was read: by statistic, how many records, and the digests of units; None for no id."""

    records: Mapping[str, Records]
    count: int
    units: list[bytes | None] | None
    partial: Partial | None = None


@dataclass(frozen=True, eq=False)
class Partial:
    """What records add to a step, added up: for `update` and `steps` in the place of a batch.

    Exact integers: `a + b` is what the records of both add. They are as private as the records.

    Attributes:
        count: of records.
        sums: shape (dimension,).
        remarks: records that were left out or changed, by reason.
    """

    shared: SharedRelease
    count: int
    sums: Integers
    remarks: Counter[str]

    def __add__(self, other: Partial) -> Partial:
        count = self.count + other.count
        if self.shared is not other.shared or self.shared.reach(count) >= 2**62:
            raise ValueError(
                "partial sums of two streams, or of more records than 64 bits hold, have no sum."
            )
        return Partial(self.shared, count, self.sums + other.sums, self.remarks + other.remarks)


@dataclass(frozen=True, eq=False)
class Step:
    """One of several steps that are kept in one commit; None where nothing was given."""

    batch: Any
    unit_ids: Any
    time: str | float | None
    name: str | None


def steps_of(
    batches: Iterable[Any],
    unit_ids: Iterable[Any] | None,
    times: Iterable[str | float | None] | None,
    batch_ids: Iterable[str] | None,
) -> list[Step]:
    """A step for each batch, with what belongs to it.

    Raises:
        ValueError: if the numbers differ, or for a batch id or a time that is none.
    """
    listed = list(batches)
    nothing = [None] * len(listed)
    units, whens = list(nothing if unit_ids is None else unit_ids), list(nothing if times is None else times)
    names = nothing if batch_ids is None else [checked_id(name) for name in batch_ids]
    if not len(listed) == len(units) == len(whens) == len(names):
        raise ValueError(
            f"{len(listed)} batches, {len(units)} unit_ids, {len(whens)} times and {len(names)} batch_ids:"
            " one of each belongs to a step."
        )
    return list(map(Step, listed, units, map(plain_time, whens), names))


class Intake:
    """What batches add to a step.

    Args:
        shared: the statistics.
        ledger: of units, or None where every record is a unit of its own.
    """

    def __init__(self, shared: SharedRelease, ledger: Ledger | None) -> None:
        self._shared, self._ledger = shared, ledger

    @np.errstate(all="ignore")  # a caller's setting must not make contents an error
    def read(self, batch: Any, unit_ids: Any) -> Addition:
        """The batch, checked as far as that can be done before anything changes.

        Raises:
            ValueError: for an array of the wrong shape, or unit ids that are missing or not wanted.
        """
        if isinstance(batch, Partial):
            if batch.shared is not self._shared or self._ledger is not None or unit_ids is not None:
                raise ValueError("partial sums count in the stream that made them alone, and hold no units.")
            return Addition({}, batch.count, None, batch)
        records, count = self._shared.read(batch)
        for name, read in records.items():
            if (
                count > 1
                and read.usable is not None
                and not read.usable.any()
                and "not finite" in read.remarks
            ):
                getLogger(__name__).warning("%s: no record of a batch is a number: all are left out.", name)
        if self._ledger is None:
            if unit_ids is not None:
                raise ValueError(
                    "unit_ids were given, but every record is a unit of its own here. To protect units with"
                    " several records, or to leave out repeated ones, give the stream participation=Single()"
                    " or MinSep(…)."
                )
            return Addition(records, count, None)
        if unit_ids is None:
            raise ValueError(
                f"unit_ids=None, but each unit is held to {self._ledger.participation!r}: give one id a"
                " record."
            )
        units = self._ledger.digests(unit_ids)
        if len(units) != count:
            raise ValueError(f"{len(units)} unit_ids for {count} records: give one id a record.")
        return Addition(records, count, units)

    def partial(self, batch: Any) -> Partial:
        """A batch, added up; None for no records.

        Raises:
            ValueError: where units are told by ids, or records are encoded by what was released.
        """
        if self._ledger is not None or self._shared.adaptive:
            raise ValueError(
                "partial sums need records that are units themselves, and statistics that learn nothing."
            )
        if batch is None:
            return Partial(self._shared, 0, np.zeros(self._shared.dimension, np.int64), Counter())
        addition = self.read(batch, None)
        if self._shared.reach(addition.count) >= 2**62:
            raise ValueError(f"{addition.count} records are more than 64 bits hold: give some at a time.")
        return Partial(self._shared, addition.count, *self.sums(addition, 0))

    @np.errstate(all="ignore")
    def sums(self, addition: Addition, step: int) -> tuple[Integers, Counter[str]]:
        """What it adds, and what was left out or changed by reason. Units are charged with the step."""
        if addition.partial is not None:
            return addition.partial.sums, addition.partial.remarks
        kept = None
        remarks: Counter[str] = Counter()
        if self._ledger is not None and addition.units is not None:
            kept, refused = self._ledger.admit(addition.units, step)
            remarks.update(refused)
        for name, read in addition.records.items():
            remarks.update({f"{name}: {why}": count for why, count in read.remarks.items() if count})
        return self._shared.sums(addition.records, kept), remarks


def checked_id(batch_id: Any) -> str:
    """`batch_id` if it is a text that is not empty.

    Raises:
        ValueError: otherwise.
    """
    if not isinstance(batch_id, str) or not batch_id:
        raise ValueError(f"batch_id={batch_id!r} must be a text that names the batch.")
    return batch_id
