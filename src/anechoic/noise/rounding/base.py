"""One row of noise, rounded to integers exactly: what the kinds of recurrences share.

Before rounding, entry i of row t is

    v_i = lead z[t, i] + (exact linear combination of the memory)_i,

and row t is floor(v_i + 1/2). float64 gives v_i to within a proven error; entries that come as near to a
half-integer as that error are decided in rational arithmetic, from enclosures of the fresh variate. What goes
back into the memory are the rounded rows, so that no error is ever carried into the next step: see
docs/proofs/float-safe.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import lcm
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array
from anechoic.errors import GuaranteeError
from anechoic.noise.rounding.exact import nearest_of

#: Columns behind the last of each row of memory; the first holds the largest size of the row's entries.
PAD = 8
#: Entries that are worked on at once: some rows of them fit into the cache of one core.
BLOCK = 2**13
UNIT = 2.0**-53
#: Larger integers would not be float64 with room for a sum.
LARGEST_ENTRY = 2.0**51
#: A larger error in units of the grid would make exact arithmetic the rule.
LARGEST_ERROR = 2.0**-5


class Fresh(Protocol):
    """The fresh rows z_t of one stream, as floats and as exactly as wanted.

    Attributes:
        error: |float64 entry - variate| is at most this.
    """

    error: float

    def fill(self, out: Array, step: int, start: int) -> None:
        """out = float64 entries start, start + 1, … of z[step]."""

    def enclosure(self, step: int, coordinate: int, bits: int) -> tuple[int, int]:
        """(low, exponent): z[step, coordinate] lies in [low, low + 1] 2**-exponent, 2**-bits wide or less."""


@dataclass(frozen=True)
class Plan:
    """How row t is made.

    Attributes:
        lead: factor of z_t.
        weights: factor of each row of memory, by its index; zero ones left out.
        past: (step, factor) of earlier fresh rows, where the memory holds those: then `weights` give the
            float64 value alone.
        remember: called with (part of the memory, fresh entries, rounded entries) of each block, to write
            into the memory; returns {index: largest size} of rows whose sizes changed.
    """

    lead: Fraction
    weights: dict[int, Fraction]
    remember: Callable[[Array, Array, Array], dict[int, float]]
    past: tuple[tuple[int, Fraction], ...] | None = None

    @cached_property
    def _common(self) -> tuple[list[tuple[int, int]], int]:
        """(row of memory, numerator) of the weights over one denominator."""
        below = lcm(*(w.denominator for w in self.weights.values()))
        return [(i, int(w * below)) for i, w in self.weights.items()], below

    def known(self, memory: Array) -> Fraction:
        """The linear combination of one column of the memory, exactly: float64 numbers are rational ones."""
        numerators, below = self._common
        total: int | Fraction = 0
        for i, numerator in numerators:
            value = float(memory[i])
            total += numerator * (int(value) if value.is_integer() else Fraction(value))
        return Fraction(total) / below


#: Makes the rows of a slice; returns what changed about the sizes of rows of memory.
Work = Callable[[slice], list[dict[int, float]]]
#: each(work, length) calls work for slices that cover a row, in any order, and returns what they returned.
Each = Callable[[Work, int], Iterable[list[dict[int, float]]]]


class RoundedFilter(Protocol):
    """One kind of recurrence, with memory of `rows` float64 rows, of which `used(t)` matter before step t."""

    kind: str
    rows: int
    exact: bool  # whether the memory is, so that it never drifts

    def used(self, t: int) -> int:
        """The leading rows of the memory that hold the past of step t."""

    def plan(self, t: int) -> Plan:
        """How row t is made."""

    def drift(self, dimension: int) -> float:
        """Bound on the 2-norm, over all steps, of what the memory is off, in standard deviations of z."""

    def digest(self) -> str:
        """Hash of the coefficients, to tell streams of different strategies apart."""


def advance(
    plan: Plan,
    t: int,
    memory: Array,
    fresh: Fresh,
    out: NDArray[np.int64],
    each: Each,
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
    used = sorted(plan.weights)
    weights = np.array([float(plan.weights[i]) for i in used])
    lead, width = float(plan.lead), len(out)
    peaks = memory[used, width] if used else np.empty(0)
    # of each row as a whole, so that slices of a row need no common maximum
    carried = float(np.abs(weights) @ peaks)
    # what is read as a float64 variate is off by so much at most
    inexact = fresh.error * (abs(lead) + (float(np.abs(weights).sum()) if plan.past is not None else 0.0))
    whole = used == list(range(len(used)))  # then no copy is made
    counts: list[int] = []

    def work(part: slice) -> list[dict[int, float]]:
        row = np.empty(part.stop - part.start)
        fresh.fill(row, t, part.start)
        return [block(row[start : start + BLOCK], part.start + start) for start in range(0, len(row), BLOCK)]

    def block(own: Array, start: int) -> dict[int, float]:
        part = slice(start, start + len(own))
        here = memory[:, part]
        value = own * lead
        if used:
            value += weights @ (here[: len(used)] if whole else here[used])
        error = _error(len(used), abs(lead) * size(own) + carried, inexact)
        rounded = np.floor(value + 0.5)
        # |value - rounded| is exact: both are multiples of value's last place, and close
        near = np.flatnonzero(np.abs(np.abs(value - rounded) - 0.5) <= error)
        for i in near.tolist():
            rounded[i] = _exactly(plan, here[:, i], t, start + i, fresh)
        if not size(rounded) < LARGEST_ENTRY:
            raise GuaranteeError(
                f"row {t} has entries of {size(rounded):.3g} grid cells, beyond {LARGEST_ENTRY:.3g}: use"
                " fewer grid_bits, or a strategy whose noise does not grow."
            )
        counts.append(len(near))
        out[part] = rounded
        return plan.remember(here, own, rounded)

    found = [sizes for part in each(work, width) for sizes in part]
    for index in {index for sizes in found for index in sizes}:
        memory[index, width:] = max(sizes.get(index, 0.0) for sizes in found)
    return sum(counts)


def _error(terms: int, total: float, inexact: float) -> float:
    """Bound on |float64 value - v|, and on the rounding of value + 1/2.

    A sum of k products in any order, fused or not, is off by at most k u / (1 - k u) times the sum of sizes
    (Higham, Section 3.1); each factor is rounded once before, pairs leave out a low part, and one addition of
    1/2 follows: 4 u more.
    """
    error = 1.001 * ((terms + 5) * UNIT * total + inexact) + UNIT
    if not error <= LARGEST_ERROR:
        raise GuaranteeError(
            f"float64 gives this noise to {error:.2g} grid cells only, and {LARGEST_ERROR} are needed: use"
            " fewer grid_bits, or a strategy whose noise does not grow."
        )
    return error


def _exactly(plan: Plan, memory: Array, t: int, coordinate: int, fresh: Fresh) -> int:
    if plan.past is not None:
        return nearest_of(Fraction(0), ((t, plan.lead), *plan.past), coordinate, fresh.enclosure)
    return nearest_of(plan.known(memory), ((t, plan.lead),), coordinate, fresh.enclosure)


def size(values: Array) -> float:
    """The largest |entry|, 0 where there is none."""
    return max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))
