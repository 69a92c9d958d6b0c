"""Batches on their way in: read by all statistics, and held to the contribution bounds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from logging import getLogger
from typing import Any

import numpy as np

from anechoic._validate import positive_int
from anechoic.streaming.accumulator import Accumulator, as_accumulator, sums_of
from anechoic.streaming.attendance import Attendance
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
    accumulator: Accumulator | None = None


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
        attendance: in its place, where units are counted while they are there; it gives digests.
    """

    def __init__(
        self, shared: SharedRelease, ledger: Ledger | None, attendance: Attendance | None = None
    ) -> None:
        self._shared, self._ledger, self._attendance = shared, ledger, attendance

    @np.errstate(all="ignore")  # a caller's setting must not make contents an error
    def read(self, batch: Any, unit_ids: Any) -> Addition:
        """The batch, checked as far as that can be done before anything changes.

        Raises:
            ValueError: for an array of the wrong shape, or unit ids that are missing or not wanted.
        """
        if (made := as_accumulator(batch)) is not None:
            if unit_ids is not None:
                raise ValueError("unit_ids were given with an accumulator, which holds units itself.")
            return Addition({}, made.count, None, made)
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

    @np.errstate(all="ignore")
    def sums(self, addition: Addition, step: int) -> tuple[dict[int, Integers], Counter[str]]:
        """What it adds to which step, and what was left out or changed by reason. Units are charged."""
        if self._attendance is None:
            sums, remarks = self._sums(addition, step)
            return {step: sums}, remarks
        made = addition.accumulator
        units, remarks = (addition.units, Counter()) if made is None else (made.by_unit()[0], made.remarks)
        changes, refused = self._attendance.admit(units or [], step)
        (one,) = self._shared.units.values()
        return {at: np.array([many * one], np.int64) for at, many in changes.items()}, remarks + refused

    def _sums(self, addition: Addition, step: int) -> tuple[Integers, Counter[str]]:
        if (made := addition.accumulator) is not None:
            if self._ledger is None:
                return made.sums, made.remarks
            units, rows = made.by_unit()
            if not units:
                return made.sums, made.remarks
            counts, refused = self._ledger.admit(list(units), step)
            return sums_of(rows, counts), made.remarks + Counter(refused)
        kept = None
        remarks: Counter[str] = Counter()
        if self._ledger is not None and addition.units is not None:
            kept, refused = self._ledger.admit(addition.units, step)
            remarks.update(refused)
        for name, read in addition.records.items():
            remarks.update({f"{name}: {why}": count for why, count in read.remarks.items() if count})
        return self._shared.sums(addition.records, kept), remarks


#: Batch ids that begin so are made by `checked_batch`.
_OWN = "\0"


def checked_id(batch_id: Any) -> str:
    """`batch_id` if it is a text that is not empty.

    Raises:
        ValueError: otherwise.
    """
    if not isinstance(batch_id, str) or not batch_id or batch_id.startswith(_OWN):
        raise ValueError(f"batch_id={batch_id!r} must be a text that names the batch, without a NUL first.")
    return batch_id


def checked_batch(batch_id: Any) -> tuple[str, str | None]:
    """The name of a batch, and of the query that it comes from, for an id that is text or (query, number).

    Raises:
        ValueError: for something else.
    """
    if not isinstance(batch_id, tuple):
        return checked_id(batch_id), None
    if len(batch_id) != 2 or not isinstance(batch_id[0], str) or not batch_id[0]:
        raise ValueError(
            f"batch_id={batch_id!r:.80} must be text, or (id of the query, number of the batch)."
        )
    number = positive_int("number of the batch", batch_id[1], minimum=0)
    return _OWN + json.dumps([batch_id[0], number]), batch_id[0]


def query_marks(query: str) -> tuple[str, str]:
    """Under which names it is kept that batches of some query came, and of this one."""
    return f"{_OWN}query", f"{_OWN}query {query}"
