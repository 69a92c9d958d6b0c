"""Buffered linear Toeplitz strategies: c_0 = 1, c_t = sum_i scale_i decay_i^(t-1) (monograph, 2.5)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from anechoic import toeplitz
from anechoic._serialize import serializable
from anechoic._validate import Array, finite_array, positive_int, rows_of, steps_within
from anechoic.strategies import blt_sums
from anechoic.strategies.base import SquareStrategy, Structure
from anechoic.strategies.recurrence import Buffered, Recurrence


@serializable
@dataclass(frozen=True, eq=False, repr=False)
class BLT(SquareStrategy):
    """A Toeplitz matrix with exponentially fading coefficients; noise costs `buffers` rows of memory.

    Args:
        n: steps, >= 1; 10**9 costs what 10**3 costs.
        scale: shape (d,), finite (monograph: alpha).
        decay: shape (d,), pairwise distinct, in [0, 1) (monograph: lambda).
    """

    scale: ArrayLike
    decay: ArrayLike

    def __post_init__(self) -> None:
        scale = finite_array("scale", self.scale)
        decay = finite_array("decay", self.decay, length=len(scale))
        if decay.min() < 0 or decay.max() >= 1:
            worst = decay.max() if decay.max() >= 1 else decay.min()
            raise ValueError(
                f"decay={worst} must lie in [0, 1): a buffer that does not fade is a prefix sum."
            )
        if len(np.unique(decay)) < len(decay):
            raise ValueError(f"decay={decay.tolist()} has equal entries: merge them by adding their scales.")
        object.__setattr__(self, "n", positive_int("n", self.n))
        object.__setattr__(self, "scale", scale)
        object.__setattr__(self, "decay", decay)

    @property
    def _alpha(self) -> Array:
        return self.scale  # type: ignore[return-value]

    @property
    def _lambda(self) -> Array:
        return self.decay  # type: ignore[return-value]

    @cached_property
    def structure(self) -> Structure:
        # sufficient conditions only: scales of mixed sign may still give a falling sequence
        nonnegative = bool((self._alpha >= 0).all())
        falling = nonnegative and float(self._alpha.sum()) <= 1.0
        return Structure(self.n, self.n, toeplitz=True, nonnegative=nonnegative, nonincreasing=falling)

    @property
    def coefficients(self) -> Array:
        t = np.arange(self.n - 1, dtype=np.float64)
        tail = np.zeros(self.n - 1)
        for scale, decay in zip(self._alpha, self._lambda, strict=True):
            tail += scale * decay**t
        return np.concatenate([[1.0], tail])

    def multiply(self, x: ArrayLike) -> Array:
        return toeplitz.multiply(self.coefficients, rows_of(self.n, x))

    def solve(self, z: ArrayLike) -> Array:
        return toeplitz.solve(self.coefficients, rows_of(self.n, z))

    def to_dense(self) -> Array:
        return toeplitz.dense(self.coefficients, self.n)

    def column_norms_squared(self) -> Array:
        return np.cumsum(np.square(self.coefficients))[::-1].copy()

    def largest_column_norm(self) -> float:
        return float(np.sqrt(blt_sums.column_norm_squared(self._alpha, self._lambda, self.n)))

    def comb_norm_squared(self, separation: int, count: int) -> float:
        return blt_sums.comb_norm_squared(self._alpha, self._lambda, self.n, separation, count)

    def recurrence(self) -> Recurrence:
        return Buffered(self.n, scale=self._alpha, decay=self._lambda)

    def truncate(self, steps: int) -> BLT:
        return BLT(steps_within(self.n, steps), self._alpha, self._lambda)

    def describe(self) -> str:
        return f"BLT(n={self.n}, buffers={len(self._alpha)})"
