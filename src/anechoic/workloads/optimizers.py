"""Workloads of optimisers that are linear in the gradients: momentum, Nesterov, learning rates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, singledispatch
from typing import Self, cast

import numpy as np
from numpy.typing import ArrayLike

from anechoic._serialize import serializable
from anechoic._validate import Array, decaying, rows_of, scale_rows, steps_within
from anechoic.algebra import toeplitz
from anechoic.workloads.base import (
    Workload,
    checked_rates,
    checked_workload,
    decaying_differences,
    decaying_sums,
    impulse,
)
from anechoic.workloads.sums import ToeplitzWorkload


@dataclass(frozen=True, eq=False)
class _WithMomentum(Workload):
    """What the two momentum methods share: their arguments, and a column that is made once."""

    momentum: float = 0.0
    weight_decay: float = 0.0
    learning_rates: ArrayLike | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("momentum", "weight_decay"):
            object.__setattr__(self, name, decaying(name, getattr(self, name)))
        if self.learning_rates is not None:
            object.__setattr__(self, "learning_rates", checked_rates(self.learning_rates, self.n))

    @property
    def _kept(self) -> float:
        return 1.0 - self.weight_decay

    @cached_property
    def _column(self) -> Array:
        column = self._apply(impulse(self.n))
        column.setflags(write=False)
        return column

    @property
    def coefficients(self) -> Array:
        return self._column

    @property
    def _denominator(self) -> Array:
        """(1 - beta x)(1 - (1 - lambda) x)."""
        return np.array([1.0, -(self.momentum + self._kept), self.momentum * self._kept])[: self.n]

    @property
    def poles(self) -> tuple[float, float]:
        return self.momentum, self._kept

    @property
    def rates(self) -> Array | None:
        return cast("Array | None", self.learning_rates)

    @property
    def is_prefix_sum(self) -> bool:
        return self.momentum == 0.0 and self.weight_decay == 0.0 and self.learning_rates is None

    def truncate(self, steps: int) -> Self:
        steps = steps_within(self.n, steps)
        rates = None if self.rates is None else self.rates[:steps]
        return type(self)(steps, self.momentum, self.weight_decay, rates)


@serializable
@dataclass(frozen=True, eq=False)
class Momentum(_WithMomentum):
    """SGD with momentum and weight decay, and learning rates: a_t = sum_s beta^s (1 - lambda)^(t - s).

    The update is v <- beta v + eta_t g_t, theta <- (1 - lambda) theta - v (monograph, Eqs. 3.4-3.6), so
    the learning rates enter on the right, A = T diag(eta).
    """

    @property
    def inverse_coefficients(self) -> Array:
        return self._denominator

    # one factor after the other: the product of the two would round a root that is 1

    def _apply(self, x: Array) -> Array:
        return decaying_sums(self.momentum, decaying_sums(self._kept, x))

    def _undo(self, x: Array) -> Array:
        return decaying_differences(self._kept, decaying_differences(self.momentum, x))


@serializable
@dataclass(frozen=True, eq=False)
class Nesterov(_WithMomentum):
    """SGD with Nesterov's momentum: a_t = (1 - lambda)^t + sum_s beta^(s+1) (1 - lambda)^(t - s).

    The update is v <- beta v + eta_t g_t, theta <- (1 - lambda) theta - (eta_t g_t + beta v): that of
    torch.optim.SGD with nesterov=True and dampening=0, with weight decay as in `Momentum`. Its series is
    (1 + beta - beta x) / ((1 - beta x)(1 - (1 - lambda) x)).

    References:
        Monograph, Remark 3.3, which leaves the derivation to the reader.
    """

    @property
    def inverse_coefficients(self) -> Array:
        return self._undo(impulse(self.n))

    @property
    def fraction(self) -> tuple[Array, Array]:
        return np.array([1.0 + self.momentum, -self.momentum])[: self.n], self._denominator

    def _apply(self, x: Array) -> Array:
        moves = x + self.momentum * decaying_sums(self.momentum, x)
        return decaying_sums(self._kept, moves)

    def _undo(self, x: Array) -> Array:
        moves = decaying_differences(self._kept, x)
        beta = self.momentum
        moves = toeplitz.multiply(np.array([1.0, -beta]), moves)
        return toeplitz.divided(moves, np.array([1.0 + beta, -beta]))


@serializable
@dataclass(frozen=True, eq=False)
class Scheduled(Workload):
    """A D for any workload A and a diagonal D of learning rates (monograph, Section 3.2).

    Gradient t enters with its rate and is treated by A as every other. torch.optim.SGD with momentum
    multiplies the velocity instead, so that the rate of a step falls on all earlier gradients: with rates
    that vary that is another matrix, for `from_dense`.
    """

    n: int
    base: Workload
    learning_rates: ArrayLike

    def __init__(self, base: Workload, learning_rates: ArrayLike, n: int | None = None) -> None:
        checked_workload(base, "base")
        if n is not None and n != base.n:
            raise ValueError(f"n={n} differs from the workload's {base.n} steps.")
        object.__setattr__(self, "n", base.n)
        object.__setattr__(self, "base", base)
        object.__setattr__(self, "learning_rates", checked_rates(learning_rates, base.n))

    @property
    def _d(self) -> Array:
        return cast("Array", self.learning_rates)

    @property
    def has_toeplitz_factor(self) -> bool:
        return self.base.has_toeplitz_factor

    @property
    def coefficients(self) -> Array:
        return self.base.coefficients

    @property
    def inverse_coefficients(self) -> Array:
        return self.base.inverse_coefficients

    @property
    def fraction(self) -> tuple[Array, Array]:
        return self.base.fraction

    @property
    def poles(self) -> tuple[float, float] | None:
        return self.base.poles

    @property
    def rates(self) -> Array | None:
        if not self.has_toeplitz_factor:
            return None
        return self._d if self.base.rates is None else self.base.rates * self._d

    @property
    def scheduled(self) -> tuple[Workload, Array] | None:
        return None if self.has_toeplitz_factor else (self.base, self._d)

    def multiply(self, x: ArrayLike) -> Array:
        return self.base.multiply(scale_rows(self._d, rows_of(self.n, x)))

    def solve(self, x: ArrayLike) -> Array:
        return scale_rows(1.0 / self._d, self.base.solve(x))

    def adjoint_multiply(self, x: ArrayLike) -> Array:
        return scale_rows(self._d, self.base.adjoint_multiply(x))

    def to_dense(self) -> Array:
        return self.base.to_dense() * self._d

    def truncate(self, steps: int) -> Scheduled:
        return Scheduled(self.base.truncate(steps_within(self.n, steps)), self._d[:steps])


def momentum(
    n: int, momentum: float, *, weight_decay: float = 0.0, learning_rates: ArrayLike | None = None
) -> Workload:
    """Return SGD with momentum, weight decay and learning rates; see `Momentum`.

    Args:
        n: steps, >= 1.
        momentum: beta in [0, 1).
        weight_decay: lambda in [0, 1), what a step takes off the weights.
        learning_rates: eta, shape (n,), all > 0; None for a constant rate.

    Raises:
        ValueError: for an argument out of range.
    """
    return Momentum(n, momentum, weight_decay, learning_rates)


def nesterov(
    n: int, momentum: float, *, weight_decay: float = 0.0, learning_rates: ArrayLike | None = None
) -> Workload:
    """Return SGD with Nesterov's momentum, weight decay and learning rates; see `Nesterov`.

    Args:
        n: steps, >= 1.
        momentum: beta in [0, 1).
        weight_decay: lambda in [0, 1), what a step takes off the weights.
        learning_rates: eta, shape (n,), all > 0; None for a constant rate.

    Raises:
        ValueError: for an argument out of range.
    """
    return Nesterov(n, momentum, weight_decay, learning_rates)


def scheduled(workload: Workload, learning_rates: ArrayLike) -> Workload:
    """Return A D: `workload` with a learning rate for every step, shape (n,), all > 0; see `Scheduled`.

    Args:
        workload: A, n steps.
        learning_rates: D, shape (n,), all > 0.

    Raises:
        ValueError: for rates of another shape, or not all > 0.

    Example:
        >>> from anechoic.workloads import prefix_sum
        >>> scheduled(prefix_sum(3), [1.0, 0.5, 0.25]).multiply([1.0, 1.0, 1.0]).tolist()
        [1.0, 1.5, 1.75]
    """
    return Scheduled(workload, learning_rates)


@singledispatch
def toeplitz_factor(workload: Workload) -> Workload:
    """T of a workload A = T D: the same with a constant learning rate; it has `has_toeplitz_factor`."""
    if workload.is_toeplitz:
        return workload
    return ToeplitzWorkload(workload.n, workload.coefficients)


@toeplitz_factor.register
def _(workload: _WithMomentum) -> Workload:
    return replace(workload, learning_rates=None)


@toeplitz_factor.register
def _(workload: Scheduled) -> Workload:
    return toeplitz_factor(workload.base)
