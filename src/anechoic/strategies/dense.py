"""Strategies given as a matrix."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from anechoic._serialize import serializable
from anechoic._validate import Array, lower_triangular, rows_of, steps_within
from anechoic.noise.recurrence import Autoregressive, Recurrence
from anechoic.strategies.base import SquareStrategy, StoredArray, Structure, store_fields


@serializable
@dataclass(frozen=True, eq=False, repr=False)
class Dense(SquareStrategy):
    """An explicit lower-triangular matrix; the noise stream keeps all earlier rows.

    Args:
        matrix: C, shape (n, n), finite, zero above the diagonal, positive on it.

    Raises:
        ValueError: for another matrix.
    """

    n: int = 0
    matrix: ArrayLike | None = None

    def __init__(self, matrix: ArrayLike, n: int | None = None) -> None:
        array = lower_triangular(matrix, n, "C must be lower-triangular; take `from_factorization`.")
        store_fields(self, n=len(array), matrix=array)

    _c = StoredArray("matrix")

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
