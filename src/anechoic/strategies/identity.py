"""Independent noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from anechoic._serialize import serializable
from anechoic._validate import Array, positive_int, rows_of, steps_within
from anechoic.noise.recurrence import MovingAverage, Recurrence
from anechoic.strategies.base import SquareStrategy, Structure


@serializable
@dataclass(frozen=True, eq=False, repr=False)
class Identity(SquareStrategy):
    """C = I: independent noise at every step (with Poisson sampling, DP-SGD).

    Args:
        n: steps, >= 1.

    Raises:
        ValueError: for an argument out of range.
    """

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
