"""Rounded rows of windows: of emitted rows (banded and Toeplitz C) and of fresh ones (banded inverses)."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import TypeVar

import numpy as np

from anechoic._validate import Array
from anechoic.noise.recurrence import Autoregressive, MovingAverage
from anechoic.noise.rounding.base import Block, RoundedFilter, RowPlan, SumsAhead
from anechoic.noise.rounding.exact import Weights

W = TypeVar("W", bound=Autoregressive | MovingAverage)


class _Window(RoundedFilter[W]):
    """Ring buffer of rows; row t lies in slot local(t) mod window, until row t + window takes its place.

    Where the window is long, a pass over all of it is the larger part of a step. So it is made for several
    steps at once, which leaves a sum for each of them in rows of memory behind the window; to these
    the steps add the rows that came since.
    """

    def __init__(self, recurrence: W, std: float, dimension: int = 1) -> None:
        super().__init__(recurrence, std, dimension)
        window = min(recurrence.window, recurrence.horizon)
        self._window = 0 if window == 1 else window
        self.ahead = 1 if window < 8 else min(8, math.isqrt(window))
        self.rows = self._window + (self.ahead if self.ahead > 1 else 0)
        # a step's weights are wanted by those before it, too
        self._floats = lru_cache(maxsize=self.ahead + 1)(self.floats)

    def used(self, t: int) -> int:
        return min(self._recurrence.local(t), self._window)

    @abstractmethod
    def floats(self, t: int) -> Array:
        """Weights of the rows in memory of steps t - 1, t - 2, …, each within 3 u, relatively."""

    @abstractmethod
    def ratios(self, t: int, lags: list[int]) -> tuple[list[int], list[int]]:
        """Numerators and denominators > 0 of these weights, at lags > 0."""

    def by_slot(self, t: int) -> tuple[Weights, list[int]]:
        """The weights of step t, and the lags that they are of."""
        floats = self._floats(t)
        lags = np.flatnonzero(floats) + 1
        places = (self._recurrence.local(t) - lags) % max(self._window, 1)
        order = np.argsort(places, kind="stable")
        lags = lags[order]
        ordered: list[int] = lags.tolist()
        return Weights(places[order], floats[lags - 1], lambda: self.ratios(t, ordered)), ordered

    def _diagonal(self, t: int) -> Fraction:
        return Fraction(float(self._recurrence.row(self._recurrence.local(t))[0]))

    def keeping(self, t: int, *, fresh: bool) -> Callable[[Block], dict[int, float]]:
        """How a block is remembered: its fresh entries or its rounded ones, in the slot of row t."""
        if not self._window:
            return lambda block: {}
        slot = self._recurrence.local(t) % self._window

        def remember(block: Block) -> dict[int, float]:
            block.memory[slot] = block.own if fresh else block.rounded
            return {slot: block.largest_own if fresh else block.largest}

        return remember

    def sums_ahead(self, t: int) -> SumsAhead | None:
        """What steps t, t + 1, … have in common."""
        system, local = self._recurrence, self._recurrence.local(t)
        if self.ahead == 1 or not local:
            return None
        filled, window = min(local, self._window), self._window

        def weights() -> Array:
            count = min(self.ahead, system.horizon - local, system.n - t)
            found = np.zeros((count, filled))
            for k in range(count):
                known = self._floats(t + k)[k : k + filled]  # lags k + 1, k + 2, …
                found[k, (local - 1 - np.arange(len(known))) % window] = known
            return found

        def since(step: int) -> list[tuple[int, Array]]:
            lags, begin = t - step, (local - (t - step)) % window
            recent = np.zeros(lags)
            known = self._floats(t)[:lags]
            recent[lags - len(known) :] = known[::-1]
            straight = min(lags, window - begin)
            return [(begin, recent[:straight]), (0, recent[straight:])][: 1 + (straight < lags)]

        return SumsAhead(window, self.ahead, weights, since)


class RoundedAutoregressive(_Window[Autoregressive]):
    """Ring buffer of the last rounded rows.

    The rounded row x'_t solves C x' = z + c_tt (what rounding did), exactly: nothing else is lost.
    """

    def floats(self, t: int) -> Array:
        system = self._recurrence
        row = np.asarray(system.row(system.local(t)), dtype=np.float64)
        weights = -row[1:] / row[0]
        if system.gains is not None:
            weights = weights * system.gains[t] / system.gains[t - len(weights) : t][::-1]
        return np.asarray(weights)

    def ratios(self, t: int, lags: list[int]) -> tuple[list[int], list[int]]:
        system = self._recurrence
        row = system.row(system.local(t))
        first, own = Fraction(float(row[0])), self.gain(t)
        before = [self.gain(t - j) for j in lags]
        entries = [Fraction(float(row[j])) for j in lags]
        above, below = own.numerator * first.denominator, own.denominator * first.numerator
        numerators = [-c.numerator * g.denominator * above for c, g in zip(entries, before, strict=True)]
        return numerators, [c.denominator * g.numerator * below for c, g in zip(entries, before, strict=True)]

    def plan(self, t: int) -> RowPlan:
        lead, remember = Fraction(self._std) * self.gain(t) / self._diagonal(t), self.keeping(t, fresh=False)
        return RowPlan(lead, self.by_slot(t)[0], remember, ahead=self.sums_ahead(t))


class RoundedMovingAverage(_Window[MovingAverage]):
    """Ring buffer of the last fresh rows in float64; what they stand for is read again where it matters."""

    def floats(self, t: int) -> Array:
        row = np.asarray(self._recurrence.row(self._recurrence.local(t)), dtype=np.float64)
        return np.asarray(row[1:] * self._std * self._recurrence.gain(t))

    def ratios(self, t: int, lags: list[int]) -> tuple[list[int], list[int]]:
        row = self._recurrence.row(self._recurrence.local(t))
        scale = Fraction(self._std) * self.gain(t)
        weights = [Fraction(float(row[j])) * scale for j in lags]
        return [w.numerator for w in weights], [w.denominator for w in weights]

    def plan(self, t: int) -> RowPlan:
        lead, remember = self._diagonal(t) * Fraction(self._std) * self.gain(t), self.keeping(t, fresh=True)
        weights, lags = self.by_slot(t)
        past = tuple((t - j, weight) for j, weight in zip(lags, weights.exact, strict=True))
        return RowPlan(lead, weights, remember, past, ahead=self.sums_ahead(t))


class RegeneratedMovingAverage(RoundedMovingAverage):
    """The fresh rows of earlier steps are made again from their keys: no memory, and the same integers.

    Rounding is exact, so that it is all the same how float64 came to its value.
    """

    def __init__(self, recurrence: MovingAverage, std: float, dimension: int = 1) -> None:
        super().__init__(recurrence, std, dimension)
        self.kind, self.rows = f"{self.kind}, regenerated", 0

    def used(self, t: int) -> int:
        return 0

    def plan(self, t: int) -> RowPlan:
        stored = super().plan(t)
        return replace(stored, weights=Weights.of({}), remember=lambda block: {}, again=True, ahead=None)
