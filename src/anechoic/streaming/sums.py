"""Counts, sums, means and histograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array, positive_float, positive_int
from anechoic.streaming.columns import Integers, check_kind, coded, entries
from anechoic.streaming.distinct_counter import DistinctCounter
from anechoic.streaming.release import Estimate
from anechoic.streaming.statistic import (
    Records,
    Rows,
    Statistic,
    checked_interval,
    counted,
    linear_estimate,
    masks_and,
    numbers,
    one_hot,
    row_norms,
)


class Count(Statistic):
    """A count of records; or of units that had a record in the last steps, each counted once.

    With `within` a stream tells units by `unit_ids`, and its guarantee is for one unit with all its records:
    `visits` bounds how often it comes, and the noise grows like sqrt(2 visits), see
    docs/proofs/streams.md#units-of-the-last-steps. It is alone in its stream, without `participation`.

    Args:
        column: of the batch; None where a batch is one array.
        within: steps, the open one among them, in which a unit with a record is counted; None for records.
        visits: how often a unit that had no record for so many steps may come again, the first time
            included. What it brings after that is left out.

    Raises:
        ValueError: for an argument out of range, or visits without `within`.
    """

    name = "count"
    dimension = 1
    wants_numbers = None

    def __init__(self, column: str | None = None, *, within: int | None = None, visits: int = 1) -> None:
        if within is None and visits != 1:
            raise ValueError(f"visits={visits} without within: give the number of steps that a visit lasts.")
        self.column = column
        self.distinct_counter = None if within is None else DistinctCounter(within, visits)
        # what a unit adds in all its visits, as if at once
        self.bound = 1.0 if self.distinct_counter is None else self.distinct_counter.norm

    def read(self, batch: Any) -> Records:
        if isinstance(batch, int | np.integer) and not isinstance(batch, bool):
            return Records(positive_int("batch", int(batch), minimum=0), None)
        try:
            if isinstance(batch, str | bytes):  # one record, or the letters of one?
                raise TypeError
            if not isinstance(batch, Mapping):
                return Records(len(batch), None)
            (count,) = {len(column) for column in batch.values() if not isinstance(column, str | bytes)}
            return Records(count, None)
        except TypeError as error:
            raise ValueError(f"batch, a {type(batch).__name__}, must be records, or their number.") from error
        except ValueError:
            raise ValueError(
                "batch is a mapping whose columns have no common length: give one entry a record in each."
            ) from None

    def total(self, records: Records, kept: NDArray[np.bool_] | None, unit: int) -> Integers:
        count = records.count if kept is None else counted(kept)
        return np.array([count * unit], np.int64)

    def each(self, records: Records, unit: int) -> Any:
        return one_hot(np.zeros(records.count, np.int64), None, 1, unit)

    def decode(self, totals: Array, deviation: float, z: float) -> Estimate:
        return linear_estimate(totals[..., 0], deviation, z, totals)

    decode_each = decode

    def describe(self) -> dict[str, Any]:
        rule = self.distinct_counter
        more = {} if rule is None else {"within": rule.within, "visits": rule.visits}
        return {"kind": "count", "column": self.column, **more}


class Sum(Rows):
    """Sum of vectors, each clipped to 2-norm `bound`.

    Args:
        bound: > 0.
        dimension: entries of a vector; 1 for numbers.
        column: of the batch.

    Raises:
        ValueError: for an argument out of range.
    """

    name = "sum"

    def __init__(self, bound: float, dimension: int = 1, column: str | None = None) -> None:
        remedy = "Without a bound one record could change the sum by any amount."
        self.bound = positive_float("bound", bound, remedy=remedy)
        self.dimension = positive_int("dimension", dimension)
        self.column = column

    def read(self, batch: Any) -> Records:
        values = numbers(batch, self.dimension)
        usable = np.asarray(np.isfinite(values).all(axis=1))
        with np.errstate(over="ignore"):  # a length beyond the range is over
            beyond = row_norms(values[usable]) > self.bound
        remarks = {"not finite": counted(~usable), "clipped to the bound": counted(beyond)}
        return Records(len(values), values, usable, remarks)

    def rows(self, values: Array) -> Array:
        return values

    def decode(self, totals: Array, deviation: float, z: float) -> Estimate:
        return linear_estimate(totals[0] if self.dimension == 1 else totals, deviation, z, totals)

    def describe(self) -> dict[str, Any]:
        return {"kind": "sum", "bound": self.bound, "dimension": self.dimension, "column": self.column}


class Mean(Rows):
    """Mean of numbers clipped to [low, high]: a noisy sum over a noisy count, in one release.

    The sum is of x - centre, and the count has weight (high - low) / 2, with which the worst mean has the
    least error. The interval is Fieller's: all m with |S - m N| within z standard deviations of its noise,
    which covers the mean of the clipped records with the nominal probability whatever their number.

    Args:
        low, high: bounds of one record.
        column: of the batch.

    Raises:
        ValueError: unless low < high, both finite.
    """

    name = "mean"
    dimension = 2
    spread = float(np.sqrt(2.0))

    def __init__(self, low: float, high: float, column: str | None = None) -> None:
        self._low, self._high = checked_interval("(low, high)", low, high)
        self._centre, self._half = self._low / 2 + self._high / 2, (self._high - self._low) / 2
        self.bound = float(np.sqrt(2)) * self._half
        self.column = column

    def read(self, batch: Any) -> Records:
        values = numbers(batch)
        usable = np.isfinite(values)
        beyond = (values[usable] < self._low) | (values[usable] > self._high)
        return Records(
            len(values),
            values,
            usable,
            {"not finite": counted(~usable), "clipped to the bounds": counted(beyond)},
        )

    def rows(self, values: Array) -> Array:
        centred = np.clip(values, self._low, self._high) - self._centre
        return np.stack([centred, np.full(len(centred), self._half)], axis=1)

    @np.errstate(all="ignore")  # where the count is not positive, what divides by it is not used
    def decode(self, totals: Array, deviation: float, z: float) -> Estimate:
        total, count = totals[..., 0], totals[..., 1] / self._half
        low, high = fieller(total, count, deviation, deviation / self._half, z)
        mean = np.clip(np.where(count > 0, total / count, 0.0), -self._half, self._half)
        error = np.where(count > 0, np.hypot(1.0, mean / self._half) * deviation / count, np.inf)
        low, high = np.maximum(low, -self._half), np.minimum(high, self._half)
        beyond = low > high  # all of the set lies beyond the bounds
        return Estimate(
            self._centre + mean,
            np.minimum(error, 2 * self._half),
            self._centre + np.where(beyond, mean, low),
            self._centre + np.where(beyond, mean, high),
            np.stack([total + self._centre * count, count], axis=-1),
        )

    decode_each = decode

    def describe(self) -> dict[str, Any]:
        return {"kind": "mean", "low": self._low, "high": self._high, "column": self.column}


def fieller(total: Array, count: Array, s: float, r: float, z: float) -> tuple[Array, Array]:
    """Return the smallest interval with all m for which (total - m count)^2 <= z^2 (s^2 + m^2 r^2).

    It is the whole line where the noisy count does not exceed z of its standard deviations.
    """
    a, b, c = count * count - (z * r) ** 2, total * count, total * total - (z * s) ** 2
    root = np.sqrt(np.maximum(b * b - a * c, 0.0))
    whole = (count <= 0) | (a <= 0)
    return np.where(whole, -np.inf, (b - root) / a), np.where(whole, np.inf, (b + root) / a)


class Histogram(Statistic):
    """Counts of records by category.

    Args:
        categories: distinct values, given in advance: taken from the data they would show who is in it,
            which no program can see. Records of others are left out.
        column: of the batch.

    Raises:
        ValueError: without categories, or for equal ones.
    """

    name = "histogram"
    bound = 1.0
    wants_numbers = False

    def __init__(self, categories: Sequence[Any], column: str | None = None) -> None:
        self.categories = entries(categories, "categories")
        if not self.categories:
            raise ValueError("categories=[] must name at least one category.")
        try:
            self._places = {c: i for i, c in enumerate(self.categories)}
        except TypeError:
            raise ValueError(
                f"categories={self.categories!r:.80} must be plain values: a list or array equals no record."
            ) from None
        if len(self._places) < len(self.categories):
            raise ValueError(f"categories={self.categories!r:.80} must be distinct: some are repeated.")
        self.dimension, self.column = len(self.categories), column

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the categories as text; with quotation marks where two would be the same, as 7 and "7"."""
        plain = tuple(map(str, self.categories))
        return plain if len(set(plain)) == len(plain) else tuple(map(repr, self.categories))

    def read(self, batch: Any) -> Records:
        words = {isinstance(category, str) for category in self.categories}
        if len(words) == 1:  # numbers are no words, and would all be unknown
            check_kind(batch, "what is counted by categories", "U" if True in words else "ifbMS")
        values, of = coded(batch) or (entries(batch, "batch"), slice(None))
        places = np.array([self._place_of(value) for value in values], np.int64)[of]
        usable = places >= 0
        return Records(len(places), places, usable, {"unknown category": counted(~usable)})

    def _place_of(self, entry: Any) -> int:
        """Return the place of one record's category, whatever the others are; -1 for none."""
        try:
            return self._places.get(entry, -1)
        except Exception:  # no hash, or one that fails in any way
            return -1

    def total(self, records: Records, kept: NDArray[np.bool_] | None, unit: int) -> Integers:
        chosen = masks_and(records.usable, kept)
        return np.bincount(records.values[chosen], minlength=self.dimension).astype(np.int64) * unit

    def each(self, records: Records, unit: int) -> Any:
        return one_hot(records.values, records.usable, self.dimension, unit)

    def decode(self, totals: Array, deviation: float, z: float) -> Estimate:
        return linear_estimate(totals, deviation, z, totals)

    def describe(self) -> dict[str, Any]:
        return {"kind": "histogram", "categories": self.categories, "column": self.column}
