"""Toeplitz and banded Toeplitz strategies: C is fixed by the first entries of its first column."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from anechoic import toeplitz
from anechoic._serialize import serializable
from anechoic._validate import Array, finite_array, positive_int, rows_of, steps_within
from anechoic.strategies.base import SquareStrategy, Structure
from anechoic.strategies.recurrence import Autoregressive, Recurrence
from anechoic.workloads import Workload


@dataclass(frozen=True, eq=False, repr=False)
class _ToeplitzStrategy(SquareStrategy):
    """Shared algebra; `band` holds the leading coefficients, those after it are zero."""

    band: ArrayLike

    def __post_init__(self) -> None:
        n = positive_int("n", self.n)
        band = finite_array("coefficients", self.band)
        if band[0] <= 0:
            raise ValueError(f"coefficients[0]={band[0]} must be > 0: it is the diagonal of C.")
        object.__setattr__(self, "n", n)
        object.__setattr__(self, "band", band)
        self._check_length(len(band))

    def _check_length(self, length: int) -> None:
        raise NotImplementedError  # pragma: no cover - abstract

    @property
    def _c(self) -> Array:
        return self.band  # type: ignore[return-value]

    @cached_property
    def structure(self) -> Structure:
        bands = int(np.flatnonzero(self._c)[-1]) + 1
        nonnegative = bool((self._c >= 0).all())
        falling = nonnegative and bool((np.diff(self._c) <= 0).all())
        return Structure(bands, bands, toeplitz=True, nonnegative=nonnegative, nonincreasing=falling)

    @property
    def coefficients(self) -> Array:
        return np.pad(self._c, (0, self.n - len(self._c)))

    def multiply(self, x: ArrayLike) -> Array:
        return toeplitz.multiply(self._c, rows_of(self.n, x))

    def solve(self, z: ArrayLike) -> Array:
        return toeplitz.solve(self._c, rows_of(self.n, z))

    def to_dense(self) -> Array:
        return toeplitz.dense(self._c, self.n)

    def column_norms_squared(self) -> Array:
        norms = np.cumsum(np.square(self._c))
        tail = norms[::-1]
        return np.concatenate([np.full(self.n - len(tail), norms[-1]), tail])

    def largest_column_norm(self) -> float:
        return float(np.sqrt(np.square(self._c).sum()))

    def comb_norm_squared(self, separation: int, count: int) -> float:
        # s_t = sum_{j < count} c_{t - j separation}: a windowed sum down a grid of `separation` columns
        length = min(self.n, (count - 1) * separation + len(self._c))
        grid = np.zeros((-(-length // separation), separation))
        used = min(len(self._c), length)
        grid.flat[:used] = self._c[:used]
        sums = np.cumsum(grid, axis=0)
        if len(sums) > count:
            sums[count:] -= sums[:-count].copy()
        return float(np.square(sums.reshape(-1)[:length]).sum())

    def recurrence(self) -> Recurrence:
        window = self.structure.bands
        c = self._c
        return Autoregressive(self.n, window=window, row=lambda t: c[: min(window, t + 1)])


@serializable
@dataclass(frozen=True, eq=False, repr=False)
class Toeplitz(_ToeplitzStrategy):
    """A lower-triangular Toeplitz matrix with all n coefficients (monograph, Section 2.3).

    Args:
        n: steps, >= 1.
        coefficients: first column of C, shape (n,), c_0 > 0 (field `band`).
    """

    def _check_length(self, length: int) -> None:
        if length != self.n:
            raise ValueError(
                f"coefficients has {length} entries but n={self.n}: give all n, or use BandedToeplitz."
            )

    @classmethod
    def square_root(cls, workload: Workload) -> Toeplitz:
        """C = A^(1/2): for A_pre the max-loss-optimal Toeplitz strategy (Theorem 2.5).

        Args:
            workload: a Toeplitz workload.

        Raises:
            ValueError: if the workload carries learning rates and so is not Toeplitz.
        """
        if not workload.is_toeplitz:
            raise ValueError("workload has learning rates and is not Toeplitz: leave them out of the design.")
        return cls(workload.n, square_root_coefficients(workload, workload.n))

    def truncate(self, steps: int) -> Toeplitz:
        steps = steps_within(self.n, steps)
        return Toeplitz(steps, self._c[:steps])


@serializable
@dataclass(frozen=True, eq=False, repr=False)
class BandedToeplitz(_ToeplitzStrategy):
    """A Toeplitz matrix whose coefficients vanish from the `bands`-th on (monograph, Section 2.4).

    Args:
        n: steps, >= 1.
        coefficients: c_0 > 0, …, c_{bands-1}, shape (bands,), bands <= n (field `band`).
    """

    def _check_length(self, length: int) -> None:
        if length > self.n:
            raise ValueError(f"bands={length} must be at most n={self.n}: drop the coefficients beyond it.")

    def truncate(self, steps: int) -> BandedToeplitz:
        steps = steps_within(self.n, steps)
        return BandedToeplitz(steps, self._c[:steps])

    def describe(self) -> str:
        return f"BandedToeplitz(n={self.n}, bands={len(self._c)})"


def square_root_coefficients(workload: Workload, count: int) -> Array:
    """First `count` coefficients of A^(1/2) for a Toeplitz workload, shape (count,).

    For A_pre they are the central binomials (2t choose t) / 4^t, made by their recursion (Remark 2.6).
    """
    if workload.is_prefix_sum:
        t = np.arange(1, count, dtype=np.float64)
        return np.concatenate([[1.0], np.cumprod((2 * t - 1) / (2 * t))])
    return toeplitz.sqrt(workload.truncate(count).coefficients, count)
