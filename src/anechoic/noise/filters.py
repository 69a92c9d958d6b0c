"""How one noise row is made from a fresh row and the memory: one filter for each kind of recurrence.

Emitted rows carry the noise std and the gain g_t of a column scaling. Both are folded into the coefficients:
memory that holds earlier emitted rows y = std * g * x enters step t with the factor g_t / g_{t-j}, so that no
row is passed over only to be scaled.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np

from anechoic._validate import Array, one_of
from anechoic.errors import GuaranteeError
from anechoic.noise.arrays import Columns, Plan
from anechoic.strategies.recurrence import (
    Autoregressive,
    Buffered,
    MovingAverage,
    Nested,
    Recurrence,
    Stacked,
    StateSpace,
)

MEMORY = ("store", "regenerate")


class Filter(Protocol):
    """One kind of recurrence over memory of `rows` rows, of which `used(t)` matter before step t."""

    kind: str
    rows: int

    def used(self, t: int) -> int:
        """The leading rows of the memory that hold the past of step t."""

    def plan(self, t: int) -> Plan:
        """What turns the memory of step t into row t and the memory of step t + 1, columns by columns."""

    def digest(self) -> str:
        """Hash of the coefficients, to tell streams of different strategies apart."""


def make_filter(recurrence: Recurrence, std: float, precision: str, memory: str = "store") -> Filter:
    """The filter of a recurrence.

    Raises:
        ValueError: if the recurrence is of none of the kinds known, or needs memory that is not wanted.
    """
    if one_of("memory", memory, MEMORY) == "regenerate":
        if not isinstance(recurrence, Autoregressive | MovingAverage):
            raise ValueError(
                "memory='regenerate' makes rows from those of C^-1, which are at hand for dense, banded,"
                f" Toeplitz strategies and their inverses, but this one's noise is"
                f" {type(recurrence).__name__} and keeps {recurrence.rows} rows: use memory='store'."
            )
        from anechoic.noise.regenerated import RegeneratedFilter

        return RegeneratedFilter(recurrence, std, precision)
    if isinstance(recurrence, StateSpace):
        from anechoic.noise.state_filter import StateSpaceFilter

        return StateSpaceFilter(recurrence, std, precision)
    if isinstance(recurrence, Nested):
        from anechoic.noise.tree_filter import NestedFilter

        return NestedFilter(recurrence, std, precision)
    if isinstance(recurrence, Stacked):
        from anechoic.noise.stack_filter import StackedFilter

        return StackedFilter(recurrence, std, precision)
    if isinstance(recurrence, Buffered):
        return BufferedFilter(recurrence, std, precision)
    if isinstance(recurrence, Autoregressive):
        return AutoregressiveFilter(recurrence, std, precision)
    if isinstance(recurrence, MovingAverage):
        return MovingAverageFilter(recurrence, std, precision)
    raise ValueError(
        f"{type(recurrence).__name__} is not a kind of recurrence that streams know: return Autoregressive, "
        "MovingAverage, Buffered, StateSpace, Nested or Stacked from recurrence()."
    )


class _Ring(ABC):
    """Ring buffer of the last rows, and sums of them made for several steps at once.

    Slot local(t) mod rows holds row t. Before the ring is full its first slots are in use, and a restart
    begins at slot 0 again, so what an earlier block left behind is never read.

    Where the window is long, a pass over all of it is the larger part of a step. So steps are taken in groups
    of `ahead`: the first passes over the rows before it, and leaves the weighted sum of them that each step
    of the group needs in the slot of that step, whose row no later step asks for. The others
    add the rows of the group alone.
    """

    def __init__(self, recurrence: Autoregressive | MovingAverage) -> None:
        self._recurrence = recurrence
        self._horizon = _horizon(recurrence)
        window = min(recurrence.window, self._horizon)
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
            return _nothing
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
        """Steps in the group that begins with step t."""
        return min(self.ahead, self._horizon - self._recurrence.local(t), self._recurrence.n - t)


class AutoregressiveFilter(_Ring):
    """Emitted rows in a ring buffer; the coefficients turn with the ring, the rows stay in place."""

    kind = "Autoregressive"

    def __init__(self, recurrence: Autoregressive, std: float, precision: str) -> None:
        super().__init__(recurrence)
        self._std = std
        self._precision = precision

    def lagged(self, t: int) -> Array:
        row = self._recurrence.row(self._recurrence.local(t))
        gains = self._recurrence.gain(t) / _past_gains(self._recurrence, t, len(row))
        return np.asarray(-row * gains / row[0])

    def plan(self, t: int) -> Plan:
        local = self._recurrence.local(t)
        first = self._recurrence.row(local)[0]
        lead = _checked_scale(self._std * self._recurrence.gain(t) / first, t, self._precision)
        if self.rows == 0:
            return _only_fresh(lead)
        slot, sums, (older, runs) = local % self.rows, self.sums_ahead(t), self.to_add(t)
        weights = _by_slot(self.lagged(t), local, self.rows)

        def plan(columns: Columns) -> None:
            memory, out = columns.memory, columns.row
            sums(columns)
            columns.draw(out, lead)
            # what look_ahead left has no -0: it is a sum that began with 0
            parts = [(np.ones(1), memory[slot : slot + 1])] if older else []
            parts += [(weights[start:stop], memory[start:stop]) for start, stop in runs]
            columns.add(parts, out, memory[slot])

        return plan

    def digest(self) -> str:
        return _digest(self.kind, self._recurrence, self._std, _all_rows(self._recurrence))


class MovingAverageFilter(_Ring):
    """Fresh rows in a ring buffer."""

    kind = "MovingAverage"

    def __init__(self, recurrence: MovingAverage, std: float, precision: str) -> None:
        super().__init__(recurrence)
        self._std = std
        self._precision = precision

    def lagged(self, t: int) -> Array:
        row = self._recurrence.row(self._recurrence.local(t))
        return np.asarray(row * (self._std * self._recurrence.gain(t)))

    def plan(self, t: int) -> Plan:
        local, lagged = self._recurrence.local(t), self.lagged(t)
        lead = _checked_scale(lagged[0], t, self._precision)
        if self.rows == 0:
            return _only_fresh(lead)
        slot, sums, (older, runs) = local % self.rows, self.sums_ahead(t), self.to_add(t)
        weights = _by_slot(lagged, local, self.rows)

        def plan(columns: Columns) -> None:
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

    def digest(self) -> str:
        return _digest(self.kind, self._recurrence, self._std, _all_rows(self._recurrence))


class BufferedFilter:
    """d fading sums of the emitted rows, in units of the last one; the first step of a block sets them."""

    kind = "Buffered"

    def __init__(self, recurrence: Buffered, std: float, precision: str) -> None:
        self._recurrence = recurrence
        self._std = std
        self._precision = precision
        self.rows = len(recurrence.scale) if _horizon(recurrence) > 1 else 0

    def used(self, t: int) -> int:
        return self.rows if self._recurrence.local(t) else 0

    def plan(self, t: int) -> Plan:
        gain, first = self._recurrence.gain(t), not self._recurrence.local(t)
        lead = _checked_scale(self._std * gain, t, self._precision)
        ratio = 1.0 if first else gain / self._recurrence.gain(t - 1)
        weights, decays = -ratio * self._recurrence.scale, ratio * self._recurrence.decay

        def plan(columns: Columns) -> None:
            columns.draw(columns.row, lead)
            if not first:
                columns.feed_back(weights, decays)
            elif self.rows:
                columns.assign(columns.memory, columns.row)

        return plan

    def digest(self) -> str:
        both = np.concatenate([self._recurrence.scale, self._recurrence.decay])
        return _digest(self.kind, self._recurrence, self._std, both)


def _only_fresh(*weights: float) -> Plan:
    """Rows that need no memory."""

    def plan(columns: Columns) -> None:
        columns.draw(columns.row, *weights)

    return plan


def _nothing(columns: Columns) -> None:
    """No work."""


def _by_slot(lagged: Array, local: int, rows: int) -> Array:
    """Weights of rows t, t - 1, …, by slot of the ring."""
    weights = np.zeros(rows)
    weights[(local - np.arange(len(lagged))) % rows] = lagged
    return weights


def _horizon(recurrence: Recurrence) -> int:
    """Steps after which the past is forgotten at the latest."""
    return recurrence.n if recurrence.period is None else min(recurrence.n, recurrence.period)


def _all_rows(recurrence: Autoregressive | MovingAverage) -> Array:
    """Coefficients that tell this recurrence from every other of its kind, n and period."""
    last = _horizon(recurrence) - 1
    if recurrence.stationary:
        return recurrence.row(last)
    return np.concatenate([recurrence.row(s) for s in range(last + 1)])


def _past_gains(recurrence: Recurrence, t: int, count: int) -> Array:
    """Gains of rows t, t - 1, …, shape (count,)."""
    if recurrence.gains is None:
        return np.ones(count)
    return recurrence.gains[t - count + 1 : t + 1][::-1]


def _checked_scale(scale: float, t: int, precision: str) -> float:
    """`scale` of the fresh row, if rows of that std can be written in their precision.

    Raises:
        GuaranteeError: otherwise: the row would carry no fresh noise, or be infinite.
    """
    limits = np.finfo(precision)
    if not float(limits.tiny) <= abs(scale) <= float(limits.max) / 100:
        raise GuaranteeError(
            f"row {t} needs fresh noise of std {scale!r}, beyond the range of {precision}: bring the std and "
            "the strategy's diagonal nearer to 1, or use dtype float64."
        )
    return float(scale)


def _digest(kind: str, recurrence: Recurrence, std: float, coefficients: Array) -> str:
    gains = b"" if recurrence.gains is None else np.ascontiguousarray(recurrence.gains, "<f8").tobytes()
    rows = np.ascontiguousarray(coefficients, "<f8").tobytes()
    head = f"{kind} n={recurrence.n} period={recurrence.period} std={std!r} {len(gains)} {len(rows)} "
    return hashlib.sha256(head.encode() + gains + rows).hexdigest()
