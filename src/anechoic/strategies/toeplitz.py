"""Toeplitz and banded Toeplitz strategies: C is fixed by the first entries of its first column."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from anechoic._serialize import serializable
from anechoic._validate import Array, decaying, finite_array, positive_int, rows_of, steps_within
from anechoic.algebra import generating, toeplitz
from anechoic.algebra.generating import GeneratingFunction
from anechoic.errors import UnsupportedError
from anechoic.noise.recurrence import Autoregressive, Recurrence
from anechoic.strategies.base import SquareStrategy, StoredArray, Structure, store_fields
from anechoic.workloads.base import Workload, checked_workload

MOST_STEPS = 2**27  # whose coefficients are held, in about 1 GB


@dataclass(frozen=True, eq=False, repr=False)
class _ToeplitzStrategy(SquareStrategy):
    """Shared algebra; `band` holds the leading coefficients, those after it are zero."""

    band: ArrayLike

    def __post_init__(self) -> None:
        n = positive_int("n", self.n)
        band = finite_array("coefficients", self.band)
        if band[0] <= 0:
            raise ValueError(f"coefficients[0]={band[0]} must be > 0: it is the diagonal of C.")
        store_fields(self, n=n, band=band)
        self._check_length(len(band))

    def _check_length(self, length: int) -> None:
        raise NotImplementedError  # pragma: no cover - abstract

    _c = StoredArray("band")

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
        return Autoregressive(self.n, window=window, row=lambda t: c[: min(window, t + 1)], stationary=True)

    def truncate(self, steps: int) -> Self:
        steps = steps_within(self.n, steps)
        return type(self)(steps, self._c[:steps])


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
        return cls(checked_workload(workload).n, power_coefficients(workload, 0.5, workload.n))

    @classmethod
    def power(cls, workload: Workload, exponent: float) -> Toeplitz:
        """C = A^exponent: 0 is the identity, 1/2 the square root, 1 output perturbation.

        For A_pre that is C(x) = (1 - x)^(-exponent); its inverse's coefficients are binomials.

        Args:
            workload: a Toeplitz workload.
            exponent: any real number.

        Raises:
            ValueError: if the workload is not Toeplitz, or a coefficient leaves the range of numbers.
        """
        if isinstance(exponent, bool) or not isinstance(exponent, (int, float)):
            raise ValueError(f"exponent={exponent!r} must be a real number, such as 0.5.")
        return cls(workload.n, power_coefficients(workload, float(exponent), workload.n))

    @classmethod
    def damped(cls, n: int, damping: float) -> Toeplitz:
        """The nu-damped square root: $c_t = (2t choose t) / 4^t (1 - damping)^t$ (monograph, Eq. 3.27).

        C^-1 is generated by $sqrt(1 - (1 - damping) x)$. For mean estimation with learning rate eta, damping
        = eta is the best of all causal Toeplitz strategies as n grows (paper 000, Theorem 2.1). The column
        norms stay bounded, so that it needs no horizon.

        Args:
            n: steps, >= 1; for ever, see `endless.damped`.
            damping: nu in [0, 1).

        Raises:
            ValueError: if an argument is out of range.
        """
        n, kept = positive_int("n", n), 1.0 - decaying("damping", damping)
        return cls(n, toeplitz.power(np.array([1.0, -kept]), -0.5, _held(n)))

    @classmethod
    def from_generating_function(cls, r: GeneratingFunction | ArrayLike, n: int) -> Toeplitz:
        """C^-1 with the first n Taylor coefficients of r as its first column, C with those of 1/r.

        For prefix sums $r(x) = sqrt(1 - x)$ is optimal (monograph, Theorem 2.26).

        Args:
            r: a vectorised function of complex numbers, analytic in the open unit disc, real on the real
                line, r(0) > 0; or the leading coefficients of C^-1, those after them being 0.
            n: steps, >= 1.

        Raises:
            ValueError: if r is not what it must be; see `generating.series`.

        Example:
            >>> C = Toeplitz.from_generating_function(lambda x: (1 - x) ** 0.5, 4)
            >>> [round(float(c), 4) for c in C.coefficients]
            [1.0, 0.5, 0.375, 0.3125]
        """
        return cls(n, generating.inverse_of(r, n))


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

    @classmethod
    def square_root(cls, workload: Workload, bands: int) -> BandedToeplitz:
        """BSR: the first `bands` coefficients of A^(1/2), for any Toeplitz workload (arXiv 2405.13763).

        Args:
            workload: a Toeplitz workload.
            bands: 1 <= bands <= n.

        Raises:
            ValueError: for bad arguments, or a workload that is not Toeplitz.
        """
        bands = positive_int("bands", bands)
        if bands > checked_workload(workload).n:
            raise ValueError(f"bands={bands} must be at most n={workload.n}: A^(1/2) has no more of them.")
        return cls(workload.n, power_coefficients(workload, 0.5, bands))

    def describe(self) -> str:
        return f"BandedToeplitz(n={self.n}, bands={len(self._c)})"


def power_coefficients(workload: Workload, exponent: float, count: int) -> Array:
    """First `count` coefficients of A^exponent for a Toeplitz workload, shape (count,).

    Where the series of A is a quotient of short polynomials, powers of these are used: for A_pre, which is
    1 / (1 - x), they are binomials.

    Raises:
        ValueError: if the workload is not Toeplitz.
    """
    checked_workload(workload)
    if not workload.is_toeplitz:
        raise ValueError(
            f"workload={type(workload).__name__} is not Toeplitz: leave learning rates out of the design."
        )
    leading = workload.truncate(_held(count))
    above, below = leading.fraction
    if max(len(above), len(below)) > toeplitz.MILLER:
        return toeplitz.power(leading.coefficients, exponent, count)
    root = toeplitz.power(below, -exponent, count)
    return (
        root
        if len(above) == 1 and above[0] == 1.0
        else toeplitz.product(toeplitz.power(above, exponent, count), root, count)
    )


def square_root_coefficients(workload: Workload, count: int) -> Array:
    """First `count` coefficients of A^(1/2) for a Toeplitz workload; see `power_coefficients`."""
    return power_coefficients(workload, 0.5, count)


def _held(count: int) -> int:
    if count > MOST_STEPS:
        raise UnsupportedError(f"{count} coefficients are more than the {MOST_STEPS} held: take a BLT.")
    return count
