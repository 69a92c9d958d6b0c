"""Strategies that measure sums over intervals of steps: row t of C is 1 on one interval that ends at t."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anechoic._validate import Array, rows_of
from anechoic.errors import UnsupportedError
from anechoic.strategies.base import SquareStrategy, Structure

MOST_STEPS = 2**27  # whose intervals are held, in about 3 GB


@dataclass(frozen=True, eq=False, repr=False)
class IntervalStrategy(SquareStrategy):
    """C[t, s] = 1 for start_t <= s <= t, and 0 elsewhere; any two of the intervals are nested or disjoint.

    The steps 0, …, t are the disjoint union of the interval of t, of that of step start_t - 1, and so on:
    `depths` counts them. Row t of A_pre C^-1 is 1 at their last steps, so that y_t = z_t + y_{start_t - 1} is
    the noise of prefix sum t, and depth_t its variance.
    """

    @property
    @abstractmethod
    def starts(self) -> NDArray[Any]:
        """First step of each interval, shape (n,), integers."""

    def _stops(self) -> NDArray[Any]:
        """1, …, n, of no more steps than are held."""
        if self.n > MOST_STEPS:
            raise UnsupportedError(
                f"n={self.n} must be at most {MOST_STEPS}: the interval of each step is held. Take fewer"
                " steps, or a BLT, whose losses have a closed form."
            )
        return np.arange(1, self.n + 1)

    @cached_property
    def depths(self) -> NDArray[Any]:
        """How many of the intervals make up the steps 0, …, t, shape (n,)."""
        last = self._stops() - 1
        found = np.zeros(self.n, dtype=np.int64)
        while (last >= 0).any():
            found += last >= 0
            last = np.where(last >= 0, self.starts[last] - 1, -1)
        return found

    @property
    def structure(self) -> Structure:
        bands = int((self._stops() - self.starts).max())
        return Structure(bands, bands, nonnegative=True)

    def multiply(self, x: ArrayLike) -> Array:
        x = rows_of(self.n, x)
        sums = np.concatenate([np.zeros((1, *x.shape[1:])), np.cumsum(x, axis=0)])
        return np.asarray(sums[1:] - sums[self.starts])

    def solve(self, z: ArrayLike) -> Array:
        y = rows_of(self.n, z).copy()
        for depth in range(2, int(self.depths.max()) + 1):
            steps = np.flatnonzero(self.depths == depth)
            y[steps] += y[self.starts[steps] - 1]
        return np.diff(y, axis=0, prepend=np.zeros((1, *y.shape[1:])))

    def column_norms_squared(self) -> Array:
        return self.gram_diagonal(0)

    def gram_diagonal(self, lag: int) -> Array:
        """(C^T C)[t, t + lag], the number of intervals that hold both steps, shape (n - lag,)."""
        last = np.arange(self.n)
        long = last - self.starts >= lag
        begun = np.bincount(self.starts[long], minlength=self.n - lag)
        over = np.bincount(last[long] - lag + 1, minlength=self.n - lag + 1)
        return np.cumsum(begun - over[: self.n - lag]).astype(np.float64)

    def prefix_errors_squared(self) -> Array:
        """Squared row norms of A_pre C^-1, shape (n,)."""
        return self.depths.astype(np.float64)
