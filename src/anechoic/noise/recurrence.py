"""Recurrences: how row t of C^-1 Z follows from a bounded past.

Five kinds cover the literature: two of windows of rows, three of rows that are mixed (`StackStep`). Floats
(`filters/`) and exact rounding (`rounding/`) follow what is said here. In all of them the emitted row may be
multiplied by a gain (column scaling of C), and the past may be forgotten every `period` steps (restarts).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from anechoic._validate import Array
from anechoic.algebra.trees import height_at


@dataclass(frozen=True, eq=False)
class Recurrence:
    """Base of the recurrences. Let x be the row before its gain and z the fresh i.i.d. row.

    Args:
        n: steps, >= 1.
        gains: factor of each emitted row, shape (n,); None for ones.
        period: steps after which the past is forgotten; None for never.
    """

    n: int
    gains: Array | None = None
    period: int | None = None

    def with_gains(self, gains: Array) -> Recurrence:
        """The same recurrence with every emitted row t multiplied by `gains[t]` once more."""
        return replace(self, gains=gains if self.gains is None else gains * self.gains)

    def gain(self, t: int) -> float:
        """Factor of row t."""
        return 1.0 if self.gains is None else float(self.gains[t])

    @property
    def rows(self) -> int:
        """Rows of memory that a noise stream keeps (0: none)."""
        raise NotImplementedError  # pragma: no cover - abstract

    @property
    def sources(self) -> int | None:
        """Fresh rows that a row is a sum of; None for all of the past."""
        return None

    def local(self, t: int) -> int:
        """Steps since the past was last forgotten."""
        return t if self.period is None else t % self.period

    @property
    def horizon(self) -> int:
        """Steps after which the past is forgotten at the latest."""
        return self.n if self.period is None else min(self.n, self.period)

    @property
    def coefficients(self) -> Array:
        """Numbers that tell this recurrence from every other of its kind, n, period and gains."""
        raise NotImplementedError  # pragma: no cover - abstract

    def digest(self, kind: str, std: float) -> str:
        """Hash of what rows of `std` are made by, to tell streams of different strategies apart."""
        gains = b"" if self.gains is None else np.ascontiguousarray(self.gains, "<f8").tobytes()
        rows = np.ascontiguousarray(self.coefficients, "<f8").tobytes()
        head = f"{kind} n={self.n} period={self.period} std={std!r} {len(gains)} {len(rows)} "
        return hashlib.sha256(head.encode() + gains + rows).hexdigest()


@dataclass(frozen=True, eq=False, kw_only=True)
class _Windowed(Recurrence):
    """Of the past, the last `window` rows count; `row(s)`, for s = local(t), gives their coefficients.

    `stationary` says that every row holds the leading entries of the longest one, as for Toeplitz C.
    """

    window: int
    row: Callable[[int], Array]
    stationary: bool = False

    @property
    def rows(self) -> int:
        return 0 if self.window == 1 else self.window

    @property
    def coefficients(self) -> Array:
        if self.stationary:
            return self.row(self.horizon - 1)
        return np.concatenate([self.row(s) for s in range(self.horizon)])


@dataclass(frozen=True, eq=False, kw_only=True)
class Autoregressive(_Windowed):
    """$x_t = (z_t - sum_{0 < j < window} C[t, t-j] x_{t-j}) / C[t, t]$ (monograph, Algorithm 2.1).

    `row(s)`, for s = local(t), gives C[s, s], C[s, s-1], …: min(window, s + 1) entries.

    Args:
        n, gains, period: see `Recurrence`.
        window: entries of a row of C, >= 1.
        stationary: whether all rows are one, shifted.
    """


@dataclass(frozen=True, eq=False, kw_only=True)
class MovingAverage(_Windowed):
    """$x_t = sum_{0 <= j < window} C^-1[t, t-j] z_{t-j}$: for banded inverses; the past holds fresh rows.

    `row(s)`, for s = local(t), gives C^-1[s, s], C^-1[s, s-1], …: min(window, s + 1) entries.

    Args:
        n, gains, period: see `Recurrence`.
        window: entries of a row of C^-1, >= 1.
        stationary: whether all rows are one, shifted.
    """

    @property
    def sources(self) -> int:
        return min(self.window, self.horizon)


@dataclass(frozen=True)
class StackStep:
    """One step of a stack T of rows: x = (lead z + readout^T T) / divisor, and then T <- mix T + entry x.

    Attributes:
        lead: factor of the fresh row, > 0.
        readout: factors of the r rows on top of the stack, the topmost last, shape (r,).
        mix: shape (w, q), for w rows that take the place of the q topmost.
        entry: factors of x in them, shape (w,).
        divisor: > 0.
    """

    lead: float
    readout: Array
    mix: Array
    entry: Array
    divisor: float = 1.0


@dataclass(frozen=True, eq=False, kw_only=True)
class _States(Recurrence):
    """d rows, empty at first: all steps but the first one after a restart are alike.

    Streams keep them in units of the row emitted last, gain and std included.
    """

    steady: ClassVar[bool] = True
    integral: ClassVar[bool] = False

    @property
    def _usual(self) -> StackStep:
        raise NotImplementedError  # pragma: no cover - abstract

    @cached_property
    def _steps(self) -> tuple[StackStep, StackStep]:
        usual = self._usual
        return replace(usual, readout=usual.readout[:0], mix=usual.mix[:, :0]), usual

    @property
    def rows(self) -> int:
        return len(self._usual.entry)

    def step(self, s: int) -> StackStep:
        return self._steps[min(s, 1)]

    def depth(self, s: int) -> int:
        return self.rows if s else 0


@dataclass(frozen=True, eq=False, kw_only=True)
class Buffered(_States):
    """$x_t = z_t - sum_i scale_i m_i$, then $m_i <- decay_i m_i + x_t$, from m = 0 (Algorithm 2.2).

    Args:
        n, gains, period: see `Recurrence`.
        scale: shape (buffers,).
        decay: shape (buffers,), in [0, 1).
    """

    scale: Array
    decay: Array

    @property
    def coefficients(self) -> Array:
        return np.concatenate([self.scale, self.decay])

    @cached_property
    def _usual(self) -> StackStep:
        return StackStep(1.0, -self.scale, np.diag(self.decay), np.ones(len(self.scale)))


@dataclass(frozen=True, eq=False, kw_only=True)
class StateSpace(_States):
    """$x_t = (z_t - readout^T M) / first$, then $M <- transition M + input x_t$, from M = 0 (Theorem 2.28 c).

    Args:
        n: steps, >= 1.
        gains: factor of each emitted row, shape (n,); None for ones.
        period: steps after which the past is forgotten; None for never.
    """

    readout: Array
    transition: Array
    input: Array
    first: float = 1.0

    @property
    def coefficients(self) -> Array:
        return np.concatenate([self.readout, self.transition.ravel(), self.input, [self.first]])

    @cached_property
    def _usual(self) -> StackStep:
        return StackStep(1.0, -self.readout, self.transition, self.input, self.first)


@dataclass(frozen=True, eq=False, kw_only=True)
class Nested(Recurrence):
    """x_t = row_0 z_t + sum_g row_{1+g} M_g over the heights g of the tree that step t is a leaf of.

    The steps are the leaves of `branching`-ary trees, the complete ones within `leaves` of them.
    Exactly one node of height g + 1 is open at step t; M_g is the sum of x over the children that it has
    finished. Those that are not empty are a stack, the outermost at the bottom.

    `row(s)`, for s = local(t), gives 1 + height(s) entries.
    """

    steady: ClassVar[bool] = False
    integral: ClassVar[bool] = True

    branching: int
    leaves: int
    row: Callable[[int], Array]

    def height(self, s: int) -> int:
        """Height of the tree of step s = local(t)."""
        return height_at(s, self.branching, self.leaves)

    def open_heights(self, s: int) -> list[int]:
        """The g with a finished child, where M_g is not empty, largest first."""
        found, digits = [], s
        for g in range(self.height(s)):
            if digits % self.branching:
                found.append(g)
            digits //= self.branching
        return found[::-1]

    def carried(self, s: int) -> int | None:
        """Sums on top of the stack that step s adds up with its row; None where it finishes the tree."""
        height, finished, left = self.height(s), 0, s + 1
        while finished < height and left % self.branching == 0:
            finished, left = finished + 1, left // self.branching
        return None if finished == height else finished + (left % self.branching != 1)

    def depth(self, s: int) -> int:
        """Sums on the stack before step s."""
        return len(self.open_heights(s))

    def step(self, s: int) -> StackStep:
        """What step s does, like a carry in counting."""
        row, opened, carried = self.row(s), self.open_heights(s), self.carried(s)
        mix = np.ones((0, len(opened)) if carried is None else (1, carried))
        return StackStep(float(row[0]), row[1:][opened], mix, np.ones(len(mix)))

    @property
    def rows(self) -> int:
        """Non-empty M_g at most, and one row to work in; none where no two steps share a node."""
        most, width = 0, 1
        while width < self.horizon and width * self.branching <= self.leaves:
            most, width = most + 1, width * self.branching
        return most + 1 if most else 0

    @property
    def coefficients(self) -> Array:
        ends = [self.branching**h - 1 for h in range(self.height(0) + 1)]
        rows = [self.row(s) for s in ends if s < self.horizon]
        return np.concatenate([[self.branching, self.leaves], self.row(0), *rows])


#: Rows that are mixed. Where they are not `steady`, streams keep rows with std, but without gain.
Mixed = Buffered | StateSpace | Nested


@runtime_checkable
class Recurrent(Protocol):
    """What a noise stream asks of a strategy: how many rows, and how one follows from those before."""

    @property
    def n(self) -> int:
        """Steps."""

    def recurrence(self) -> Recurrence:
        """How row t of the correlated noise follows from fresh rows and a bounded past."""
