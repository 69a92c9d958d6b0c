"""Rounded rows of windows: of emitted rows (banded and Toeplitz C) and of fresh ones (banded inverses)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array
from anechoic.noise.filters.base import all_rows, digest_of, horizon
from anechoic.noise.recurrence import Autoregressive, MovingAverage, Recurrence
from anechoic.noise.rounding.base import Ahead, Block, RowPlan
from anechoic.noise.rounding.weights import DIGITS


def gain(recurrence: Recurrence, t: int) -> Fraction:
    """The gain of row t as a rational number."""
    return Fraction(recurrence.gain(t))


class Lagged:
    """Weights of a window at one step; the long forms are made where an entry asks for them.

    Args:
        window: that they are of.
        t, local: the step, and as counted since the last restart.
        slots: of the ring.
        floats: by lag, from 1 on.

    Attributes:
        lags: in the order of the slots.
    """

    def __init__(self, window: _Window, t: int, local: int, slots: int, floats: Array) -> None:
        self._window, self._t = window, t
        lags = np.flatnonzero(floats) + 1
        places = (local - lags) % slots if slots else lags
        order = np.argsort(places, kind="stable")
        self.slots: NDArray[np.intp] = places[order]
        self.floats: Array = floats[lags[order] - 1]
        self.lags: list[int] = lags[order].tolist()

    @cached_property
    def digits(self) -> list[int]:
        numerators, denominators = self._window.ratios(self._t, self.lags)
        return [(a << DIGITS) // b for a, b in zip(numerators, denominators, strict=True)]

    @cached_property
    def exact(self) -> list[Fraction]:
        return list(map(Fraction, *self._window.ratios(self._t, self.lags)))


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
        self._floats = lru_cache(maxsize=self.ahead + 1)(self.floats)

    def used(self, t: int) -> int:
        return min(self._recurrence.local(t), self._window)

    @abstractmethod
    def floats(self, t: int) -> Array:
        """Weights of the rows in memory of steps t - 1, t - 2, …, each within 3 u, relatively."""

    @abstractmethod
    def ratios(self, t: int, lags: list[int]) -> tuple[list[int], list[int]]:
        """Numerators and denominators > 0 of these weights, at lags > 0."""

    def by_slot(self, t: int) -> Lagged:
        """The weights of step t."""
        return Lagged(self, t, self._recurrence.local(t), self._window, self._floats(t))

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
        first, own = Fraction(float(row[0])), gain(system, t)
        before = [gain(system, t - j) for j in lags]
        entries = [Fraction(float(row[j])) for j in lags]
        above, below = own.numerator * first.denominator, own.denominator * first.numerator
        numerators = [-c.numerator * g.denominator * above for c, g in zip(entries, before, strict=True)]
        return numerators, [c.denominator * g.numerator * below for c, g in zip(entries, before, strict=True)]

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

    def floats(self, t: int) -> Array:
        row = np.asarray(self._recurrence.row(self._recurrence.local(t)), dtype=np.float64)
        return np.asarray(row[1:] * self._std * self._recurrence.gain(t))

    def ratios(self, t: int, lags: list[int]) -> tuple[list[int], list[int]]:
        row = self._recurrence.row(self._recurrence.local(t))
        scale = Fraction(self._std) * gain(self._recurrence, t)
        weights = [Fraction(float(row[j])) * scale for j in lags]
        return [w.numerator for w in weights], [w.denominator for w in weights]

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

        weights = self.by_slot(t)
        past = tuple((t - j, weight) for j, weight in zip(weights.lags, weights.exact, strict=True))
        return RowPlan(lead, weights, remember, past, self.sums_ahead(t))
