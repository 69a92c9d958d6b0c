"""Rows of features as integers, so that every sum over them is exact in whatever order BLAS takes it.

Row i is integers[i] * units[i]: its entries are rounded to a power of two of its own, at which its 2-norm
lies below 2**bits and mostly above 2**(bits - 1). Products of such integers, and of sums of them, stay
below 2**53, where float64 holds every integer: a matrix product makes no rounding error, whatever its order.
So what a row adds to a step is a function of that row and of the model alone, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array
from anechoic.errors import UnsupportedError

#: Rows that are worked on at once: a few of them fit into the cache of one core.
BLOCK = 4096
#: float64 holds every integer up to 2**53.
EXACT = 53
#: Most bits of a row: its integers are kept in 16.
MOST_BITS = 15
#: Bits of the first rounding, from which a row's norm is taken.
_FIRST_BITS = 20
#: Most entries of a row: so that what is left for the model has 20 bits.
MOST_FEATURES = 2**18

Small = NDArray[np.int16]
Map = Callable[[Array], Array]


@dataclass(frozen=True, eq=False)
class IntegerRows:
    """Rows on their own grids.

    Attributes:
        integers: shape (N, m), of 2-norm about 2**bits at most; `squares` has it exactly.
        units: powers of two, shape (N,).
        squares: sum of squares of the integers of each row, shape (N,), exact.
    """

    integers: Small
    units: Array
    squares: NDArray[np.int64]

    @classmethod
    def of(cls, features: Array, bits: int, mapped: Map) -> IntegerRows:
        """Of features, block by block.

        Args:
            features: shape (N, d), finite.
            bits: at most `MOST_BITS`.
            mapped: from a block of them, shape (k, d), to rows, shape (k, m); entry by entry.

        Raises:
            UnsupportedError: for more than `MOST_FEATURES` entries.
        """
        count = len(features)
        m = mapped(np.zeros((1, features.shape[1]))).shape[1]
        found = cls(np.empty((count, m), np.int16), np.empty(count), np.empty(count, np.int64))
        for part in blocks(count):
            rows = mapped(np.asarray(features[part], dtype=np.float64))
            found.integers[part], found.units[part], found.squares[part] = rounded_rows(rows, bits)
        return found

    @property
    def count(self) -> int:
        """N."""
        return len(self.integers)

    @property
    def dimension(self) -> int:
        """m, entries of a row."""
        return self.integers.shape[1]

    def scores(self, weights: Array) -> Callable[[Array, Array], Array]:
        """From (integers, units) of some rows to those rows times weights, shape (outputs, rows).

        Each is a function of its row and of the weights alone: these are rounded to a common power of two
        first, at which no partial sum reaches 2**53.

        Args:
            weights: shape (outputs, m).
        """
        spare = EXACT - MOST_BITS - 1 - math.ceil(math.log2(max(2, self.dimension)))
        peak = float(np.abs(weights).max(initial=0.0))
        if not math.isfinite(peak):
            return lambda integers, units: np.full((len(weights), len(units)), math.nan)
        exponent = math.frexp(peak)[1] - spare
        rounded, unit = np.rint(np.ldexp(weights, -exponent)), math.ldexp(1.0, exponent)
        return lambda integers, units: np.asarray((rounded @ integers.T) * (units * unit))


def blocks(count: int, size: int = BLOCK) -> Iterator[slice]:
    """Slices of at most `size` that cover `count` rows."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def rounded_rows(rows: Array, bits: int) -> tuple[Small, Array, NDArray[np.int64]]:
    """(integers, units, squares) of a block of rows; zeros where an entry is not finite."""
    m = rows.shape[1]
    if m > MOST_FEATURES:
        raise UnsupportedError(
            f"a row has {m} entries, and at most {MOST_FEATURES} are supported: take fewer features."
        )
    good, exponents, norms = exact_norms(rows)
    if not good.all():
        rows = np.where(good[:, None], rows, 0.0)
    shift = np.frexp(norms)[1] - bits
    exponents = exponents + shift
    most = 2.0**bits - 1.0
    whole = np.clip(np.rint(np.ldexp(rows, -exponents[:, None])), -most, most)
    squares = np.einsum("ij,ij->i", whole, whole).astype(np.int64)
    return whole.astype(np.int16), np.ldexp(1.0, exponents), squares


def exact_norms(rows: Array) -> tuple[NDArray[np.bool_], NDArray[np.int64], Array]:
    """(which are finite and not zero, exponents, norms): the 2-norm of row i is norms[i] * 2**exponents[i].

    Each is a function of its row alone, bit for bit: entries are rounded to 2**exponents[i], at which the
    largest has 20 bits, and squares of integers add up without rounding. So it is off by less than
    root(m) * 2**-20 of itself.
    """
    peaks = np.abs(rows).max(axis=1, initial=0.0)
    good = np.isfinite(peaks) & (peaks > 0.0)
    whole = rows if good.all() else np.where(good[:, None], rows, 0.0)
    first = min(_FIRST_BITS, (EXACT - math.ceil(math.log2(max(2, rows.shape[1])))) // 2)
    exponents = np.frexp(np.where(good, peaks, 1.0))[1] - first
    whole = np.rint(np.ldexp(whole, -exponents[:, None]))
    return good, exponents, np.sqrt(np.einsum("ij,ij->i", whole, whole))
