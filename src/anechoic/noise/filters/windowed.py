"""Noise rows from a window of earlier rows: autoregressions and moving averages."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TypeVar

import numpy as np

from anechoic._validate import Array
from anechoic.noise.filters.base import Filter, only_fresh
from anechoic.noise.numpy_arrays import NumpyColumns, Plan
from anechoic.noise.recurrence import Autoregressive, MovingAverage

W = TypeVar("W", bound=Autoregressive | MovingAverage)


class _Ring(Filter[W]):
    """Ring buffer of the last rows, and sums of them made for several steps at once.

    Slot local(t) mod rows holds row t. Before the ring is full its first slots are in use, and a restart
    begins at slot 0 again, so what an earlier block left behind is never read.

    Where the window is long, a pass over all of it is the larger part of a step. So steps are taken in groups
    of `ahead`: the first passes over the rows before it, and leaves the weighted sum of them that each step
    of the group needs in the slot of that step, whose row no later step asks for. The others
    add the rows of the group alone.
    """

    def __init__(self, recurrence: W, std: float, precision: str) -> None:
        super().__init__(recurrence, std, precision)
        window = min(recurrence.window, recurrence.horizon)
        self.rows = 0 if window == 1 else window
        self.ahead = 1 if window < 8 else min(8, math.isqrt(2 * window))

    def used(self, t: int) -> int:
        """Leading slots that matter before step t."""
        local = self._recurrence.local(t)
        place = local % self.ahead
        return min(local - place + self._group(t - place) if place else local, self.rows)

    @abstractmethod
    def lagged(self, t: int) -> Array:
        """Weights of rows t, t - 1, … in row t."""

    def sums_ahead(self, t: int) -> Plan:
        """Make the sums of a group at its first step; nothing at others."""
        local = self._recurrence.local(t)
        used, count = list(range(min(local, self.rows))), self._group(t)
        if self.ahead == 1 or local % self.ahead or not used:
            return lambda columns: None
        weights = np.zeros((count, len(used)))
        for k in range(count):
            lagged = self.lagged(t + k)[k + 1 :]
            weights[k, (local - 1 - np.arange(len(lagged))) % self.rows] = lagged
        slots = [(local + k) % self.rows for k in range(count)]
        return lambda columns: columns.look_ahead(weights, used, slots)

    def to_add(self, t: int) -> tuple[bool, list[tuple[int, int]]]:
        """Whether slot t holds a sum of what was before the group, and the slots of rows to add, in runs."""
        local = self._recurrence.local(t)
        if self.ahead == 1:
            slot, filled = local % self.rows, min(local, self.rows)
            return False, [(begin, end) for begin, end in ((0, slot), (slot + 1, filled)) if begin < end]
        first, start = local - local % self.ahead, (local - local % self.ahead) % self.rows
        stop = start + local - first
        runs = [(start, min(stop, self.rows)), (0, stop - self.rows)]
        return first > 0, [(begin, end) for begin, end in runs if begin < end]

    def _group(self, t: int) -> int:
        return min(self.ahead, self._recurrence.horizon - self._recurrence.local(t), self._recurrence.n - t)


def past_gains(recurrence: Autoregressive, t: int, count: int) -> Array:
    """Gains of rows t, t - 1, …, shape (count,)."""
    if recurrence.gains is None:
        return np.ones(count)
    return recurrence.gains[t - count + 1 : t + 1][::-1]


class AutoregressiveFilter(_Ring[Autoregressive]):
    """Emitted rows in a ring buffer; the coefficients turn with the ring, the rows stay in place."""

    def lagged(self, t: int) -> Array:
        row = self._recurrence.row(self._recurrence.local(t))
        gains = self._recurrence.gain(t) / past_gains(self._recurrence, t, len(row))
        return np.asarray(-row * gains / row[0])

    def plan(self, t: int) -> Plan:
        local = self._recurrence.local(t)
        first = self._recurrence.row(local)[0]
        lead = self.lead(self._std * self._recurrence.gain(t) / first, t)
        if self.rows == 0:
            return only_fresh(lead)
        slot, sums, (older, runs) = local % self.rows, self.sums_ahead(t), self.to_add(t)
        weights = _by_slot(self.lagged(t), local, self.rows)

        def plan(columns: NumpyColumns) -> None:
            memory, out = columns.memory, columns.row
            sums(columns)
            columns.draw(out, lead)
            # what look_ahead left has no -0: it is a sum that began with 0
            parts = [(np.ones(1), memory[slot : slot + 1])] if older else []
            parts += [(weights[start:stop], memory[start:stop]) for start, stop in runs]
            columns.add(parts, out, memory[slot])

        return plan


class MovingAverageFilter(_Ring[MovingAverage]):
    """Fresh rows in a ring buffer."""

    def lagged(self, t: int) -> Array:
        row = self._recurrence.row(self._recurrence.local(t))
        return np.asarray(row * (self._std * self._recurrence.gain(t)))

    def plan(self, t: int) -> Plan:
        local, lagged = self._recurrence.local(t), self.lagged(t)
        lead = self.lead(lagged[0], t)
        if self.rows == 0:
            return only_fresh(lead)
        slot, sums, (older, runs) = local % self.rows, self.sums_ahead(t), self.to_add(t)
        weights = _by_slot(lagged, local, self.rows)

        def plan(columns: NumpyColumns) -> None:
            memory, out = columns.memory, columns.row
            sums(columns)
            if older:
                columns.assign(out, memory[slot])
            columns.draw(memory[slot], 1.0)
            first = np.array([lead]), memory[slot : slot + 1]
            if not older:
                columns.combine(*first, out)
            parts = [(weights[start:stop], memory[start:stop]) for start, stop in runs]
            columns.add([first, *parts] if older else parts, out)

        return plan


def _by_slot(lagged: Array, local: int, rows: int) -> Array:
    """Weights of rows t, t - 1, …, by slot of the ring."""
    weights = np.zeros(rows)
    weights[(local - np.arange(len(lagged))) % rows] = lagged
    return weights


class RegeneratedFilter(Filter[MovingAverage]):
    """Row t as a sum of fresh rows that are made again.

    Rows differ from stored ones by rounding, so that neither way can resume the other.
    """

    def __init__(self, recurrence: MovingAverage, std: float, precision: str) -> None:
        super().__init__(recurrence, std, precision)
        self.kind, self.rows = f"{self.kind}, regenerated", 0

    def used(self, t: int) -> int:
        return 0

    def plan(self, t: int) -> Plan:
        row = self._recurrence.row(self._recurrence.local(t)) * (self._std * self._recurrence.gain(t))
        self.lead(row[0], t)
        return only_fresh(*row.tolist())
