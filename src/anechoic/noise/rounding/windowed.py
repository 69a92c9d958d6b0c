"""Rounded rows of windows: of emitted rows (banded and Toeplitz C) and of fresh ones (banded inverses)."""

from __future__ import annotations

from fractions import Fraction

from anechoic._validate import Array
from anechoic.noise.filters import _all_rows, _digest, _horizon
from anechoic.noise.rounding.base import Plan, size
from anechoic.strategies.recurrence import Autoregressive, MovingAverage, Recurrence


def gain(recurrence: Recurrence, t: int) -> Fraction:
    """The gain of row t as a rational number."""
    return Fraction(recurrence.gain(t))


class RoundedAutoregressive:
    """Ring buffer of the last rounded rows; row t lies in slot local(t) mod rows.

    The rounded row x'_t solves C x' = z + c_tt (what rounding did), exactly: nothing else is lost.
    """

    kind = "Autoregressive, rounded"
    exact = True

    def __init__(self, recurrence: Autoregressive, std: float) -> None:
        self._recurrence = recurrence
        self._std = std
        window = min(recurrence.window, _horizon(recurrence))
        self.rows = 0 if window == 1 else window

    def used(self, t: int) -> int:
        return min(self._recurrence.local(t), self.rows)

    def plan(self, t: int) -> Plan:
        system = self._recurrence
        local = system.local(t)
        row = system.row(local)
        lead, here = Fraction(float(row[0])), gain(system, t)
        weights = {
            (local - j) % self.rows: -Fraction(float(row[j])) * here / (lead * gain(system, t - j))
            for j in range(1, len(row))
            if row[j]
        }
        slot = local % self.rows if self.rows else 0

        def remember(memory: Array, own: Array, rounded: Array) -> dict[int, float]:
            if not self.rows:
                return {}
            memory[slot] = rounded
            return {slot: size(rounded)}

        return Plan(Fraction(self._std) * here / lead, weights, remember)

    def drift(self, dimension: int) -> float:
        return 0.0

    def digest(self) -> str:
        return _digest(self.kind, self._recurrence, self._std, _all_rows(self._recurrence))


class RoundedMovingAverage:
    """Ring buffer of the last fresh rows in float64; what they stand for is read again where it matters."""

    kind = "MovingAverage, rounded"
    exact = True

    def __init__(self, recurrence: MovingAverage, std: float) -> None:
        self._recurrence = recurrence
        self._std = std
        window = min(recurrence.window, _horizon(recurrence))
        self.rows = 0 if window == 1 else window

    def used(self, t: int) -> int:
        return min(self._recurrence.local(t), self.rows)

    def plan(self, t: int) -> Plan:
        local = self._recurrence.local(t)
        row = self._recurrence.row(local)
        scale = Fraction(self._std) * gain(self._recurrence, t)
        factors = {j: Fraction(float(row[j])) * scale for j in range(len(row)) if row[j]}
        slot = local % self.rows if self.rows else 0

        def remember(memory: Array, own: Array, rounded: Array) -> dict[int, float]:
            if not self.rows:
                return {}
            memory[slot] = own
            return {slot: size(own)}

        earlier = tuple((j, factor) for j, factor in factors.items() if j)
        weights = {(local - j) % self.rows: factor for j, factor in earlier}
        past = tuple((t - j, factor) for j, factor in earlier)
        return Plan(factors[0], weights, remember, past)

    def drift(self, dimension: int) -> float:
        return 0.0

    def digest(self) -> str:
        return _digest(self.kind, self._recurrence, self._std, _all_rows(self._recurrence))
