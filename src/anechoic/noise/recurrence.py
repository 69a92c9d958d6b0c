"""How row t of C^-1 Z follows from a bounded past: what a noise stream needs to know of a strategy.

Six kinds cover the literature. In all of them the emitted row may be multiplied by a gain
(column scaling of C), and the past may be forgotten every `period` steps (restarts).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from anechoic._validate import Array
from anechoic.algebra.trees import height_at


@dataclass(frozen=True, eq=False)
class Recurrence:
    """Base: n steps, the past forgotten every `period` steps, row t multiplied by `gains[t]`.

    Let x be the row before its gain and z the fresh i.i.d. row.
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

    def local(self, t: int) -> int:
        """Steps since the past was last forgotten."""
        return t if self.period is None else t % self.period


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


@dataclass(frozen=True, eq=False, kw_only=True)
class Autoregressive(_Windowed):
    """x_t = (z_t - sum_{0 < j < window} C[t, t-j] x_{t-j}) / C[t, t] (monograph, Algorithm 2.1).

    `row(s)`, for s = local(t), gives C[s, s], C[s, s-1], …: min(window, s + 1) entries.
    """


@dataclass(frozen=True, eq=False, kw_only=True)
class MovingAverage(_Windowed):
    """x_t = sum_{0 <= j < window} C^-1[t, t-j] z_{t-j}: for banded inverses; the past holds fresh rows.

    `row(s)`, for s = local(t), gives C^-1[s, s], C^-1[s, s-1], …: min(window, s + 1) entries.
    """


@dataclass(frozen=True, eq=False, kw_only=True)
class Buffered(Recurrence):
    """x_t = z_t - sum_i scale_i m_i, then m_i <- decay_i m_i + x_t, from m = 0 (Algorithm 2.2)."""

    scale: Array
    decay: Array

    @property
    def rows(self) -> int:
        return len(self.scale)


@dataclass(frozen=True, eq=False, kw_only=True)
class StateSpace(Recurrence):
    """x_t = (z_t - readout^T M) / first, then M <- transition M + input x_t, from M = 0 (Theorem 2.28 c)."""

    readout: Array
    transition: Array
    input: Array
    first: float = 1.0

    @property
    def rows(self) -> int:
        return len(self.readout)


@dataclass(frozen=True, eq=False, kw_only=True)
class Nested(Recurrence):
    """x_t = row_0 z_t + sum_g row_{1+g} M_g over the heights g of the tree that step t is a leaf of.

    The steps are the leaves of `branching`-ary trees, the complete ones within `horizon` steps. Exactly one
    node of height g + 1 is open at step t; M_g is the sum of x over the children that it has finished.

    `row(s)`, for s = local(t), gives 1 + height(s) entries.
    """

    branching: int
    horizon: int
    row: Callable[[int], Array]

    def height(self, s: int) -> int:
        """Height of the tree of step s = local(t)."""
        return height_at(s, self.branching, self.horizon)

    def open_heights(self, s: int) -> list[int]:
        """The g with a finished child, where M_g is not empty, largest first."""
        k = self.branching
        return [g for g in range(self.height(s) - 1, -1, -1) if s // k**g % k]

    @property
    def rows(self) -> int:
        """Non-empty M_g at most, and one row to work in; none where no two steps share a node."""
        steps = self.n if self.period is None else min(self.n, self.period)
        most, width = 0, 1
        while width < steps and width * self.branching <= self.horizon:
            most, width = most + 1, width * self.branching
        return most + 1 if most else 0


@dataclass(frozen=True)
class StackStep:
    """One step of `Stacked`: x = lead z + readout^T T, and then T <- mix T + entry x.

    Attributes:
        lead: factor of the fresh row, > 0.
        readout: factors of the rows T on top of the stack, the topmost last, shape (r,).
        mix: shape (w, r), for w rows that take the place of those r.
        entry: factors of x, shape (w,).
    """

    lead: float
    readout: Array
    mix: Array
    entry: Array


@dataclass(frozen=True, eq=False, kw_only=True)
class Stacked(Recurrence):
    """A stack of rows, empty at first, of which every step reads and replaces those on top (`StackStep`).

    `step(s)` and the number `depth(s)` of rows before it are functions of s = local(t); depth(s) - r + w =
    depth(s + 1) <= deepest. `name` and `parameters` tell this recurrence from every other of its n and
    period; `integral` says that all but the leads are integers.
    """

    step: Callable[[int], StackStep]
    depth: Callable[[int], int]
    deepest: int
    name: str
    parameters: Array
    integral: bool = False

    @property
    def rows(self) -> int:
        return self.deepest


@runtime_checkable
class Recurrent(Protocol):
    """What a noise stream asks of a strategy: how many rows, and how one follows from those before."""

    @property
    def n(self) -> int:
        """Steps."""

    def recurrence(self) -> Recurrence:
        """How row t of the correlated noise follows from fresh rows and a bounded past."""
