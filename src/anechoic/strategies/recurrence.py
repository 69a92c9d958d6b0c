"""How row t of C^-1 Z follows from a bounded past: what a noise stream needs to know of a strategy.

Three kinds cover the literature. In all of them the emitted row may be multiplied by a gain
(column scaling of C), and the past may be forgotten every `period` steps (restarts).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from anechoic._validate import Array


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
    """Of the past, the last `window` rows count; `row(s)`, for s = local(t), gives their coefficients."""

    window: int
    row: Callable[[int], Array]

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
