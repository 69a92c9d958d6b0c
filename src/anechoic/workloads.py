"""Workloads A: the weighted prefix sums of gradients that a mechanism is designed for.

Every workload is lower-triangular, n x n, and of the form A = T D with T Toeplitz and D a
diagonal of learning rates (monograph, Sections 1.2 and 3.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from anechoic import toeplitz
from anechoic._serialize import serializable
from anechoic._validate import (
    Array,
    decaying,
    finite_array,
    positive_int,
    rows_of,
    scale_rows,
    steps_within,
)


@dataclass(frozen=True, eq=False)
class Workload:
    """Base of all workloads: A = T D. Subclasses are final and give the first column of T."""

    n: int

    @property
    def coefficients(self) -> Array:
        """First column of the Toeplitz factor T, shape (n,); made when asked for."""
        raise NotImplementedError  # pragma: no cover - abstract

    @property
    def inverse_coefficients(self) -> Array:
        """First column of T^-1 without its trailing zeros, shape (at most n,)."""
        return toeplitz.inverse(self.coefficients, self.n)

    @property
    def rates(self) -> Array | None:
        """Diagonal of D, shape (n,), or None where D is the identity."""
        return None

    @property
    def is_toeplitz(self) -> bool:
        """Whether A itself is Toeplitz."""
        return self.rates is None

    @property
    def is_prefix_sum(self) -> bool:
        """Whether A is the all-ones lower triangle A_pre."""
        return False

    def multiply(self, x: ArrayLike) -> Array:
        """A x along axis 0; x has shape (n, ...)."""
        x = rows_of(self.n, x)
        return toeplitz.multiply(self.coefficients, x if self.rates is None else scale_rows(self.rates, x))

    def solve(self, x: ArrayLike) -> Array:
        """A^-1 x along axis 0; x has shape (n, ...)."""
        y = toeplitz.solve(self.coefficients, rows_of(self.n, x))
        return y if self.rates is None else scale_rows(1.0 / self.rates, y)

    def to_dense(self) -> Array:
        """A as an (n, n) array."""
        dense = toeplitz.dense(self.coefficients, self.n)
        return dense if self.rates is None else dense * self.rates

    def truncate(self, steps: int) -> Workload:
        """The workload of the first `steps` steps, A[:steps, :steps]; 1 <= steps <= n."""
        raise NotImplementedError  # pragma: no cover - abstract


@serializable
@dataclass(frozen=True, eq=False)
class PrefixSum(Workload):
    """A_pre, the all-ones lower triangle: plain SGD with a constant learning rate."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", positive_int("n", self.n, remedy="n counts the steps."))

    @property
    def coefficients(self) -> Array:
        return np.ones(self.n)

    @property
    def inverse_coefficients(self) -> Array:
        return np.array([1.0, -1.0])[: self.n]

    @property
    def is_prefix_sum(self) -> bool:
        return True

    def multiply(self, x: ArrayLike) -> Array:
        return np.asarray(np.cumsum(rows_of(self.n, x), axis=0))

    def solve(self, x: ArrayLike) -> Array:
        return np.asarray(np.diff(rows_of(self.n, x), axis=0, prepend=0.0))

    def truncate(self, steps: int) -> PrefixSum:
        return PrefixSum(steps_within(self.n, steps))


@serializable
@dataclass(frozen=True, eq=False)
class Momentum(Workload):
    """SGD with momentum and weight decay, and learning rates: a_t = sum_s beta^s (1 - lambda)^(t - s).

    The update is v <- beta v + eta_t g_t, theta <- (1 - lambda) theta - v (monograph, Eqs. 3.4-3.6), so
    the learning rates enter on the right, A = T diag(eta).

    Args:
        n: steps, >= 1.
        momentum: beta in [0, 1).
        weight_decay: lambda in [0, 1).
        learning_rates: eta, shape (n,), all > 0; None for a constant rate (which scales A and is left out).
    """

    momentum: float = 0.0
    weight_decay: float = 0.0
    learning_rates: ArrayLike | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", positive_int("n", self.n, remedy="n counts the steps."))
        for name in ("momentum", "weight_decay"):
            object.__setattr__(self, name, decaying(name, getattr(self, name)))
        if self.learning_rates is not None:
            rates = finite_array("learning_rates", self.learning_rates, length=self.n)
            if rates.min() <= 0:
                t = int(rates.argmin())
                raise ValueError(
                    f"learning_rates[{t}]={rates[t]} must be > 0: drop the steps that do not move."
                )
            object.__setattr__(self, "learning_rates", rates)

    @cached_property
    def _column(self) -> Array:
        from scipy.signal import lfilter

        impulse = np.zeros(self.n)
        impulse[0] = 1.0
        decayed = lfilter([1.0], [1.0, self.weight_decay - 1.0], impulse)
        column = np.asarray(lfilter([1.0], [1.0, -self.momentum], decayed))
        column.setflags(write=False)
        return column

    @property
    def coefficients(self) -> Array:
        return self._column

    @property
    def inverse_coefficients(self) -> Array:
        kept = 1.0 - self.weight_decay
        return np.array([1.0, -(self.momentum + kept), self.momentum * kept])[: self.n]

    @property
    def rates(self) -> Array | None:
        return self.learning_rates  # type: ignore[return-value]

    @property
    def is_prefix_sum(self) -> bool:
        return self.momentum == 0.0 and self.weight_decay == 0.0 and self.learning_rates is None

    def truncate(self, steps: int) -> Momentum:
        steps = steps_within(self.n, steps)
        rates = None if self.rates is None else self.rates[:steps]
        return Momentum(steps, self.momentum, self.weight_decay, rates)


def prefix_sum(n: int) -> Workload:
    """A_pre with n steps; takes no memory before its entries are asked for.

    Raises:
        ValueError: if n is not an integer >= 1.
    """
    return PrefixSum(n)


def momentum(
    n: int, momentum: float, *, weight_decay: float = 0.0, learning_rates: ArrayLike | None = None
) -> Workload:
    """SGD with momentum, weight decay and learning rates; see `Momentum`."""
    return Momentum(n, momentum, weight_decay, learning_rates)
