"""Sums of the gradients with fixed weights: all of them, fading ones, the latest ones, any Toeplitz ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from anechoic._serialize import serializable
from anechoic._validate import Array, decaying, finite_array, positive_int, steps_within
from anechoic.workloads.base import Workload, decaying_differences, decaying_sums


@serializable
@dataclass(frozen=True, eq=False)
class PrefixSum(Workload):
    """A_pre, the all-ones lower triangle: plain SGD with a constant learning rate."""

    @property
    def coefficients(self) -> Array:
        return np.ones(self.n)

    @property
    def inverse_coefficients(self) -> Array:
        return np.array([1.0, -1.0])[: self.n]

    @property
    def is_prefix_sum(self) -> bool:
        return True

    def truncate(self, steps: int) -> PrefixSum:
        return PrefixSum(steps_within(self.n, steps))

    def _apply(self, x: Array) -> Array:
        return decaying_sums(1.0, x)

    def _undo(self, x: Array) -> Array:
        return decaying_differences(1.0, x)


@serializable
@dataclass(frozen=True, eq=False)
class ExponentialDecay(Workload):
    """Sums in which a gradient fades: a_t = decay^t; see `exponential_decay`."""

    decay: float

    def __post_init__(self) -> None:
        super().__post_init__()
        decay = decaying("decay", self.decay, remedy="With 1, these are the prefix sums.")
        object.__setattr__(self, "decay", decay)

    @property
    def coefficients(self) -> Array:
        return np.asarray(self.decay ** np.arange(self.n, dtype=np.float64))

    @property
    def inverse_coefficients(self) -> Array:
        return np.array([1.0, -self.decay])[: self.n]

    def truncate(self, steps: int) -> ExponentialDecay:
        return ExponentialDecay(steps_within(self.n, steps), self.decay)

    def _apply(self, x: Array) -> Array:
        return decaying_sums(self.decay, x)

    def _undo(self, x: Array) -> Array:
        return decaying_differences(self.decay, x)


@serializable
@dataclass(frozen=True, eq=False)
class SlidingWindow(Workload):
    """Sums of the last `width` gradients: a_t = 1 for t < width, and 0 after that; see `sliding_window`."""

    width: int

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "width", positive_int("width", self.width))

    @property
    def _window(self) -> int:
        return min(self.width, self.n)

    @property
    def coefficients(self) -> Array:
        return np.where(np.arange(self.n) < self.width, 1.0, 0.0)

    @property
    def inverse_coefficients(self) -> Array:
        column = np.zeros(self.n)
        column[:: self._window] += 1.0
        column[1 :: self._window] -= 1.0
        return column[: int(np.flatnonzero(column)[-1]) + 1]

    @property
    def fraction(self) -> tuple[Array, Array]:
        numerator = np.zeros(min(self.width + 1, self.n))
        numerator[0] = 1.0
        if self.width < self.n:
            numerator[-1] = -1.0
        return numerator, np.array([1.0, -1.0])[: self.n]

    @property
    def is_prefix_sum(self) -> bool:
        return self.width >= self.n

    def truncate(self, steps: int) -> SlidingWindow:
        return SlidingWindow(steps_within(self.n, steps), self.width)

    def _apply(self, x: Array) -> Array:
        # A window is the end of one block and the beginning of the next: sums without a difference, so
        # that what has left the window leaves no rounding errors behind.
        blocks = self._in_blocks(x)
        sums = np.cumsum(blocks, axis=1)
        ends = np.cumsum(blocks[:-1, :0:-1], axis=1)[:, ::-1]
        sums[1:, :-1] += ends
        return sums.reshape(-1, *x.shape[1:])[: self.n].copy()

    def _undo(self, x: Array) -> Array:
        # x_t = y_t - y_{t-1} + x_{t-width}
        blocks = self._in_blocks(decaying_differences(1.0, x))
        return np.cumsum(blocks, axis=0).reshape(-1, *x.shape[1:])[: self.n].copy()

    def _in_blocks(self, x: Array) -> Array:
        """x with shape (blocks, window, ...), filled up with zeros."""
        count = -(-self.n // self._window)
        padded = np.zeros((count * self._window, *x.shape[1:]))
        padded[: self.n] = x
        return padded.reshape(count, self._window, *x.shape[1:])


@serializable
@dataclass(frozen=True, eq=False)
class ToeplitzWorkload(Workload):
    """Sums with any weights that depend on the age of a gradient only; see `from_coefficients`."""

    column: ArrayLike

    def __post_init__(self) -> None:
        super().__post_init__()
        column = finite_array("coefficients", self.column)
        if len(column) > self.n:
            raise ValueError(f"coefficients has {len(column)} entries; at most n={self.n} of them count.")
        if column[0] <= 0:
            raise ValueError(f"coefficients[0]={column[0]} must be > 0: it weighs the latest gradient.")
        object.__setattr__(self, "column", column)

    @property
    def _a(self) -> Array:
        return cast("Array", self.column)

    @property
    def coefficients(self) -> Array:
        return np.pad(self._a, (0, self.n - len(self._a)))

    @property
    def fraction(self) -> tuple[Array, Array]:
        return self._a, np.ones(1)

    @property
    def is_prefix_sum(self) -> bool:
        return len(self._a) == self.n and bool((self._a == 1.0).all())

    def truncate(self, steps: int) -> ToeplitzWorkload:
        steps = steps_within(self.n, steps)
        return ToeplitzWorkload(steps, self._a[:steps])


def prefix_sum(n: int) -> Workload:
    """Return A_pre with n steps; takes no memory before its entries are asked for.

    Raises:
        ValueError: if n is not an integer >= 1.
    """
    return PrefixSum(n)


def exponential_decay(n: int, decay: float) -> Workload:
    """Return sums in which a gradient keeps the part `decay` of its weight per step.

    Args:
        n: steps, >= 1.
        decay: what is left of a gradient after one step, in [0, 1).

    Raises:
        ValueError: for an argument out of range.
    """
    return ExponentialDecay(n, decay)


def sliding_window(n: int, width: int) -> Workload:
    """Return sums of the last `width` gradients.

    Args:
        n: steps, >= 1.
        width: steps of a sum, >= 1; from n on, these are the prefix sums.

    Raises:
        ValueError: for an argument out of range.
    """
    return SlidingWindow(n, width)


def from_coefficients(coefficients: ArrayLike, n: int | None = None) -> Workload:
    """Return the Toeplitz workload with these weights a_0 > 0, a_1, …, by the age of a gradient.

    Args:
        coefficients: at most n of them; zeros follow.
        n: steps; None for one per coefficient.

    Raises:
        ValueError: if there are more than n, or a_0 is not > 0.
    """
    if n is None:
        n = len(finite_array("coefficients", coefficients))
    return ToeplitzWorkload(n, coefficients)
