"""Fading sums m <- decay m + row in two float64 parts of fixed place values: ten operations, one rounding.

A sum is high + low, with high a multiple of a unit u = 2**e and |high| <= 2**26 u, and |low| about u / 2. The
decay is split into a multiple of 2**-26 and a rest below 2**-27, so that the product of the high parts, and
its sum with a row of integers, are exact. What is rounded is below u: `ROUNDED` u a step. The proof is in
docs/proofs/noise.md#exact-rounding.

Each operation is one of NumPy, rounded once and never fused, so the bits are the same everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from anechoic._validate import Array
from anechoic.errors import GuaranteeError
from anechoic.noise.recurrence import Buffered
from anechoic.noise.rounding.drift import DRIFT

#: Bits of a high part, and of the high part of a decay.
BITS = 26
#: Largest |high|, in units.
LIMIT = 2.0**BITS
#: What one step takes a sum off at most, in units: 2**-55 + 2**-54 + 2**-53 + 2**-54, of its four roundings.
ROUNDED = 3 * 2.0**-53
#: Standard deviations of a sum that it has room for. A normal variate is beyond with a probability of 1e-57.
ROOM = 16.0


@dataclass(frozen=True)
class SplitSum:
    """One fading sum.

    Attributes:
        unit: u, a power of two up to 2**26 cells.
        decay: in [-1, 1].
        high, low: its parts.
    """

    unit: float
    decay: float

    @cached_property
    def high(self) -> float:
        return math.floor(self.decay * LIMIT + 0.5) / LIMIT

    @cached_property
    def low(self) -> float:
        return self.decay - self.high

    @cached_property
    def magic(self) -> float:
        """x + magic - magic is the multiple of u nearest to x, for |x| < 2**51 u."""
        return 1.5 * 2.0**52 * self.unit

    def feed(self, high: Array, low: Array, row: Array, spare: Array) -> None:
        """The sum of the next step into `high` and `low`.

        Args:
            high, low: of one shape.
            row: integers, in float64.
            spare: room for as many numbers.
        """
        np.multiply(high, self.low, out=spare)
        np.multiply(low, self.decay, out=low)
        np.add(low, spare, out=low)
        np.multiply(high, self.high, out=spare)  # exact from here
        np.add(spare, row, out=spare)
        np.add(spare, low, out=high)
        np.add(high, self.magic, out=high)
        np.subtract(high, self.magic, out=high)
        np.subtract(spare, high, out=spare)  # exact to here
        np.add(low, spare, out=low)

    def fed(self, high: float, low: float, row: float) -> tuple[float, float]:
        """`feed` of one number, operation by operation."""
        low = low * self.decay + high * self.low
        exact = high * self.high + row
        high = (exact + low + self.magic) - self.magic
        return high, low + (exact - high)

    def begin(self, high: Array, low: Array, row: Array) -> None:
        """The sum of one row alone."""
        high[...] = (row + self.magic) - self.magic
        low[...] = row - high

    def check(self, largest: float) -> None:
        """Refuse a row or a sum for which there is no room.

        Raises:
            GuaranteeError: if it is larger than 2**26 u.
        """
        if not largest <= LIMIT * self.unit:
            raise GuaranteeError(
                f"the memory of the noise has grown to {largest:.3g} grid cells, and rounding is proven up to"
                f" {LIMIT * self.unit:.3g}, {ROOM:g} standard deviations. Use a strategy whose noise does not"
                " grow."
            )


def split_sums(recurrence: Buffered, std: float, dimension: int) -> tuple[SplitSum, ...] | None:
    """The sums of a recurrence whose fresh rows have `std` cells; None where parts do not fit, or drift."""
    decays = recurrence.decay.tolist()
    if recurrence.gains is not None or recurrence.horizon < 2 or max(map(abs, decays)) > 1:
        return None
    made = []
    for decay, spread in zip(decays, _spreads(recurrence), strict=True):
        # a row is off by half a cell from what was to be rounded, in each step
        needed = spread * (ROOM * std + 0.5 * math.sqrt(recurrence.horizon)) + 1.0
        if not math.isfinite(needed) or (unit := 2.0 ** (math.frexp(needed)[1] - BITS)) > 2.0**BITS:
            return None
        made.append(SplitSum(unit, decay))
    return tuple(made) if drift_of(recurrence, made, std, dimension) <= DRIFT else None


def drift_of(recurrence: Buffered, sums: Sequence[SplitSum], std: float, dimension: int) -> float:
    """Bound on the 2-norm, over all rows, of what rounding makes of them, in standard deviations."""
    steps = float(recurrence.horizon)
    row = 0.0
    for scale, part in zip(recurrence.scale.tolist(), sums, strict=True):
        lasting = min(steps, 1 / (1 - abs(part.decay)) if abs(part.decay) < 1 else math.inf)
        row += abs(scale) * lasting * ROUNDED * part.unit
    return math.sqrt(dimension) * math.sqrt(recurrence.n) * row / std


def _spreads(recurrence: Buffered) -> list[float]:
    """Standard deviations of the sums after `horizon` steps or more, for fresh rows of one.

    The sums move by A = diag(decay) - 1 scale^T, and their covariance after 2 k steps is
    S(k) + A^k S(k) (A^k)^T. In floats of Python, so that units are the same on every processor.
    """
    scale, decay = recurrence.scale.tolist(), recurrence.decay.tolist()
    size = range(len(decay))
    power = [[(decay[i] if i == j else 0.0) - scale[j] for j in size] for i in size]
    covariance = [[1.0 for _ in size] for _ in size]
    steps = 1
    while steps < recurrence.horizon:
        moved = _product(_product(power, covariance), [list(column) for column in zip(*power, strict=True)])
        covariance = [[covariance[i][j] + moved[i][j] for j in size] for i in size]
        power, steps = _product(power, power), 2 * steps
    return [math.sqrt(value) if value < math.inf else math.inf for value in (covariance[i][i] for i in size)]


def _product(one: list[list[float]], other: list[list[float]]) -> list[list[float]]:
    columns = list(zip(*other, strict=True))
    return [[sum(a * b for a, b in zip(row, column, strict=True)) for column in columns] for row in one]
