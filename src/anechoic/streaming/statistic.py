"""What a statistic is: vectors of bounded norm that are added up, and what their noisy sums say."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from anechoic._validate import Array
from anechoic.streaming.release import Estimate

#: What clipping leaves unused of a bound: float64 norms are off by far less.
_SPARE = 2.0**-30

Integers = NDArray[np.int64]


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
        column: name of the column of a batch that it reads; None for the batch itself.
        quantum: what `unit` has to be a multiple of.
        wants_numbers: whether its column holds numbers; None where anything will do.
        begin: the step since which it adds up; 0 for all. `deviation` is that of the noise since then.
        adaptive: whether records are encoded by what `learn` was told; for sums over all steps only.
        spread: how many times wider intervals must be to hold at all steps together, where they rest on
            combinations of the released numbers that differ from step to step: sqrt(k) for k numbers.
    """

    column: str | None = None
    quantum: int = 1
    wants_numbers: bool | None = True
    begin: int = 0
    adaptive: bool = False
    spread: float = 1.0

    @property
    @abstractmethod
    def dimension(self) -> int:
        """Numbers released at each step."""

    @property
    def contrasts(self) -> int:
        """Combinations of the released numbers that its intervals rest on."""
        return self.dimension

    @property
    @abstractmethod
    def bound(self) -> float:
        """Largest 2-norm of the vector of one record."""

    @abstractmethod
    def read(self, batch: Any) -> Records:
        """The batch, checked: what cannot be used is marked, and counted under `remarks`.

        Raises:
            ValueError: if the batch as a whole has the wrong shape or kind.
        """

    @abstractmethod
    def total(self, records: Records, kept: NDArray[np.bool_] | None, unit: int) -> Integers:
        """Sum of the encoded records that are `kept` and usable, in multiples of 1 / unit.

        Every entry of every record is rounded towards zero, so that its norm cannot grow.
        """

    @abstractmethod
    def decode(self, totals: Array, deviation: float, z: float) -> Estimate:
        """The estimate from noisy sums of encoded records.

        Args:
            totals: shape (dimension,), in the units of the statistic.
            deviation: standard deviation of the noise in each of them, independent between them.
            z: intervals are that many standard deviations of the noise to either side.
        """

    def learn(self, step: int, totals: Array, deviation: float) -> None:  # noqa: B027 - most learn nothing
        """What was released at a step, as `decode` was given it. Later records may be encoded accordingly."""

    def fresh(self) -> Statistic:
        """The statistic before it learned anything."""
        return self

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What identifies it, as plain JSON data: its kind, bounds, categories or edges."""


def checked_statistics(statistics: Mapping[str, Statistic]) -> dict[str, Statistic]:
    """`statistics` if they are some.

    Raises:
        ValueError: otherwise.
    """
    if not isinstance(statistics, Mapping) or not statistics:
        raise ValueError(f"statistics={statistics!r:.80} must name at least one statistic.")
    for name, statistic in statistics.items():
        if not isinstance(name, str) or not isinstance(statistic, Statistic):
            raise ValueError(
                f"statistics[{name!r}]={statistic!r:.60} must be a Statistic, such as CountOf()."
            )
    return dict(statistics)


class Rows(Statistic):
    """A statistic whose encoded records are the rows of a small dense array, clipped in 2-norm."""

    @abstractmethod
    def rows(self, values: Array) -> Array:
        """Encoded records, shape (k, dimension), for values of k records that are usable."""

    def total(self, records: Records, kept: NDArray[np.bool_] | None, unit: int) -> Integers:
        chosen = both(records.usable, kept)
        values = records.values if chosen is None else records.values[chosen]
        return np.asarray(integer_rows(self.rows(values), self.bound, unit).sum(axis=0, dtype=np.int64))


def integer_rows(rows: Array, bound: float, unit: int) -> Integers:
    """Rows clipped to 2-norm `bound`, times unit, each entry rounded towards zero.

    Guarantee: no row of integers has 2-norm above unit * bound.
    """
    limit = bound * (1 - _SPARE)
    peaks = np.abs(rows).max(axis=1, initial=0.0)
    over = peaks > limit
    near = ~over
    over[near] = np.sqrt(np.square(rows[near]).sum(axis=1)) > limit
    scaled = np.array(rows, dtype=np.float64)
    if over.any():
        # over the largest entry first, so that no square leaves the range of float64
        shares = scaled[over] / peaks[over][:, None]
        norms = np.sqrt(np.square(shares).sum(axis=1))
        scaled[over] = shares * (limit / norms)[:, None]
    scaled *= float(unit)
    return scaled.astype(np.int64)


def both(one: NDArray[np.bool_] | None, other: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    """Where both masks hold; None stands for everywhere."""
    if one is None or other is None:
        return one if other is None else other
    return one & other


def numbers(batch: Any, *, what: str) -> Array:
    """A batch as float64; not finite entries stay.

    Raises:
        ValueError: if it holds something else than real numbers.
    """
    try:
        given = np.asarray(batch)
        if given.dtype.kind in "cSUMmV":
            raise TypeError
        return np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what} must be an array of real numbers, not {batch!r:.60}.") from error


def read_vectors(batch: Any, dimension: int, centre: Array, bound: float) -> Records:
    """Vectors that are to be clipped to a ball.

    Raises:
        ValueError: for another shape.
    """
    values = numbers(batch, what="batch")
    values = values[:, None] if values.ndim == 1 and dimension == 1 else values
    if values.ndim != 2 or values.shape[1] != dimension:
        raise ValueError(f"batch has shape {values.shape}; (records, {dimension}) is needed.")
    usable = np.asarray(np.isfinite(values).all(axis=1))
    with np.errstate(over="ignore"):
        beyond = np.square((values[usable] - centre) / bound).sum(axis=1) > 1
    return Records(
        len(values),
        values,
        usable,
        {"not finite": int((~usable).sum()), "clipped to the bound": int(beyond.sum())},
    )


def quantile(level: float) -> float:
    """z with a two-sided normal interval of that level: 1.96 for 0.95."""
    return float(ndtri((1 + level) / 2))


def linear_estimate(value: Array, error: Array | float, z: float, raw: Array) -> Estimate:
    """Value plus or minus z standard errors."""
    errors = np.broadcast_to(np.asarray(error, dtype=np.float64), np.shape(value))
    return Estimate(value, errors, value - z * errors, value + z * errors, raw)


def checked_interval(name: str, low: Any, high: Any) -> tuple[float, float]:
    """Two finite numbers, low < high.

    Raises:
        ValueError: otherwise; without bounds there is no sensitivity.
    """
    try:
        pair = float(low), float(high)
    except (TypeError, ValueError):
        pair = math.nan, math.nan
    if not (math.isfinite(pair[0]) and math.isfinite(pair[1]) and pair[0] < pair[1]):
        raise ValueError(
            f"{name}=({low!r}, {high!r}) must be two finite numbers, the first below the second: without"
            " bounds one record could change a sum by any amount. Choose them without looking at the data."
        )
    return pair
