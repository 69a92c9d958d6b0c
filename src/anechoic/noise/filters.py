"""How one noise row is made from a fresh row and the memory: one filter for each kind of recurrence.

Emitted rows carry the noise std and the gain g_t of a column scaling. Both are folded into the coefficients:
memory that holds earlier emitted rows y = std * g * x enters step t with the factor g_t / g_{t-j}, so that no
row is passed over only to be scaled.
"""

from __future__ import annotations

import hashlib
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
        if not isinstance(recurrence, MovingAverage):
            raise ValueError(
                f"memory='regenerate' needs noise that is a moving average of fresh rows, as that of a"
                f" BandedInverse is, but this strategy's is {type(recurrence).__name__}: use memory='store'."
            )
        return RegeneratedFilter(recurrence, std, precision)
    if isinstance(recurrence, StateSpace):
        from anechoic.noise.state_filter import StateSpaceFilter

        return StateSpaceFilter(recurrence, std, precision)
    if isinstance(recurrence, Nested):
        from anechoic.noise.tree_filter import NestedFilter

        return NestedFilter(recurrence, std, precision)
    if isinstance(recurrence, Buffered):
        return BufferedFilter(recurrence, std, precision)
    if isinstance(recurrence, Autoregressive):
        return AutoregressiveFilter(recurrence, std, precision)
    if isinstance(recurrence, MovingAverage):
        return MovingAverageFilter(recurrence, std, precision)
    raise ValueError(
        f"{type(recurrence).__name__} is not a kind of recurrence that streams know: return Autoregressive, "
        "MovingAverage, Buffered, StateSpace or Nested from recurrence()."
    )


class AutoregressiveFilter:
    """Ring buffer of the last emitted rows; the coefficients turn with the ring, the rows stay in place.

    Slot local(t) mod rows holds row t. Before the ring is full its first local(t) slots are in use, and a
    restart begins at slot 0 again, so what an earlier block left behind is never read.
    """

    kind = "Autoregressive"

    def __init__(self, recurrence: Autoregressive, std: float, precision: str) -> None:
        self._recurrence = recurrence
        self._std = std
        self._precision = precision
        window = min(recurrence.window, _horizon(recurrence))
        self.rows = 0 if window == 1 else window

    def used(self, t: int) -> int:
        return min(self._recurrence.local(t), self.rows)

    def plan(self, t: int) -> Plan:
        local = self._recurrence.local(t)
        row = self._recurrence.row(local)
        gain = self._recurrence.gain(t)
        lead = _checked_scale(self._std * gain / row[0], t, self._precision)
        if self.rows == 0:
            return _only_fresh(lead)
        slots = (local - np.arange(len(row))) % self.rows
        weights = np.zeros(min(local + 1, self.rows))
        weights[slots] = -row * (gain / _past_gains(self._recurrence, t, len(row))) / row[0]
        slot, stop = local % self.rows, len(weights)

        def plan(columns: Columns) -> None:
            memory, out = columns.memory, columns.row
            columns.draw(out, lead)
            columns.add(weights[:slot], memory[:slot], out)
            columns.add(weights[slot + 1 :], memory[slot + 1 : stop], out)
            columns.assign(memory[slot], out)

        return plan

    def digest(self) -> str:
        return _digest(self.kind, self._recurrence, self._std, _all_rows(self._recurrence))


class MovingAverageFilter:
    """Ring buffer of the last fresh rows; slots as in `AutoregressiveFilter`."""

    kind = "MovingAverage"

    def __init__(self, recurrence: MovingAverage, std: float, precision: str) -> None:
        self._recurrence = recurrence
        self._std = std
        self._precision = precision
        window = min(recurrence.window, _horizon(recurrence))
        self.rows = 0 if window == 1 else window

    def used(self, t: int) -> int:
        return min(self._recurrence.local(t), self.rows)

    def plan(self, t: int) -> Plan:
        local = self._recurrence.local(t)
        row = self._recurrence.row(local) * (self._std * self._recurrence.gain(t))
        lead = _checked_scale(row[0], t, self._precision)
        if self.rows == 0:
            return _only_fresh(lead)
        weights = np.zeros(min(local + 1, self.rows))
        weights[(local - np.arange(len(row))) % self.rows] = row

        def plan(columns: Columns) -> None:
            columns.draw(columns.memory[local % self.rows], 1.0)
            columns.combine(weights, columns.memory[: len(weights)], columns.row)

        return plan

    def digest(self) -> str:
        return _digest(self.kind, self._recurrence, self._std, _all_rows(self._recurrence))


class RegeneratedFilter:
    """No memory: the fresh rows of earlier steps are made again from the key.

    Its rows differ from those of `MovingAverageFilter` by rounding, so that neither can resume the other.
    """

    kind = "MovingAverage, regenerated"
    rows = 0

    def __init__(self, recurrence: MovingAverage, std: float, precision: str) -> None:
        self._recurrence = recurrence
        self._std = std
        self._precision = precision

    def used(self, t: int) -> int:
        return 0

    def plan(self, t: int) -> Plan:
        local = self._recurrence.local(t)
        row = self._recurrence.row(local) * (self._std * self._recurrence.gain(t))
        _checked_scale(row[0], t, self._precision)
        return _only_fresh(*row.tolist())

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
