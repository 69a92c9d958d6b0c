"""What a statistic is: vectors of bounded norm that are added up, and what their noisy sums say."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import ndtri

from anechoic._validate import Array
from anechoic.streaming.columns import Integers, entries
from anechoic.streaming.distinct_counter import DistinctCounter
from anechoic.streaming.release import PARTS, Estimate

#: What clipping leaves unused of a bound: float64 norms are off by far less.
_SPARE = 2.0**-30


@dataclass(frozen=True, eq=False)
class Records:
    """A batch as a statistic reads it.

    Attributes:
        count: number of records.
        values: whatever the statistic keeps of them, axis 0 the record.
        usable: shape (count,), or None for all: the others count as zero vectors.
        remarks: how many were changed or left out, by reason. Private: for the operator alone.
    """

    count: int
    values: Any
    usable: NDArray[np.bool_] | None = None
    remarks: Mapping[str, int] = field(default_factory=dict)


class Statistic(ABC):
    """Sums of encoded records, and what is read off them. Subclasses are final.

    One record adds a vector of norm at most `bound`, whatever it holds: encoding clips. Nothing here may
    depend on data that is not public: categories, edges, bounds and centres are given in advance, and taking
    them from the data voids the guarantee in a way that no program can see.

    Attributes:
        dimension: numbers released at each step.
        bound: largest 2-norm of the vector of one record.
        name: that it has in the releases of a stream of it alone.
        column: name of the column of a batch that it reads; None for the batch itself.
        quantum: what `unit` has to be a multiple of.
        wants_numbers: whether its column holds numbers; None where anything will do.
        distinct_counter: the rule by which units are counted while they are there; None for records.
        spread: how many times wider intervals must be to hold at all steps together, where they rest on
            combinations of the released numbers that differ from step to step: sqrt(k) for k numbers.
    """

    dimension: int
    bound: float
    name: str = "value"
    column: str | None = None
    quantum: int = 1
    wants_numbers: bool | None = True
    distinct_counter: DistinctCounter | None = None
    spread: float = 1.0

    @property
    def reads(self) -> Mapping[str, bool | None]:
        """Return the columns that it reads, and whether each holds numbers; none for the batch itself."""
        return {} if self.column is None else {self.column: self.wants_numbers}

    @property
    def contrasts(self) -> int:
        """Return how many combinations of the released numbers its intervals rest on."""
        return self.dimension

    @property
    def labels(self) -> tuple[str, ...]:
        """Return what the entries of its value are called, row after row; empty where only numbered."""
        return ()

    @abstractmethod
    def read(self, batch: Any) -> Records:
        """Read the batch: what cannot be used is marked, and counted under `remarks`.

        Raises:
            ValueError: if the batch as a whole has the wrong shape or kind.
        """

    @abstractmethod
    def total(self, records: Records, kept: NDArray[np.bool_] | None, unit: int) -> Integers:
        """Sum of the encoded records that are `kept` and usable, in multiples of 1 / unit.

        Every entry of every record is rounded towards zero, so that its norm cannot grow.
        """

    @abstractmethod
    def each(self, records: Records, unit: int) -> Any:
        """Return what each record adds, as `total` of it alone: sparse, int64, (count, dimension)."""

    @property
    def encoding(self) -> bytes:
        """Return what its vectors depend on besides `describe`, and may differ from machine to machine."""
        return b""

    @abstractmethod
    def decode(self, totals: Array, deviation: float, z: float) -> Estimate:
        """Return the estimate from noisy sums of encoded records.

        Args:
            totals: shape (dimension,), in the units of the statistic.
            deviation: standard deviation of the noise in each of them, independent between them.
            z: intervals are that many standard deviations of the noise to either side.
        """

    def decode_each(self, totals: Array, deviation: float, z: float) -> Estimate:
        """Return `decode` of each row of totals, shape (k, dimension); all of it has an axis of k first.

        Here row by row; counts and means do all rows at once.
        """
        found = [self.decode(row, deviation, z) for row in totals]
        return Estimate(**{part: np.stack([getattr(one, part) for one in found]) for part in (*PARTS, "raw")})

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return what identifies it, as plain JSON data: its kind, bounds, categories or edges."""


def checked_statistics(statistics: Statistic | Mapping[str, Statistic]) -> dict[str, Statistic]:
    """Return `statistics` by name, if they are some; one alone has a name of its own."""
    if isinstance(statistics, Statistic):
        return {statistics.name: statistics}
    if not isinstance(statistics, Mapping) or not statistics:
        raise ValueError(
            f"statistics={statistics!r:.80} must be a Statistic, such as Count(), or several by name."
        )
    for name, statistic in statistics.items():
        if not isinstance(name, str) or not isinstance(statistic, Statistic):
            raise ValueError(f"statistics[{name!r}]={statistic!r:.60} must be a Statistic, such as Count().")
    return dict(statistics)


class Rows(Statistic):
    """A statistic whose encoded records are the rows of a small dense array, clipped in 2-norm."""

    @abstractmethod
    def rows(self, values: Array) -> Array:
        """Return encoded records, shape (k, dimension), for values of k records that are usable."""

    def total(self, records: Records, kept: NDArray[np.bool_] | None, unit: int) -> Integers:
        chosen = masks_and(records.usable, kept)
        values = records.values if chosen is None else records.values[chosen]
        return np.asarray(integer_rows(self.rows(values), self.bound, unit).sum(axis=0, dtype=np.int64))

    def each(self, records: Records, unit: int) -> Any:
        usable = slice(None) if records.usable is None else records.usable
        found = np.zeros((records.count, self.dimension), np.int64)
        found[usable] = integer_rows(self.rows(records.values[usable]), self.bound, unit)
        return sparse.csr_array(found)


def integer_rows(rows: Array, bound: float, unit: int) -> Integers:
    """Return rows clipped to 2-norm `bound`, times unit, each entry rounded towards zero.

    Guarantee: no row of integers has 2-norm above unit * bound. Rows that are not finite become zero, and so
    does a row whose integers, looked at once more, are too long.
    """
    limit = bound * (1 - _SPARE)
    rows = np.array(rows, np.float64, order="F")  # column after column: what goes along short rows is slow
    rows[~np.isfinite(rows).all(axis=1)] = 0.0
    peaks = np.abs(rows).max(axis=1, initial=0.0)
    with np.errstate(over="ignore"):  # a length beyond the range is over
        over = (peaks > limit) | (row_norms(rows) > limit)
    scaled = rows
    if over.any():
        # over the largest entry first, so that no square leaves the range of float64
        shares = scaled[over] / peaks[over][:, None]
        scaled[over] = shares * (limit / row_norms(shares))[:, None]
    scaled = np.trunc(scaled * float(unit))
    scaled[~(row_norms(scaled) <= bound * unit)] = 0.0  # negated: not a number is too long
    return scaled.astype(np.int64)


def row_sums(rows: Array) -> Array:
    """Sum of each row, in an order that the number of columns alone decides; shape (k,).

    Sums and products of NumPy and BLAS take an order that depends on how many rows there are, and on how they
    lie in memory: then one record would change the last digits of another. Here halves are added, entry by
    entry.

    Args:
        rows: shape (k, m), m >= 1.
    """
    while rows.shape[1] > 1:
        half = rows.shape[1] // 2
        rows = np.concatenate([rows[:, :half] + rows[:, half : 2 * half], rows[:, 2 * half :]], axis=1)
    return rows[:, 0]


def row_norms(rows: Array) -> Array:
    """Return the 2-norm of each row, added up as by `row_sums`."""
    return np.asarray(np.sqrt(row_sums(np.square(rows))))


def counted(mask: NDArray[np.bool_]) -> int:
    """Count how often it holds."""
    return int(np.count_nonzero(mask))


def one_hot(places: Integers, kept: NDArray[np.bool_] | None, width: int, unit: int) -> Any:
    """Return `unit` at the place of each kept record: a sparse array of int64, shape (records, width)."""
    held = np.ones(len(places), bool) if kept is None else kept
    ends = np.concatenate([[0], np.cumsum(held)])
    values = np.full(int(ends[-1]), unit, np.int64)
    return sparse.csr_array((values, places[held], ends), shape=(len(places), width))


def column_sums(rows: Any) -> Integers:
    """Sum the rows of a sparse array of int64."""
    found = np.zeros(rows.shape[1], np.int64)
    np.add.at(found, rows.indices, rows.data)
    return found


def masks_and(one: NDArray[np.bool_] | None, other: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    """Return where both masks hold; None stands for everywhere."""
    if one is None or other is None:
        return one if other is None else other
    return one & other


def numbers(batch: Any, width: int | None = None) -> Array:
    """Return a batch as float64, shape (k,), or (k, width) where a record is a vector.

    Each record is read by itself, whatever the others are: one that is no number, or no vector of that width,
    becomes NaN. An array has one kind and one shape instead, for which whoever made it answers.

    Raises:
        ValueError: for an array of another kind or shape, and for what is no list of records. Records are
            private: the message has none of them, and there is no earlier error that would show one.
    """
    given = _as_array(batch)
    needed = "(records,)" if width is None else f"(records, {width})"
    if given is not None and given.dtype.kind in "biuf":
        found = given[:, None] if given.ndim == 1 and width == 1 else given
        if found.ndim == (1 if width is None else 2) and found.shape[1:] == (width,)[: found.ndim - 1]:
            with np.errstate(all="ignore"):  # a longdouble beyond the range is infinite
                plain = np.asarray(np.ma.getdata(found), dtype=np.float64)
            return np.where(np.ma.getmaskarray(found), np.nan, plain) if np.ma.is_masked(found) else plain
        if hasattr(batch, "shape"):
            raise ValueError(f"batch has shape {given.shape}; {needed} is needed.")
    if isinstance(batch, np.ndarray) and (batch.dtype.kind not in "biufO" or batch.ndim > 2):
        raise ValueError(
            f"batch is an array of {batch.dtype} and shape {batch.shape}: real numbers of shape {needed} are"
            " needed. What is no number can be NaN, or an entry of a list: it is left out and counted."
        )
    rows = list(given) if given is not None and given.dtype.kind == "O" and given.ndim == 2 else None
    listed = entries(batch, "batch") if rows is None else rows
    if width is None:
        return np.fromiter(map(_number, listed), np.float64, len(listed))
    return np.array([_vector(record, width) for record in listed]).reshape(len(listed), width)


def _as_array(batch: Any) -> Any:
    """Return NumPy's array of a batch, if no entry of it can change what another one is; else None."""
    if isinstance(batch, np.ndarray):
        return batch
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = np.asanyarray(batch)
    except Exception:  # an entry may do anything when it is looked at
        return None
    # float64 holds what smaller kinds do; in a list of long doubles large integers would be rounded twice
    return found if found.ndim and (found.dtype.kind == "O" or found.dtype.itemsize <= 8) else None


def _vector(record: Any, width: int) -> Array:
    """Return one record that is a vector; NaN where it is none."""
    try:
        single = width == 1 and not isinstance(record, Iterable)
        listed = [record] if single or isinstance(record, str | Mapping | Set) else list(record)
    except Exception:  # as above
        listed = []
    found = [_number(entry) for entry in listed]
    return np.array(found if len(found) == width else [math.nan] * width)


#: What `float` would read, and is no number.
_NO_NUMBERS = (str, bytes, bytearray, complex, np.complexfloating, np.ndarray, np.datetime64, np.timedelta64)


def _number(entry: Any) -> float:
    """Return one record that is a number; NaN where it is none."""
    try:
        return math.nan if isinstance(entry, _NO_NUMBERS) else float(entry)
    except Exception:  # as above
        return math.nan


def quantile(level: float) -> float:
    """Return z with a two-sided normal interval of that level: 1.96 for 0.95."""
    return float(ndtri((1 + level) / 2))


def linear_estimate(value: Array, error: Array | float, z: float, raw: Array) -> Estimate:
    """Return value plus or minus z standard errors."""
    half = z * error
    return Estimate(value, np.full(np.shape(value), error), value - half, value + half, raw)


def checked_interval(name: str, low: Any, high: Any) -> tuple[float, float]:
    """Return two finite numbers, low < high."""
    try:
        pair = float(low), float(high)
    except (TypeError, ValueError, OverflowError):
        pair = math.nan, math.nan
    if not (pair[0] < pair[1] and math.isfinite(pair[1] - pair[0])):
        raise ValueError(
            f"{name}=({low!r:.40}, {high!r:.40}) must be two finite numbers, the first below the second and"
            " their difference finite: without"
            " bounds one record could change a sum by any amount. Choose them without looking at the data."
        )
    return pair
