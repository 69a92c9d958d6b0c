"""Any statistic for each of several groups, at the cost of one: a record is in one group at most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from anechoic._validate import Array
from anechoic.streaming.columns import Integers, column_of
from anechoic.streaming.release import Estimate
from anechoic.streaming.statistic import Records, Statistic, column_sums, masks_and
from anechoic.streaming.sums import Histogram

#: Up to so many groups are added up one by one; of more, what each record adds, if so many numbers hold it.
_FEW, _HELD = 16, 2**24


class Grouped(Statistic):
    """A statistic of the records of each group; the value has the groups as its first axis.

    A record adds to the sums of its own group what it would add to the statistic alone, and nothing to the
    others: its vector is as long, whatever the number of groups, and so is the noise in each of them.

    Args:
        statistic: of one group.
        column: of the batch, that says which group a record is in.
        groups: distinct values, given in advance, as the categories of a histogram. Records of others are
            left out.

    Raises:
        ValueError: for a statistic that counts who is there, or is grouped already; or without a column.
    """

    def __init__(self, statistic: Statistic, column: str, groups: Sequence[Any]) -> None:
        fits = isinstance(statistic, Statistic) and statistic.distinct_counter is None
        if not fits or isinstance(statistic, Grouped):
            raise ValueError(
                f"statistic={statistic!r:.60} cannot be taken by groups: give a Statistic that counts nobody"
                " within steps, and one column of groups."
            )
        if not isinstance(column, str):
            raise ValueError(f"column={column!r:.60} must name the column of groups.")
        self._one, self._by = statistic, Histogram(groups, column)
        self.quantum, self.spread, self.bound = statistic.quantum, statistic.spread, statistic.bound
        self.dimension = self._by.dimension * statistic.dimension
        zero = statistic.decode(np.zeros(statistic.dimension), 1.0, 1.0).value
        self._inner = statistic.labels or (("",) if zero.size == 1 else tuple(map(str, range(zero.size))))

    @property
    def contrasts(self) -> int:
        return self._by.dimension * self._one.contrasts

    @property
    def reads(self) -> Mapping[str, bool | None]:
        return {**self._one.reads, str(self._by.column): False}

    @property
    def labels(self) -> tuple[str, ...]:
        """Return groups, each with the labels of the statistic."""
        return tuple(
            f"{group}: {label}" if label else group for group in self._by.labels for label in self._inner
        )

    def read(self, batch: Any) -> Records:
        groups = self._by.read(column_of(batch, "groups", self._by.column))
        records = self._one.read(column_of(batch, "groups", self._one.column))
        if groups.count != records.count:
            raise ValueError(f"{groups.count} groups for {records.count} records: give one a record.")
        unknown = {"unknown group": groups.remarks["unknown category"]}
        return Records(records.count, (records, groups.values), groups.usable, {**records.remarks, **unknown})

    def total(self, records: Records, kept: NDArray[np.bool_] | None, unit: int) -> Integers:
        own, places = records.values
        if self._by.dimension > _FEW and records.count * self._one.dimension <= _HELD:
            rows = self.each(records, unit)
            return column_sums(rows if kept is None else rows[kept])
        return np.concatenate(
            [self._one.total(own, masks_and(kept, places == g), unit) for g in range(self._by.dimension)]
        )

    def each(self, records: Records, unit: int) -> Any:
        own, places = records.values
        rows = self._one.each(own, unit)
        starts = np.repeat(places, np.diff(rows.indptr)) * self._one.dimension
        held = starts >= 0  # records of unknown groups add nothing
        counts = np.where(places >= 0, np.diff(rows.indptr), 0)
        ends = np.concatenate([[0], np.cumsum(counts)])
        entries = rows.data[held], (rows.indices + starts)[held], ends
        return sparse.csr_array(entries, shape=(records.count, self.dimension))

    @property
    def encoding(self) -> bytes:
        return self._one.encoding

    def decode(self, totals: Array, deviation: float, z: float) -> Estimate:
        found = self._one.decode_each(totals.reshape(self._by.dimension, -1), deviation, z)
        return replace(found, raw=found.raw.ravel())

    def describe(self) -> dict[str, Any]:
        groups, column = self._by.categories, self._by.column
        return {"kind": "by group", "groups": groups, "column": column, "of": self._one.describe()}
