"""Base of the filters that round one row of noise to integers exactly.

Before rounding, entry i of row t is

    v_i = lead z[t, i] + (exact linear combination of the memory)_i,

and row t is floor(v_i + 1/2). float64 gives v_i to within a proven error; entries that come as near to a
half-integer as that error are decided in rational arithmetic, from enclosures of the fresh variate. What goes
back into the memory are the rounded rows, so that no error is ever carried into the next step: see
docs/proofs/noise.md#exact-rounding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array
from anechoic.errors import GuaranteeError
from anechoic.noise.fresh import FreshRows
from anechoic.noise.gaussian import FreshRow
from anechoic.noise.recurrence import Recurrence
from anechoic.noise.rounding.exact import Weights, combined, enclosed, nearest_between, nearest_of

#: Columns behind the last of each row of memory; the first holds the largest size of the row's entries. Of a
#: sum made ahead they hold the step that it is for, and the first step that is not in it.
PAD = 8
#: Entries that are worked on at once: some rows of them fit into the cache of one core.
BLOCK = 2**14
#: Multiplications up to which BLAS starts no threads (OpenBLAS: 2**18): those would wait for each other, and
#: compete with the threads that blocks are worked on by.
ALONE = 2**18
UNIT = 2.0**-53
#: Larger integers would not be float64 with room for a sum.
LARGEST_ENTRY = 2.0**51
#: A larger error in units of the grid would make exact arithmetic the rule.
LARGEST_ERROR = 2.0**-5
_ONE = np.ones(1)

R = TypeVar("R", bound=Recurrence)


@dataclass(frozen=True)
class Block:
    """Some columns of a step, when their entries are rounded. `own` may be written over.

    Attributes:
        memory: part of the memory, shape (rows, k).
        own, rounded: fresh entries, and those of the row, shape (k,).
        largest_own, largest: size of their largest entries.
    """

    memory: Array
    own: Array
    rounded: Array
    largest_own: float
    largest: float


@dataclass(frozen=True)
class SumsAhead:
    """Float64 values of the linear combinations of some steps, made at once for what is in memory then.

    Nothing rounds them, and how a sum is cut up is all the same to the bound on its error. A saved state does
    not hold them: they are made again.

    Attributes:
        first: row of memory that holds the first of them; the others follow.
        rows: how many there may be.
        weights: called at step t, gives those of the leading rows of memory in steps t, t + 1, …: shape
            (steps, rows of memory).
        since: called with a step, gives (first row, weights) of runs of the rows of memory of that step and
            later ones, in step t.
    """

    first: int
    rows: int
    weights: Callable[[], Array]
    since: Callable[[int], list[tuple[int, Array]]]


@dataclass(frozen=True)
class RowPlan:
    """How row t is made.

    Attributes:
        lead: factor of z_t.
        weights: factors of rows of memory.
        past: (step, factor) of earlier fresh rows, where the memory holds those: then `weights` give the
            float64 value alone.
        again: whether these are made again, and the memory holds nothing.
        remember: called with each block, to write into its memory; returns {index: largest size} of rows
            whose sizes changed.
        ahead: float64 sums for several steps; None where each makes its own.
    """

    lead: Fraction
    weights: Weights
    remember: Callable[[Block], dict[int, float]]
    past: tuple[tuple[int, Fraction], ...] | None = None
    again: bool = False
    ahead: SumsAhead | None = None


#: Makes the rows of a slice; returns what changed about the sizes of rows of memory.
Work = Callable[[slice], list[dict[int, float]]]
#: each(work, length) calls work for slices that cover a row, in any order, and returns what they returned.
Each = Callable[[Work, int], Iterable[list[dict[int, float]]]]


class RoundedFilter(ABC, Generic[R]):
    """How one kind of recurrence is made, over memory of `rows` float64 rows.

    Args:
        recurrence: of what is emitted.
        std: of one entry of the scaled fresh rows, in units of the grid.
        dimension: entries of a whole row, which the drift is a bound over.

    Attributes:
        exact: whether the memory is, so that it never drifts.
    """

    rows: int
    exact = True

    def __init__(self, recurrence: R, std: float, dimension: int = 1) -> None:
        self._recurrence = recurrence
        self._std = std
        self._dimension = dimension
        self.kind = f"{type(recurrence).__name__}, rounded"

    @abstractmethod
    def used(self, t: int) -> int:
        """The leading rows of the memory that hold the past of step t."""

    @abstractmethod
    def plan(self, t: int) -> RowPlan:
        """How row t is made."""

    def drift(self) -> float:
        """Bound on the 2-norm, over all steps, of what the memory is off, in standard deviations of z."""
        return 0.0

    def gain(self, t: int) -> Fraction:
        """The gain of row t as a rational number."""
        return Fraction(self._recurrence.gain(t))

    def digest(self) -> str:
        """Hash of the coefficients, to tell streams of different strategies apart."""
        return self._recurrence.digest(self.kind, self._std)


def advance(
    plan: RowPlan, t: int, memory: Array, fresh: FreshRows, out: NDArray[np.int64], each: Each
) -> int:
    """Write row t into `out`, and the memory of step t + 1 into `memory`.

    Args:
        memory: shape (rows, len(out) + PAD).
        each: how the row is cut up.

    Returns:
        How many entries needed exact arithmetic.

    Raises:
        GuaranteeError: if an entry is too large, or the grid too fine for float64.
    """
    used, weights = plan.weights.slots, plan.weights.floats
    lead, width = float(plan.lead), len(out)
    peaks = memory[used, width]
    # of each row as a whole, so that slices of a row need no common maximum
    carried = float(np.abs(weights) @ peaks)
    earlier, inexact = regenerated_rows(plan, fresh), inexact_part(plan, fresh.error)
    combine = _Combination(plan, t, memory)
    counts: list[int] = []

    def work(part: slice) -> list[dict[int, float]]:
        row = np.empty(part.stop - part.start)
        fresh.fill(row, part.start, _ONE)
        spare = np.empty((3, min(BLOCK, len(row))))
        again, added = np.zeros(len(row) if earlier else 0), 0.0
        term = np.empty(len(again))
        for other, factor in earlier:
            other.fill(term, fresh.offset + part.start)
            added += abs(factor) * size(term)
            again += np.multiply(term, factor, out=term)
        return [
            block(row[start : start + BLOCK], part.start + start, spare, again[start : start + BLOCK], added)
            for start in range(0, len(row), BLOCK)
        ]

    def block(own: Array, start: int, spare: Array, again: Array, added: float) -> dict[int, float]:
        part = slice(start, start + len(own))
        here = memory[:, part]
        value, rounded, term = spare[:, : len(own)]
        np.multiply(own, lead, out=value)
        combine(here, value, term)
        if len(again):
            value += again
        largest_own = size(own)
        total = abs(lead) * largest_own + carried + added
        error = error_bound(len(used) + len(earlier), total, inexact)
        np.add(value, 0.5, out=rounded)
        np.floor(rounded, out=rounded)
        # |value - rounded| is exact: both are multiples of value's last place, and close
        off = np.abs(np.subtract(value, rounded, out=value), out=value)
        if float(off.max()) >= 0.5 - error:
            near = np.flatnonzero(np.abs(off - 0.5) <= error).tolist()
            for i in near:
                rounded[i] = exactly(plan, here[:, i], t, start + i, fresh)
            counts.append(len(near))
        largest = size(rounded)
        check_entry(t, largest)
        out[part] = rounded
        return plan.remember(Block(here, own, rounded, largest_own, largest))

    found = [sizes for part in each(work, width) for sizes in part]
    for index in {index for sizes in found for index in sizes}:
        memory[index, width:] = max(sizes.get(index, 0.0) for sizes in found)
    combine.note(memory)
    return sum(counts)


def regenerated_rows(plan: RowPlan, fresh: FreshRows) -> list[tuple[FreshRow, float]]:
    """The earlier fresh rows that the plan needs and no memory holds, with their factors."""
    return [(fresh.row(step), float(factor)) for step, factor in plan.past or () if plan.again]


def inexact_part(plan: RowPlan, error: float) -> float:
    """What an entry is off at most because float64 variates are off by `error`, in units of the grid."""
    past = 0.0
    if plan.past is not None:
        weights = [float(factor) for _, factor in plan.past] if plan.again else plan.weights.floats
        past = float(np.abs(weights).sum())
    return error * (abs(float(plan.lead)) + past)


class _Combination:
    """Adds the linear combination of the memory, in float64."""

    def __init__(self, plan: RowPlan, t: int, memory: Array) -> None:
        ahead, self._t, self._width = plan.ahead, t, memory.shape[1] - PAD
        self._sum: int | None = None
        self._made: Array | None = None
        self._runs: list[tuple[int, Array]] = []
        if ahead is not None:
            self._first = ahead.first
            found = np.flatnonzero(memory[ahead.first : ahead.first + ahead.rows, self._width] == t)
            self._sum = ahead.first + (int(found[0]) if len(found) else 0)
            if len(found):
                self._runs = ahead.since(int(memory[self._sum, self._width + 1]))
            else:
                self._made = ahead.weights()
        elif len(used := plan.weights.slots):
            begin = int(used[0])
            spread = np.zeros(int(used[-1]) + 1 - begin)  # what lies between is finite
            spread[used - begin] = plan.weights.floats
            self._runs = [(begin, spread)]

    def __call__(self, here: Array, value: Array, term: Array) -> None:
        """value += weights @ memory, for a part of the memory; `term` is room for as many entries."""
        if self._made is not None:
            count, rows = self._made.shape
            sums, width = here[self._first : self._first + count], max(1, ALONE // self._made.size)
            for start in range(0, here.shape[1], width):
                columns = slice(start, start + width)
                np.matmul(self._made, here[:rows, columns], out=sums[:, columns])
        if self._sum is not None:
            value += here[self._sum]
        for first, weights in self._runs:
            if len(weights) == 1:
                value += np.multiply(here[first], weights[0], out=term)
            else:
                value += np.einsum("i,ij->j", weights, here[first : first + len(weights)], out=term)

    def note(self, memory: Array) -> None:
        if self._made is None:
            return
        for k in range(len(self._made)):
            memory[self._first + k, self._width :] = self._t
            memory[self._first + k, self._width] += k


def error_bound(terms: int, total: float, inexact: float) -> float:
    """Bound on |float64 value - v|, and on the rounding of value + 1/2.

    A sum of k products in any order, fused or not, is off by at most k u / (1 - k u) times the sum of sizes
    (Higham, Section 3.1); each factor is rounded three times before at most, pairs leave out a low part, and
    one addition of 1/2 follows: 6 u more.
    """
    error = 1.001 * ((terms + 7) * UNIT * total + inexact) + UNIT
    if not error <= LARGEST_ERROR:
        raise GuaranteeError(
            f"float64 gives this noise to {error:.2g} grid cells only, and {LARGEST_ERROR} are needed: use"
            " fewer grid_bits, or a strategy whose noise does not grow."
        )
    return error


def check_entry(t: int, largest: float) -> None:
    """Refuse a row whose largest entry float64 would not hold with room for a sum.

    Raises:
        GuaranteeError: if it is.
    """
    if not largest < LARGEST_ENTRY:
        raise GuaranteeError(
            f"row {t} has entries of {largest:.3g} grid cells, beyond {LARGEST_ENTRY:.3g}: use"
            " fewer grid_bits, or a strategy whose noise does not grow."
        )


def exactly(plan: RowPlan, memory: Array, t: int, coordinate: int, fresh: FreshRows) -> int:
    """One entry of row t in exact arithmetic, from its column of the memory."""
    if plan.past is not None:
        return nearest_of(Fraction(0), ((t, plan.lead), *plan.past), coordinate, fresh.enclosure)
    terms = ((t, plan.lead),)
    around = enclosed(plan.weights, memory)
    found = None if around is None else nearest_between(*around, terms, coordinate, fresh.enclosure)
    if found is not None:
        return found
    return nearest_of(combined(plan.weights, memory), terms, coordinate, fresh.enclosure)


def size(values: Array) -> float:
    """The largest |entry|, 0 where there is none."""
    return max(float(values.max()), -float(values.min()), 0.0) if len(values) else 0.0
