"""Base class of workloads A: lower-triangular n x n, known by their products with vectors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from anechoic._validate import Array, finite_array, positive_int, rows_of, scale_rows
from anechoic.algebra import toeplitz


@dataclass(frozen=True, eq=False)
class Workload:
    """Base of all workloads. Most are A = T D with T Toeplitz and D a positive diagonal of learning rates.

    Subclasses are final. Those of the form T D give `coefficients` (and `rates`), and may override
    `fraction`, `_apply` and `_undo` with something faster; others derive from `GeneralWorkload`.

    Args:
        n: steps, >= 1.

    Raises:
        ValueError: if n is not an integer >= 1.
    """

    n: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", positive_int("n", self.n, remedy="n counts the steps."))

    @property
    def has_toeplitz_factor(self) -> bool:
        """Whether A = T D is known, so that `coefficients`, `fraction` and `rates` can be asked for."""
        return True

    @property
    def coefficients(self) -> Array:
        """First column of the Toeplitz factor T, shape (n,); made when asked for."""
        raise NotImplementedError  # pragma: no cover - abstract

    @property
    def inverse_coefficients(self) -> Array:
        """First column of T^-1 without its trailing zeros, shape (at most n,)."""
        return toeplitz.inverse(self.coefficients, self.n)

    @property
    def fraction(self) -> tuple[Array, Array]:
        """Polynomials p and q, each of at most n entries, whose quotient p / q is the power series of T.

        Short ones are what makes recursions over the steps cheap.
        """
        return np.ones(1), self.inverse_coefficients

    @property
    def poles(self) -> tuple[float, float] | None:
        """Return a, b of q(x) = (1 - a x)(1 - b x) where known better than from q; None otherwise."""
        return None

    @property
    def rates(self) -> Array | None:
        """Diagonal of D, shape (n,), or None where D is the identity."""
        return None

    @property
    def is_toeplitz(self) -> bool:
        """Whether A itself is Toeplitz."""
        return self.has_toeplitz_factor and self.rates is None

    @property
    def is_prefix_sum(self) -> bool:
        """Whether A is the all-ones lower triangle A_pre."""
        return False

    @property
    def restarts(self) -> tuple[Workload, int] | None:
        """(workload, period) where A takes differences of its rows between restarts, else None."""
        return None

    @property
    def scheduled(self) -> tuple[Workload, Array] | None:
        """(workload, diagonal) where A is that workload times D and neither is Toeplitz, else None."""
        return None

    def multiply(self, x: ArrayLike) -> Array:
        """A x along axis 0; x has shape (n, ...)."""
        x = rows_of(self.n, x)
        return self._apply(x if self.rates is None else scale_rows(self.rates, x))

    def solve(self, x: ArrayLike) -> Array:
        """A^-1 x along axis 0; x has shape (n, ...)."""
        y = self._undo(rows_of(self.n, x))
        return y if self.rates is None else scale_rows(1.0 / self.rates, y)

    def adjoint_multiply(self, x: ArrayLike) -> Array:
        """A^T x along axis 0; x has shape (n, ...)."""
        y = self._apply(rows_of(self.n, x)[::-1])[::-1]  # the transpose of a Toeplitz matrix is its flip
        return y.copy() if self.rates is None else scale_rows(self.rates, y)

    def to_dense(self) -> Array:
        """A as an (n, n) array."""
        dense = toeplitz.dense(self.coefficients, self.n)
        return dense if self.rates is None else dense * self.rates

    def truncate(self, steps: int) -> Workload:
        """The workload of the first `steps` steps, A[:steps, :steps]; 1 <= steps <= n."""
        raise NotImplementedError  # pragma: no cover - abstract

    def _apply(self, x: Array) -> Array:
        """T x along axis 0."""
        return toeplitz.multiply(self.coefficients, x)

    def _undo(self, x: Array) -> Array:
        """T^-1 x along axis 0."""
        return toeplitz.solve(self.coefficients, x)


@dataclass(frozen=True, eq=False)
class GeneralWorkload(Workload):
    """Base of workloads that are not T D: they give multiply, solve, adjoint_multiply and truncate.

    Args:
        n: steps, >= 1.
    """

    @property
    def has_toeplitz_factor(self) -> bool:
        return False

    @property
    def coefficients(self) -> Array:
        raise TypeError(f"{type(self).__name__} is not Toeplitz times a diagonal: use multiply or to_dense.")

    @property
    def inverse_coefficients(self) -> Array:
        return self.coefficients  # raises

    @property
    def fraction(self) -> tuple[Array, Array]:
        return self.coefficients, self.coefficients  # raises

    def multiply(self, x: ArrayLike) -> Array:
        raise NotImplementedError  # pragma: no cover - abstract

    def solve(self, x: ArrayLike) -> Array:
        raise NotImplementedError  # pragma: no cover - abstract

    def adjoint_multiply(self, x: ArrayLike) -> Array:
        raise NotImplementedError  # pragma: no cover - abstract

    def to_dense(self) -> Array:
        return self.multiply(np.eye(self.n))


def checked_rates(rates: ArrayLike, n: int) -> Array:
    """Learning rates, shape (n,), all > 0."""
    array = finite_array("learning_rates", rates, length=n)
    if array.min() <= 0:
        t = int(array.argmin())
        raise ValueError(f"learning_rates[{t}]={array[t]} must be > 0: drop the steps that do not move.")
    return array


def impulse(n: int) -> Array:
    """1, 0, 0, …, shape (n,): what a Toeplitz matrix turns into its first column."""
    first = np.zeros(n)
    first[0] = 1.0
    return first


def decaying_sums(decay: float, x: Array) -> Array:
    """y_t = decay y_{t-1} + x_t along axis 0, for 0 <= decay <= 1."""
    if decay == 1.0:
        return np.asarray(np.cumsum(x, axis=0))
    return toeplitz.divided(x, np.array([1.0, -decay]))


def decaying_differences(decay: float, x: Array) -> Array:
    """x_t - decay x_{t-1} along axis 0: the inverse of `decaying_sums`."""
    y = x.copy()
    y[1:] -= decay * x[:-1]
    return y


def checked_workload(value: object, name: str = "workload") -> Workload:
    """`value` if it is a Workload.

    Raises:
        ValueError: naming the argument.
    """
    if not isinstance(value, Workload):
        if isinstance(value, np.ndarray):
            raise ValueError(
                f"{name} is an array of shape {value.shape} and must be a Workload, such as"
                " workloads.from_dense(matrix)."
            )
        raise ValueError(f"{name}={value!r} must be a Workload, such as workloads.prefix_sum(n).")
    return value
