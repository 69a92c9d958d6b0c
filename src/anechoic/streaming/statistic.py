"""What a statistic is: vectors of bounded norm that are added up, and what their noisy sums say."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from anechoic._validate import Array
from anechoic.streaming.release import Estimate, frozen

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
    def labels(self) -> tuple[str, ...]:
        """What the entries of its value are called, row after row; empty where they are only numbered."""
        return ()

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

    Guarantee: no row of integers has 2-norm above unit * bound. Rows that are not finite become zero, and so
    does a row whose integers, looked at once more, are too long.
    """
    limit = bound * (1 - _SPARE)
    finite: NDArray[np.bool_] = np.asarray(np.isfinite(rows).all(axis=1))
    rows = np.where(finite[:, None], rows, 0.0)
    peaks = np.abs(rows).max(axis=1, initial=0.0)
    over = peaks > limit
    near = ~over
    over[near] = np.sqrt(np.square(rows[near]).sum(axis=1)) > limit
    scaled = rows
    if over.any():
        # over the largest entry first, so that no square leaves the range of float64
        shares = scaled[over] / peaks[over][:, None]
        norms = np.sqrt(np.square(shares).sum(axis=1))
        scaled[over] = shares * (limit / norms)[:, None]
    scaled = np.trunc(scaled * float(unit))
    scaled[~(np.sqrt(np.square(scaled).sum(axis=1)) <= bound * unit)] = (
        0.0  # negated: not a number is too long
    )
    return scaled.astype(np.int64)


def in_ball(
    vectors: Array, centre: Array | float = 0.0, radius: float = 1.0
) -> tuple[Array, NDArray[np.bool_]]:
    """(vectors - centre) / radius scaled to 2-norm at most 1, and which of them were longer.

    Finite vectors give finite ones: halves are taken before the difference, and the largest entry of a row is
    divided off before the radius, so that nothing leaves the range of float64.

    Args:
        vectors: shape (k, d), finite.
        centre: shape (d,), finite.
        radius: > 0.
    """
    halves = vectors / 2 - np.asarray(centre) / 2
    peaks = np.abs(halves).max(axis=1, initial=0.0)[:, None]
    shares = halves / np.where(peaks > 0, peaks, 1.0)
    norms = np.sqrt(np.square(shares).sum(axis=1))[:, None]
    with np.errstate(over="ignore"):  # a length beyond the range is longer than 1
        outside = np.ravel(peaks / radius * 2 * norms > 1)
    found = shares / np.maximum(norms, 1.0)
    found[~outside] = halves[~outside] / radius * 2
    return found, outside


def both(one: NDArray[np.bool_] | None, other: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    """Where both masks hold; None stands for everywhere."""
    if one is None or other is None:
        return one if other is None else other
    return one & other


def numbers(batch: Any) -> Array:
    """A batch as float64; not finite entries stay, and masked ones are not a number.

    Raises:
        ValueError: if it holds something else than real numbers in the range of float64. Records are private:
            the message has none of them, and there is no earlier error that would show one.
    """
    try:
        given = np.asanyarray(batch)
        text = given.dtype.kind == "O" and any(isinstance(entry, str | bytes) for entry in given.flat)
        if text or given.dtype.kind in "cSUMmV":
            raise TypeError
        with np.errstate(over="ignore"):  # a longdouble beyond the range is infinite
            found = np.asarray(np.ma.getdata(given), dtype=np.float64)
        return np.where(np.ma.getmaskarray(given), np.nan, found) if np.ma.is_masked(given) else found
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            f"batch, a {type(batch).__name__}, must be an array of real numbers below 1.8e308 in size: it"
            " holds something else. Leave such records out, or make them NaN, which is left out and counted."
        ) from None


def entries(given: Any, what: str) -> list[Any]:
    """The entries of a list or column one by one, scalars of NumPy as those of Python.

    A list is never made an array: one odd entry would change what all others are (7 becomes "7").

    Raises:
        ValueError: for something else than a list, or an array of another shape.
    """
    shape = getattr(given, "shape", None)
    if shape is not None and len(shape) != 1:
        raise ValueError(f"{what} has shape {tuple(shape)}; one entry a record is needed.")
    plain = getattr(given, "tolist", None) or getattr(given, "to_list", None)
    if isinstance(given, str | bytes | Mapping | Set) or not (plain or isinstance(given, Iterable)):
        raise ValueError(f"{what} is a {type(given).__name__}: a list with one entry a record is needed.")
    listed = plain() if plain else list(given)
    return [
        entry.item() if isinstance(entry, np.generic) and not _is_time(entry) else entry for entry in listed
    ]


def _is_time(entry: np.generic) -> bool:
    """Whether `item` might make a plain integer of it."""
    return isinstance(entry, np.datetime64 | np.timedelta64)


def read_vectors(batch: Any, dimension: int, centre: Array, bound: float) -> Records:
    """Vectors that are to be clipped to a ball.

    Raises:
        ValueError: for another shape.
    """
    values = numbers(batch)
    values = values[:, None] if values.ndim == 1 and dimension == 1 else values
    if values.ndim != 2 or values.shape[1] != dimension:
        raise ValueError(f"batch has shape {values.shape}; (records, {dimension}) is needed.")
    usable = np.asarray(np.isfinite(values).all(axis=1))
    _, beyond = in_ball(values[usable], centre, bound)
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
    half = z * error
    errors, low, high = np.full(np.shape(value), error), np.asarray(value - half), np.asarray(value + half)
    for made in (errors, low, high):
        made.setflags(write=False)  # then it is not copied
    shown = frozen(raw)
    return Estimate(shown if value is raw else value, errors, low, high, shown)


def checked_interval(name: str, low: Any, high: Any) -> tuple[float, float]:
    """Two finite numbers, low < high.

    Raises:
        ValueError: otherwise; without bounds there is no sensitivity.
    """
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
