"""Sums that Spark adds up itself, of the same integers that NumPy makes of each record."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, FloatType, IntegralType, StringType, StructType
from scipy import sparse

from anechoic import streaming
from anechoic.streaming import Accumulator
from anechoic.streaming.layout import StreamLayout
from anechoic.streaming.sent_sums import SentSums, written
from anechoic.units.ids import DIGEST

#: Groups of one step that the driver is sent, at most: categories of a record times each other.
_GROUPS = 10**4
#: Numbers so near to their bounds that clipping to a length may touch them, as a share of the bound: a
#: thousand times what it can touch.
_EDGE = 2.0**-20


@dataclass(frozen=True)
class Words:
    """What Spark adds up for a statistic, by groups of records.

    Numbers well within their bounds become integers in Spark, by one product that is cut to a whole number.
    Those at the bounds or beyond are a group for each value, clipped; the driver makes the integers of it.

    Attributes:
        statistic: of each group.
        unit: that stands for 1.
        number: what is added up of a record, clipped; NULL for nothing. None for a count.
        centre: of the bounds, from which it is counted.
        within: a number is well within its bounds up to there.
        beyond: whether it was clipped, and how that is called.
        key: the group that a record is in, NULL for none; None without groups.
        groups: all groups.
        unknown: the remark on a record of no group.
    """

    statistic: Any
    unit: int
    number: Column | None = None
    centre: float = 0.0
    within: float = 0.0
    beyond: tuple[Column, str] | None = None
    key: Column | None = None
    groups: tuple[str, ...] = ()
    unknown: str = ""

    @property
    def dimension(self) -> int:
        """Numbers of the statistic in all groups."""
        return int(self.statistic.dimension * max(1, len(self.groups)))

    def stages(self, place: int) -> list[dict[str, Column]]:
        """Columns that the frame needs, one set after another: each is computed once for a record."""
        first = {} if self.key is None else {f"anechoic key {place}": self.key}
        if self.number is None:
            return [first, {}, {}]
        given, moved = F.col(f"anechoic number {place}"), F.col(f"anechoic moved {place}")
        whole = (moved * F.lit(float(self.unit))).cast("bigint")
        near = F.abs(moved) <= F.lit(self.within)
        last = {
            f"anechoic whole {place}": F.when(near, whole),
            f"anechoic edge {place}": F.when(~near, given),
        }
        first[f"anechoic number {place}"] = self.number
        return [first, {f"anechoic moved {place}": given - F.lit(self.centre)}, last]

    def wanted(self, place: int) -> list[Column]:
        """What to ask of each group, for `read`."""
        if self.beyond is None:
            return []
        whole, edge = F.col(f"anechoic whole {place}"), F.col(f"anechoic edge {place}")
        return [F.sum(whole), F.count(whole), F.count(F.when(edge.isNotNull() & self.beyond[0], 1))]

    def read(self, count: int, edge: float | None, given: list[Any]) -> tuple[Any, dict[str, int]]:
        """Sums of a group and remarks on it, of what Spark gave."""
        if self.beyond is None:
            return np.array([count * self.unit], np.int64), {}
        total, inside, clipped = given
        if edge is not None:
            one = self.statistic.total(self.statistic.read(np.array([edge])), None, self.unit)
            return one * count, {self.beyond[1]: clipped}
        # the number itself is the first entry; others are the same for all records
        others = self.statistic.total(self.statistic.read(np.array([self.centre])), None, self.unit)[1:]
        return np.array([total or 0, *(others * inside)], np.int64), {"not finite": count - inside}


@singledispatch
def words(statistic: Any, unit: int, schema: StructType) -> Words | None:
    """Of a statistic; None for one that is left to Python."""
    return None


@words.register
def _(statistic: streaming.Count, unit: int, schema: StructType) -> Words | None:
    return Words(statistic, unit)


@words.register
def _(statistic: streaming.Histogram, unit: int, schema: StructType) -> Words | None:
    counts = Words(streaming.Count(), unit)
    return _grouped(counts, statistic.categories, statistic.column, schema, "unknown category")


@words.register
def _(statistic: streaming.Grouped, unit: int, schema: StructType) -> Words | None:
    said, inner = statistic.describe(), words(statistic.of_each, unit, schema)
    return _grouped(inner, said["groups"], said["column"], schema, "unknown group")


@words.register
def _(statistic: streaming.Mean, unit: int, schema: StructType) -> Words | None:
    said = statistic.describe()
    return _number(Words(statistic, unit), said["low"], said["high"], "clipped to the bounds", schema)


@words.register
def _(statistic: streaming.Sum, unit: int, schema: StructType) -> Words | None:
    if statistic.dimension > 1:
        return None
    bound = statistic.bound
    return _number(Words(statistic, unit), -bound, bound, "clipped to the bound", schema)


def _grouped(
    inner: Words | None, groups: list[Any], column: str | None, schema: StructType, unknown: str
) -> Words | None:
    if inner is None or inner.key is not None or not all(type(group) is str for group in groups):
        return None
    if schema[str(column)].dataType != StringType():  # in another collation texts are equal that differ
        return None
    given = quoted(str(column))
    key = F.when(given.isin(*groups), given)
    return replace(inner, key=key, groups=tuple(groups), unknown=unknown)


def _number(said: Words, low: float, high: float, remark: str, schema: StructType) -> Words | None:
    if not isinstance(schema[said.statistic.column].dataType, IntegralType | FloatType | DoubleType):
        return None
    given = quoted(said.statistic.column).cast("double")
    finite = F.abs(given) < F.lit(math.inf)  # NaN is above infinity
    clipped = F.least(F.greatest(given, F.lit(low)), F.lit(high))  # of NULL they make a number
    return replace(
        said,
        number=F.when(finite, clipped),
        centre=low / 2 + high / 2,
        within=(high - low) / 2 * (1 - _EDGE),
        beyond=((given < F.lit(low)) | (given > F.lit(high)), remark),
    )


def quoted(name: str) -> Column:
    """A column by its name, dots and all."""
    return F.col("`" + name.replace("`", "``") + "`")


@dataclass(frozen=True)
class Spoken:
    """All statistics of a stream in words of Spark."""

    layout: StreamLayout
    said: dict[str, Words]

    def sums(self, frame: DataFrame, step: Column, time: Column) -> tuple[list[Accumulator], list[int]]:
        """One accumulator for each step, and times of which one is the latest.

        Nothing in the columns may change from batch to batch, or Spark compiles the query for each again.

        Args:
            frame: of records.
            step: of a record, BIGINT; NULL or below 0 for none.
            time: of a record, BIGINT.
        """
        stages = [one.stages(place) for place, one in enumerate(self.said.values())]
        for some in zip(*stages, strict=True):
            frame = frame.withColumns({name: column for one in some for name, column in one.items()})
        keys = [name for name in frame.columns if name.startswith(("anechoic key ", "anechoic edge "))]
        wanted = [column for place, one in enumerate(self.said.values()) for column in one.wanted(place)]
        groups = frame.groupBy(step, *map(quoted, keys))
        found: dict[int, _Step] = {}
        times, without = [], 0
        for at, *row in groups.agg(F.max(time), F.count("*"), *wanted).collect():
            held = dict(zip(keys, row, strict=False))
            latest, count, *given = row[len(keys) :]
            times += [] if latest is None else [latest]
            if at is None or at < 0:
                without += count
            else:
                made = found.setdefault(
                    at, _Step(np.zeros(self.layout.shared.dimension, np.int64), Counter())
                )
                self._add(made, count, held, given)
        for made in [found[at] for at in sorted(found)][:1]:
            made.remarks["without a step"] += without
        return [self._accumulator(at, found[at]) for at in sorted(found)], times

    def _add(self, made: _Step, count: int, held: dict[str, Any], given: list[Any]) -> None:
        """A group of records."""
        made.count += count
        begin = 0
        for place, (name, one) in enumerate(self.said.items()):
            size = 0 if one.beyond is None else 3
            own, given = given[:size], given[size:]
            sums, remarks = one.read(count, held.get(f"anechoic edge {place}"), own)
            made.remarks.update({f"{name}: {why}": number for why, number in remarks.items()})
            group = held.get(f"anechoic key {place}")
            if one.key is not None and group is None:
                made.remarks[f"{name}: {one.unknown}"] += count
            else:
                first = begin + (one.groups.index(group) * len(sums) if group is not None else 0)
                made.sums[first : first + len(sums)] += sums
            begin += one.dimension

    def _accumulator(self, at: int, made: _Step) -> Accumulator:
        units: NDArray[np.bytes_] = np.zeros(0, f"S{DIGEST}")
        rows = sparse.csr_array((0, len(made.sums)), dtype=np.int64)
        sent = SentSums(at, made.count, dict(+made.remarks), None, made.sums, units, rows)
        return Accumulator.from_bytes(written(sent, self.layout), self.layout)


@dataclass
class _Step:
    """What the records of a step add."""

    sums: NDArray[np.int64]
    remarks: Counter[str]
    count: int = 0


def spoken(layout: Any, schema: StructType) -> Spoken | None:
    """The statistics of a stream, if Spark has words for all of them; None where records go to Python."""
    shared = getattr(layout, "shared", None)  # an open histogram has none
    if layout.secret is not None or shared is None:
        return None
    said = {name: words(one, shared.units[name], schema) for name, one in shared.statistics.items()}
    known = {name: one for name, one in said.items() if one is not None}
    sizes = [(len(one.groups) + 1) * (1 if one.number is None else 3) for one in known.values()]
    return Spoken(layout, known) if len(known) == len(said) and math.prod(sizes) <= _GROUPS else None
