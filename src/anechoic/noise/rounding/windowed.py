"""Rounded rows of windows: of emitted rows (banded and Toeplitz C) and of fresh ones (banded inverses)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from fractions import Fraction
from functools import lru_cache

import numpy as np

from anechoic._validate import Array
from anechoic.noise.filters.base import all_rows, digest_of, horizon
from anechoic.noise.recurrence import Autoregressive, MovingAverage, Recurrence
from anechoic.noise.rounding.base import Ahead, Block, RowPlan


def gain(recurrence: Recurrence, t: int) -> Fraction:
    """The gain of row t as a rational number."""
    return Fraction(recurrence.gain(t))


class _Window(ABC):
    """Ring buffer of rows; row t lies in slot local(t) mod window, until row t + window takes its place.

    Where the window is long, a pass over all of it is the larger part of a step. So it is made for several
    steps at once, which leaves a sum for each of them in rows of memory behind the window; to these
    the steps add the rows that came since.
    """

    kind: str
    exact = True

    def __init__(self, recurrence: Autoregressive | MovingAverage, std: float) -> None:
        self._recurrence = recurrence
        self._std = std
        window = min(recurrence.window, horizon(recurrence))
        self._window = 0 if window == 1 else window
        self.ahead = 1 if window < 8 else min(8, math.isqrt(window))
        self.rows = self._window + (self.ahead if self.ahead > 1 else 0)
        # a step's weights are wanted by those before it, too
        self._weights = lru_cache(maxsize=self.ahead + 1)(self.lagged)

    def used(self, t: int) -> int:
        return min(self._recurrence.local(t), self._window)

    @abstractmethod
    def lagged(self, t: int) -> dict[int, Fraction]:
        """Weights of the row in memory of step t - j, by lag j > 0; zero ones left out."""

    def by_slot(self, t: int) -> dict[int, Fraction]:
        """The same by slot."""
        local = self._recurrence.local(t)
        return {(local - j) % self._window: weight for j, weight in self._weights(t).items()}

    def sums_ahead(self, t: int) -> Ahead | None:
        """What steps t, t + 1, … have in common."""
        system, local = self._recurrence, self._recurrence.local(t)
        if self.ahead == 1 or not local:
            return None
        filled, window = min(local, self._window), self._window

        def weights() -> Array:
            count = min(self.ahead, horizon(system) - local, system.n - t)
            found = np.zeros((count, filled))
            for k in range(count):
                for j, weight in self._weights(t + k).items():
                    if k < j <= k + filled:
                        found[k, (local + k - j) % window] = float(weight)
            return found

        def since(step: int) -> list[tuple[int, Array]]:
            lags, begin = t - step, (local - (t - step)) % window
            recent = np.array([float(self._weights(t).get(j, 0)) for j in range(lags, 0, -1)])
            straight = min(lags, window - begin)
            return [(begin, recent[:straight]), (0, recent[straight:])][: 1 + (straight < lags)]

        return Ahead(window, self.ahead, weights, since)

    def drift(self, dimension: int) -> float:
        return 0.0

    def digest(self) -> str:
        return digest_of(self.kind, self._recurrence, self._std, all_rows(self._recurrence))


class RoundedAutoregressive(_Window):
    """Ring buffer of the last rounded rows.

    The rounded row x'_t solves C x' = z + c_tt (what rounding did), exactly: nothing else is lost.
    """

    kind = "Autoregressive, rounded"

    def lagged(self, t: int) -> dict[int, Fraction]:
        system = self._recurrence
        row = system.row(system.local(t))
        scale = gain(system, t) / Fraction(float(row[0]))
        return {
            j: -Fraction(float(row[j])) * scale / gain(system, t - j) for j in range(1, len(row)) if row[j]
        }

    def plan(self, t: int) -> RowPlan:
        system = self._recurrence
        local = system.local(t)
        lead = Fraction(self._std) * gain(system, t) / Fraction(float(system.row(local)[0]))
        slot = local % self._window if self._window else 0

        def remember(block: Block) -> dict[int, float]:
            if not self._window:
                return {}
            block.memory[slot] = block.rounded
            return {slot: block.largest}

        return RowPlan(lead, self.by_slot(t), remember, ahead=self.sums_ahead(t))


class RoundedMovingAverage(_Window):
    """Ring buffer of the last fresh rows in float64; what they stand for is read again where it matters."""

    kind = "MovingAverage, rounded"

    def lagged(self, t: int) -> dict[int, Fraction]:
        row = self._recurrence.row(self._recurrence.local(t))
        scale = Fraction(self._std) * gain(self._recurrence, t)
        return {j: Fraction(float(row[j])) * scale for j in range(1, len(row)) if row[j]}

    def plan(self, t: int) -> RowPlan:
        system = self._recurrence
        local = system.local(t)
        lead = Fraction(float(system.row(local)[0])) * Fraction(self._std) * gain(system, t)
        slot = local % self._window if self._window else 0

        def remember(block: Block) -> dict[int, float]:
            if not self._window:
                return {}
            block.memory[slot] = block.own
            return {slot: block.largest_own}

        past = tuple((t - j, weight) for j, weight in self._weights(t).items())
        return RowPlan(lead, self.by_slot(t), remember, past, self.sums_ahead(t))
