"""Base classes of strategies C, and the structure that theorems are chosen by."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from anechoic._validate import Array, rows_of
from anechoic.algebra import toeplitz
from anechoic.errors import PerformanceWarning, UnsupportedError
from anechoic.noise.recurrence import Recurrence
from anechoic.noise.stream import NoiseStream


@dataclass(frozen=True)
class Structure:
    """Properties of C that were derived from its numbers. Theorems are chosen by these, never by type.

    Attributes:
        bands: C[i, j] = 0 wherever i - j >= bands (1 is a diagonal, n says nothing). Of a rectangular C it is
            said of the square, lower-triangular one that makes the same noise (see `Strategy.recurrence`).
        gram_bands: (C^T C)[i, j] = 0 wherever |i - j| >= gram_bands; at most `bands`.
        toeplitz: C is constant along diagonals; `coefficients` gives its first column.
        nonnegative: every entry of C is >= 0, hence every entry of C^T C.
        nonincreasing: Toeplitz with c_0 >= c_1 >= … >= 0 (condition of Lemma 3.16 c).
    """

    bands: int
    gram_bands: int
    toeplitz: bool = False
    nonnegative: bool = False
    nonincreasing: bool = False


@dataclass(frozen=True, eq=False)
class Strategy(ABC):
    """A matrix C with n columns and a left inverse L; axis 0 of every argument is the step.

    The release at step t is row t of G + L Z, with Z i.i.d. Gaussian: post-processing of C G + Z. Most
    strategies are a `SquareStrategy`, with L = C^-1; a rectangular one (a tree) has more rows than steps.
    Concrete classes are final frozen dataclasses; they give the methods below marked abstract, and may
    override the others with something faster. `anechoic.testing` holds the contract that every strategy
    must pass.
    """

    n: int

    @property
    def rows(self) -> int:
        """Rows of C, which are the i.i.d. noise rows of a whole run; n where C is square."""
        return self.n

    @property
    @abstractmethod
    def structure(self) -> Structure:
        """Derived properties of C."""

    @abstractmethod
    def multiply(self, x: ArrayLike) -> Array:
        """C x along axis 0; x has shape (n, ...), the result (rows, ...)."""

    @abstractmethod
    def correlate(self, z: ArrayLike) -> Array:
        """L z along axis 0, the injected noise; z has shape (rows, ...), the result (n, ...)."""

    @abstractmethod
    def recurrence(self) -> Recurrence:
        """How row t of C^-1 Z follows from the past.

        Of a rectangular C: how row t of R Z does, with R n x n, lower-triangular, and R R^T = L L^T. That
        noise is distributed as L Z, and R^-1 has no larger sensitivity than C
        (docs/proofs/sensitivity.md#more-rows-than-steps).
        """

    @abstractmethod
    def truncate(self, steps: int) -> Strategy:
        """The leading block C[:steps, :steps]: the strategy of the first `steps` releases."""

    @property
    def coefficients(self) -> Array:
        """First column of C where `structure.toeplitz`, shape (n,)."""
        raise TypeError(f"{type(self).__name__} is not Toeplitz: it has no coefficients. Use to_dense().")

    def to_dense(self) -> Array:
        """C as a (rows, n) array."""
        return self.multiply(np.eye(self.n))

    def column_norms_squared(self) -> Array:
        """Squared 2-norm of every column of C, shape (n,)."""
        warn_dense(self.n, f"{type(self).__name__}.column_norms_squared")
        return np.asarray(np.square(self.to_dense()).sum(axis=0))

    def largest_column_norm(self) -> float:
        """Compute $max_j ||C[:, j]||_2$."""
        return float(np.sqrt(self.column_norms_squared().max()))

    def comb_norm_squared(self, separation: int, count: int) -> float:
        """Compute $||sum_{j < count} C[:, j separation]||^2$, where (count - 1) separation < n."""
        indicator = np.zeros(self.n)
        indicator[: (count - 1) * separation + 1 : separation] = 1.0
        return float(np.square(self.multiply(indicator)).sum())

    def describe(self) -> str:
        """One line for tables and statements."""
        return f"{type(self).__name__}(n={self.n})"

    def stream(self, dimension: int, **options: Any) -> NoiseStream:
        """A stream of the rows of L Z, each of shape (dimension,); see `anechoic.noise.NoiseStream`."""
        return NoiseStream(self, dimension, **options)

    def __repr__(self) -> str:
        return self.describe()


@dataclass(frozen=True, eq=False, repr=False)
class SquareStrategy(Strategy):
    """A lower-triangular n x n matrix C with positive diagonal: L = C^-1."""

    @abstractmethod
    def solve(self, z: ArrayLike) -> Array:
        """C^-1 z along axis 0; z has shape (n, ...)."""

    def correlate(self, z: ArrayLike) -> Array:
        return self.solve(z)


@dataclass(frozen=True, eq=False, repr=False)
class SequenceStrategy(SquareStrategy):
    """A Toeplitz C that makes its coefficients when they are asked for; the algebra goes through them."""

    def multiply(self, x: ArrayLike) -> Array:
        return toeplitz.multiply(self.coefficients, rows_of(self.n, x))

    def solve(self, z: ArrayLike) -> Array:
        return toeplitz.solve(self.coefficients, rows_of(self.n, z))

    def to_dense(self) -> Array:
        return toeplitz.dense(self.coefficients, self.n)

    def column_norms_squared(self) -> Array:
        return np.cumsum(np.square(self.coefficients))[::-1].copy()


@dataclass(frozen=True, eq=False, repr=False)
class Wrapper(Strategy):
    """A strategy made from another, square or rectangular as that one is."""

    def solve(self, z: ArrayLike) -> Array:
        """C^-1 z along axis 0, where C is square; z has shape (n, ...).

        Raises:
            UnsupportedError: if C has more rows than columns, and therefore no inverse.
        """
        if self.rows != self.n:
            raise UnsupportedError(
                f"{self.describe()} has {self.rows} rows for {self.n} steps and no inverse: use correlate, or"
                " turn it into a square one with strategies.from_factorization."
            )
        return self.correlate(z)


def warn_dense(n: int, what: str) -> None:
    """Warn where an n x n array is about to be made for a large n."""
    if n > 4096:
        message = f"{what} materialises a {n} x {n} array ({n * n * 8 / 2**30:.1f} GiB)."
        warnings.warn(message, PerformanceWarning, stacklevel=3)
