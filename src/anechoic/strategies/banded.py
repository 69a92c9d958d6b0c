"""Banded strategies with free columns: C[i, j] = 0 for i - j >= bands, and nothing else is fixed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from anechoic._serialize import serializable
from anechoic._validate import Array, finite_array, lower_triangular, positive_int, rows_of, steps_within
from anechoic.algebra import banded
from anechoic.noise.recurrence import Autoregressive, Recurrence
from anechoic.strategies.base import SquareStrategy, StoredArray, Strategy, Structure, store_fields


@serializable
@dataclass(frozen=True, eq=False, repr=False)
class Banded(SquareStrategy):
    """A lower-triangular matrix with few bands, each column free: O(n bands) of memory and time per vector.

    A noise stream keeps `bands` rows (one of them is being made), as for a banded Toeplitz strategy.
    Columns that are at least `bands` apart are orthogonal (monograph, Section 4.3 and arXiv 2306.08153).

    Args:
        n: steps, >= 1.
        columns: C by columns, columns[j, i] = C[j + i, j]; shape (n, bands), 1 <= bands <= n; column 0 of
            the array, the diagonal of C, is > 0, and what would lie under the last row of C is 0.

    Raises:
        ValueError: if `columns` is not of this form.
    """

    n: int
    columns: ArrayLike

    def __post_init__(self) -> None:
        n = positive_int("n", self.n)
        columns = finite_array("columns", self.columns, ndim=2)
        if len(columns) != n:
            raise ValueError(f"columns has shape {columns.shape}; axis 0 must have n={n} columns of C.")
        bands = columns.shape[1]
        if bands > n:
            raise ValueError(f"bands={bands} must be at most n={n}: drop the zeros beyond it.")
        if (columns[:, 0] <= 0).any():
            j = int(np.flatnonzero(columns[:, 0] <= 0)[0])
            raise ValueError(f"columns[{j}, 0]={columns[j, 0]} must be > 0: it is on the diagonal of C.")
        outside = np.argwhere(columns[n - bands + 1 :] * _under(bands))
        if len(outside):
            j, i = int(outside[0][0]) + n - bands + 1, int(outside[0][1])
            raise ValueError(
                f"columns[{j}, {i}]={columns[j, i]} must be 0: row {j + i} lies under the last of n={n} rows."
            )
        store_fields(self, n=n, columns=columns)

    @classmethod
    def from_dense(cls, matrix: ArrayLike) -> Banded:
        """The banded form of a lower-triangular (n, n) array, with as many bands as it needs.

        Raises:
            ValueError: if `matrix` is not square, finite, zero above its diagonal and positive on it.
        """
        array = lower_triangular(matrix, None, "C must be lower-triangular: take an LQ.")
        filled = np.argwhere(array)
        bands = 1 + int((filled[:, 0] - filled[:, 1]).max(initial=0))
        return cls(len(array), banded.from_dense(array, bands))

    _c = StoredArray("columns")

    @cached_property
    def structure(self) -> Structure:
        c = self._c
        bands = int(np.flatnonzero(c.any(axis=0))[-1]) + 1
        nonnegative = bool((c >= 0).all())
        toeplitz = all(bool((c[: self.n - i, i] == c[0, i]).all()) for i in range(bands))
        falling = toeplitz and nonnegative and bool((np.diff(c[0]) <= 0).all())
        return Structure(bands, bands, toeplitz, nonnegative, falling)

    @property
    def coefficients(self) -> Array:
        if not self.structure.toeplitz:
            return super().coefficients  # raises
        return np.pad(self._c[0], (0, self.n - self._c.shape[1]))

    def multiply(self, x: ArrayLike) -> Array:
        return banded.multiply(self._c, rows_of(self.n, x))

    def solve(self, z: ArrayLike) -> Array:
        return banded.solve(self._c, rows_of(self.n, z))

    def to_dense(self) -> Array:
        return banded.dense(self._c)

    def column_norms_squared(self) -> Array:
        return np.asarray(np.square(self._c).sum(axis=1))

    @cached_property
    def _rows(self) -> Array:
        return banded.rows(self._c)

    def recurrence(self) -> Recurrence:
        window = self.structure.bands
        return Autoregressive(self.n, window=window, row=lambda t: self._rows[t, : min(window, t + 1)])

    def truncate(self, steps: int) -> Banded:
        steps = steps_within(self.n, steps)
        columns = self._c[:steps, :steps].copy()
        bands = columns.shape[1]
        columns[steps - bands + 1 :][_under(bands)] = 0.0
        return Banded(steps, columns)

    def describe(self) -> str:
        return f"Banded(n={self.n}, bands={self._c.shape[1]})"


def columns_of(strategy: Strategy) -> Array:
    """C by columns, array[j, i] = C[j + i, j], shape (n, structure.bands), of any square strategy.

    Others than `Banded` are multiplied with combs of columns that do not overlap: O(n bands^2).
    """
    n, bands = strategy.n, strategy.structure.bands
    if isinstance(strategy, Banded):
        return strategy._c[:, :bands]
    comb = np.zeros((n, bands))
    comb[np.arange(n), np.arange(n) % bands] = 1.0
    images = np.pad(strategy.multiply(comb), ((0, bands), (0, 0)))
    j = np.arange(n)
    return np.stack([images[j + i, j % bands] for i in range(bands)], axis=1)


def _under(bands: int) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Which entries of the last bands - 1 columns lie under the last row, shape (bands - 1, bands)."""
    steps = np.arange(bands)
    return np.asarray(steps[1:, None] + steps[None, :] >= bands)
