"""Strategies without parameters to optimise: independent noise and output perturbation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from anechoic._serialize import serializable
from anechoic._validate import Array, lower_triangular, positive_int, rows_of, steps_within
from anechoic.strategies.base import SquareStrategy, Structure, warn_dense
from anechoic.strategies.recurrence import Autoregressive, MovingAverage, Recurrence
from anechoic.workloads import Workload
from anechoic.workloads.base import checked_workload


@serializable
@dataclass(frozen=True, eq=False, repr=False)
class Identity(SquareStrategy):
    """C = I: independent noise at every step (DP-SGD, input perturbation)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", positive_int("n", self.n))

    @property
    def structure(self) -> Structure:
        return Structure(bands=1, gram_bands=1, toeplitz=True, nonnegative=True, nonincreasing=True)

    @property
    def coefficients(self) -> Array:
        first = np.zeros(self.n)
        first[0] = 1.0
        return first

    def multiply(self, x: ArrayLike) -> Array:
        return rows_of(self.n, x).copy()

    def solve(self, z: ArrayLike) -> Array:
        return rows_of(self.n, z).copy()

    def recurrence(self) -> Recurrence:
        one = np.ones(1)
        return MovingAverage(self.n, window=1, row=lambda t: one, stationary=True)

    def truncate(self, steps: int) -> Identity:
        return Identity(steps_within(self.n, steps))

    def column_norms_squared(self) -> Array:
        return np.ones(self.n)

    def largest_column_norm(self) -> float:
        return 1.0

    def comb_norm_squared(self, separation: int, count: int) -> float:
        return float(count)


@serializable
@dataclass(frozen=True, eq=False, repr=False)
class Output(SquareStrategy):
    """C = A: noise on the weighted prefix sums themselves (output perturbation).

    Args:
        workload: A.
    """

    n: int = 0
    workload: Workload | None = None

    def __init__(self, workload: Workload, n: int | None = None) -> None:
        checked_workload(workload)
        if n is not None and n != workload.n:
            raise ValueError(f"n={n} differs from the workload's {workload.n} steps.")
        object.__setattr__(self, "n", workload.n)
        object.__setattr__(self, "workload", workload)

    @property
    def _a(self) -> Workload:
        return self.workload  # type: ignore[return-value]

    @cached_property
    def _as_dense(self) -> Dense:
        """C written out, for workloads without a Toeplitz factor."""
        warn_dense(self.n, "Output of a workload without a Toeplitz factor")
        return Dense(self._a.to_dense())

    @cached_property
    def structure(self) -> Structure:
        if self._a.is_prefix_sum:
            return Structure(self.n, self.n, toeplitz=True, nonnegative=True, nonincreasing=True)
        if not self._a.has_toeplitz_factor:
            return self._as_dense.structure
        c, rates = self._a.coefficients, self._a.rates
        nonnegative = bool((c >= 0).all()) and (rates is None or bool((rates > 0).all()))
        falling = self._a.is_toeplitz and nonnegative and bool((np.diff(c) <= 0).all())
        bands = int(np.flatnonzero(c)[-1]) + 1
        return Structure(bands, bands, self._a.is_toeplitz, nonnegative, falling)

    @property
    def coefficients(self) -> Array:
        return self._a.coefficients if self._a.is_toeplitz else super().coefficients

    def multiply(self, x: ArrayLike) -> Array:
        return self._a.multiply(x)

    def solve(self, z: ArrayLike) -> Array:
        return self._a.solve(z)

    def to_dense(self) -> Array:
        return self._a.to_dense()

    def column_norms_squared(self) -> Array:
        if not self._a.has_toeplitz_factor:
            return self._as_dense.column_norms_squared()
        norms = np.cumsum(np.square(self._a.coefficients))[::-1]
        return norms.copy() if self._a.rates is None else norms * np.square(self._a.rates)

    def recurrence(self) -> Recurrence:
        if not self._a.has_toeplitz_factor:
            return self._as_dense.recurrence()
        inverse = self._a.inverse_coefficients
        window, bands = len(inverse), self.structure.bands
        rates = self._a.rates
        rows: Recurrence = MovingAverage(
            self.n, window=window, row=lambda t: inverse[: min(window, t + 1)], stationary=True
        )
        if bands < window:  # sliding windows, whose inverse never ends
            c = self._a.coefficients
            rows = Autoregressive(self.n, window=bands, row=lambda t: c[: min(bands, t + 1)], stationary=True)
        return rows if rates is None else rows.with_gains(1.0 / rates)

    def truncate(self, steps: int) -> Output:
        return Output(self._a.truncate(steps_within(self.n, steps)))

    def describe(self) -> str:
        return f"Output({type(self._a).__name__}, n={self.n})"


@serializable
@dataclass(frozen=True, eq=False, repr=False)
class Dense(SquareStrategy):
    """An explicit lower-triangular matrix; the noise stream keeps all earlier rows.

    Args:
        matrix: C, shape (n, n), finite, zero above the diagonal, positive on it.
    """

    n: int = 0
    matrix: ArrayLike | None = None

    def __init__(self, matrix: ArrayLike, n: int | None = None) -> None:
        array = lower_triangular(matrix, n, "C must be lower-triangular; take `from_factorization`.")
        object.__setattr__(self, "n", len(array))
        object.__setattr__(self, "matrix", array)

    @property
    def _c(self) -> Array:
        return self.matrix  # type: ignore[return-value]

    @cached_property
    def structure(self) -> Structure:
        rows, columns = np.nonzero(self._c)
        bands = int((rows - columns).max()) + 1
        return Structure(bands, bands, nonnegative=bool((self._c >= 0).all()))

    def multiply(self, x: ArrayLike) -> Array:
        return np.asarray(np.tensordot(self._c, rows_of(self.n, x), axes=1))

    def solve(self, z: ArrayLike) -> Array:
        from scipy.linalg import solve_triangular

        rows = rows_of(self.n, z)
        flat = solve_triangular(self._c, rows.reshape(self.n, -1), lower=True)
        return np.asarray(flat).reshape(rows.shape)

    def to_dense(self) -> Array:
        return self._c.copy()

    def column_norms_squared(self) -> Array:
        return np.asarray(np.square(self._c).sum(axis=0))

    def recurrence(self) -> Recurrence:
        window = self.structure.bands
        c = self._c
        return Autoregressive(self.n, window=window, row=lambda t: c[t, max(0, t - window + 1) : t + 1][::-1])

    def truncate(self, steps: int) -> Dense:
        steps = steps_within(self.n, steps)
        return Dense(self._c[:steps, :steps])
