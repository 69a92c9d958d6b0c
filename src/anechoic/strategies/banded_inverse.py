"""Banded inverses: C^-1 is Toeplitz with few bands, so that noise is a moving average of fresh rows."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate

import numpy as np
import scipy
from numpy.typing import ArrayLike

from anechoic._serialize import serializable
from anechoic._validate import Array, decaying, finite_array, fraction, positive_int, rows_of, steps_within
from anechoic.algebra import toeplitz
from anechoic.errors import UnsupportedError
from anechoic.noise.recurrence import MovingAverage, Recurrence
from anechoic.strategies.base import SquareStrategy, StoredArray, Structure, store_fields
from anechoic.strategies.blt import BLT
from anechoic.strategies.toeplitz import BandedToeplitz, power_coefficients
from anechoic.workloads.base import Workload, checked_workload

# Coefficients of C below this, relative to the largest one, are left out: they change no digit of any norm.
NEGLIGIBLE = 1e-200
PIECE = 4096  # coefficients of the first piece that C is computed in; each further one is twice as long
ACCURACY = 1e-9  # relative error of any norm of C from which on its coefficients are not used
EXACT_BANDS = 4096  # bands up to which the theorem for falling coefficients is checked in exact arithmetic


@serializable
@dataclass(frozen=True, eq=False, repr=False)
class BandedInverse(SquareStrategy):
    """C with Toeplitz C^-1 of few bands: row t of the noise is sum_j inverse_coefficients[j] z_{t-j}.

    The stream needs the last fresh rows only, and `NoiseStream(memory="regenerate")` not even those. One band
    is independent noise, two are the one-parameter mechanism.

    Args:
        n: steps, >= 1.
        inverse_coefficients: the first column of C^-1, shape (bands,), bands <= n, the first one > 0; those
            after them are zero.

    Norms of C, and with them sensitivities, are within 1e-9 of the true ones for these float64 coefficients:
    `toeplitz.accurate_inverse` bounds their error. Where a series with several zeros close together near the
    unit circle, or inside it, does not allow that, asking for them raises UnsupportedError.

    Raises:
        ValueError: for a first coefficient <= 0, or more coefficients than steps.

    References:
        Kalinin and others, arXiv 2505.12128 (BISR), 2601.22334 (lambda-CGD), 2605.18379 (fractional powers).
    """

    inverse_coefficients: ArrayLike

    def __post_init__(self) -> None:
        n = positive_int("n", self.n)
        inverse = finite_array("inverse_coefficients", self.inverse_coefficients)
        if inverse[0] <= 0:
            raise ValueError(
                f"inverse_coefficients[0]={inverse[0]} must be > 0: it is the diagonal of the inverse of C."
            )
        if len(inverse) > n:
            raise ValueError(
                f"inverse_coefficients has {len(inverse)} entries but n={n}: drop those beyond step n."
            )
        store_fields(self, n=n, inverse_coefficients=inverse)

    @classmethod
    def square_root(cls, workload: Workload, bands: int) -> BandedInverse:
        """BISR: the first `bands` coefficients of A^(-1/2) (arXiv 2505.12128).

        Args:
            workload: a Toeplitz workload; momentum and weight decay are welcome.
            bands: 1 <= bands <= n.

        Raises:
            ValueError: for bad arguments, or a workload that is not Toeplitz.
        """
        return cls.fractional(workload, 0.5, bands)

    @classmethod
    def fractional(cls, workload: Workload, power: float, bands: int) -> BandedInverse:
        """The first `bands` coefficients of A^(-power); for prefix sums those of (1 - x)^power (gamma-BIFR).

        With few bands the best power is near 1; with more of them it falls to 1/2 and below. Two bands give
        `one_parameter(n, power)`.

        Args:
            workload: a Toeplitz workload.
            power: in (0, 1); 1/2 is `square_root`.
            bands: 1 <= bands <= n.

        Raises:
            ValueError: for bad arguments, or a workload that is not Toeplitz.

        References:
            arXiv 2605.18379.
        """
        checked_workload(workload)
        if not workload.is_toeplitz:
            raise ValueError("workload is not Toeplitz: leave its learning rates out of the design.")
        power = fraction("power", power, remedy="1 is output perturbation, strategies.Output.")
        bands = positive_int("bands", bands)
        if bands > workload.n:
            raise ValueError(f"bands={bands} must be at most n={workload.n}: C^-1 has no more coefficients.")
        return cls(workload.n, power_coefficients(workload, -power, bands))

    @classmethod
    def one_parameter(cls, n: int, decay: float) -> BandedInverse:
        """C[t, s] = decay^(t - s): every step takes back the part `decay` of the noise of the step before.

        The simplest mechanism between independent noise (decay 0) and output perturbation (decay 1), Eq.
        (1.20) of the monograph, and lambda-CGD of arXiv 2601.22334. All that concerns it is in closed form:
        n = 10**9 costs what n = 10**3 costs.

        Args:
            n: steps, >= 1.
            decay: lambda in [0, 1).

        Raises:
            ValueError: for bad arguments.
        """
        n = positive_int("n", n)
        decay = decaying("decay", decay, remedy="1 is output perturbation, strategies.Output.")
        return cls(n, np.array([1.0, -decay])[:n])

    _inverse = StoredArray("inverse_coefficients")

    @property
    def bands(self) -> int:
        """Bands of C^-1: one more than the largest lag at which it is not zero."""
        return int(np.flatnonzero(self._inverse)[-1]) + 1

    @cached_property
    def structure(self) -> Structure:
        n = self.n
        if self.bands == 1 or n == 1:
            return Structure(1, 1, toeplitz=True, nonnegative=True, nonincreasing=True)
        nonnegative = bool((self._inverse[1:] <= 0).all())  # then c_t is a sum of products of numbers >= 0
        falling = nonnegative and inverse_falls(self._inverse[: self.bands])
        if not falling:
            # a property of the numbers that norms are computed from, which are those of C to rounding
            c = self._leading
            nonnegative = nonnegative or bool((c >= 0).all())
            falling = nonnegative and bool((np.diff(c) <= 0).all())
        return Structure(n, n, toeplitz=True, nonnegative=nonnegative, nonincreasing=falling)

    @property
    def _leading(self) -> Array:
        """Coefficients of C up to where the rest is negligible; at least one, at most n."""
        return self._known[0]

    @cached_property
    def _known(self) -> tuple[Array, bool]:
        """`_leading`, and whether the plain recursion loses too many digits, so that it was refined."""
        inverse = self._inverse[: self.bands]
        plain = leading_coefficients(inverse, self.n)
        if not np.isfinite(plain).all():
            raise UnsupportedError(
                f"the coefficients of C grow beyond float64 within n={self.n} steps: the power series of"
                " inverse_coefficients has a zero inside the unit circle. Choose smaller ones."
            )
        c, bound = toeplitz.accurate_inverse(inverse, plain, ACCURACY)
        left = self.n - len(c)
        if left > 0:  # leaving them out changes the residuals of the steps of their first lags
            sums = np.cumsum(np.abs(inverse))
            back = np.arange(min(len(inverse) - 1, len(c)))  # c_{last - i} meets lags i < j <= left + i
            after = sums[np.minimum(left + back, len(inverse) - 1)] - sums[back]
            bound += float(after @ np.abs(c[::-1][: len(back)]))
        if not bound <= 2 * ACCURACY:
            raise UnsupportedError(
                f"the coefficients of C for n={self.n} steps are known to a relative error of {bound:.2g}"
                f" only, but a sensitivity needs {ACCURACY:g}: the power series of inverse_coefficients has"
                " zeros too close together near the unit circle, or inside it. Move them outwards, by"
                " coefficient j times 0.99**j, or choose fewer bands or steps."
            )
        c.setflags(write=False)
        return c, c is not plain

    @cached_property
    def _closed(self) -> BLT | None:
        """C times inverse_coefficients[0] where its coefficients are the powers of a number in (0, 1)."""
        if self.bands == 2 and 0.0 < -self._inverse[1] < self._inverse[0]:
            decay = np.array([-self._inverse[1] / self._inverse[0]])
            return BLT(self.n, decay, decay)
        return None

    @property
    def coefficients(self) -> Array:
        return np.pad(self._leading, (0, self.n - len(self._leading)))

    def multiply(self, x: ArrayLike) -> Array:
        c, refined = self._known
        if refined:  # sensitivities are computed from this too
            return toeplitz.multiply(c, rows_of(self.n, x))
        return toeplitz.solve(self._inverse, rows_of(self.n, x))

    def solve(self, z: ArrayLike) -> Array:
        return toeplitz.multiply(self._inverse, rows_of(self.n, z))

    def to_dense(self) -> Array:
        return toeplitz.dense(self._leading, self.n)

    def column_norms_squared(self) -> Array:
        return BandedToeplitz(self.n, self._leading).column_norms_squared()

    def largest_column_norm(self) -> float:
        if self._closed is not None:
            return self._closed.largest_column_norm() / float(self._inverse[0])
        return float(np.sqrt(np.square(self._leading).sum()))

    def comb_norm_squared(self, separation: int, count: int) -> float:
        if self._closed is not None:
            return self._closed.comb_norm_squared(separation, count) / float(self._inverse[0]) ** 2
        c = self._leading
        if len(c) <= separation:  # teeth do not meet: each is a column, cut at step n
            squares = np.cumsum(np.square(c))
            kept = np.minimum(len(c), self.n - separation * np.arange(count))
            return float(squares[kept - 1].sum())
        return BandedToeplitz(self.n, c).comb_norm_squared(separation, count)

    def recurrence(self) -> Recurrence:
        window, inverse = self.bands, self._inverse
        return MovingAverage(
            self.n, window=window, row=lambda t: inverse[: min(window, t + 1)], stationary=True
        )

    def truncate(self, steps: int) -> BandedInverse:
        steps = steps_within(self.n, steps)
        return BandedInverse(steps, self._inverse[:steps])

    def describe(self) -> str:
        return f"BandedInverse(n={self.n}, bands={len(self._inverse)})"


def leading_coefficients(inverse: Array, n: int) -> Array:
    """Coefficients of 1/inverse(x) below x^n, up to where the rest is negligible; infinite if they grow."""
    order = len(inverse) - 1
    if order == 0:
        return np.array([1.0 / inverse[0]])
    past, pieces, done, largest = np.zeros(order), [], 0, 0.0
    length = max(PIECE, 2 * order)
    while done < n:
        length = min(length, n - done)
        impulse = np.zeros(length)
        impulse[0] = 1.0 if done == 0 else 0.0
        piece, past = scipy.signal.lfilter([1.0], inverse, impulse, zi=past)
        pieces.append(piece)
        largest = max(largest, float(np.abs(piece).max()))
        # the rest solves the same recursion from the last `order` numbers, so it is at most `order` times the
        # largest of them, times sum |inverse|, times the largest coefficient
        if not largest < np.inf or (length >= order and np.abs(piece[-order:]).max() <= NEGLIGIBLE * largest):
            break
        done, length = done + length, 2 * length
    c = np.concatenate(pieces)
    living = np.flatnonzero(np.abs(c) > NEGLIGIBLE * largest) if largest < np.inf else [len(c) - 1]
    return np.asarray(c[: int(living[-1]) + 1])


def inverse_falls(inverse: Array) -> bool:
    """Whether 1/inverse(x), for inverse_j <= 0 from j = 1 on, is proven to have falling coefficients >= 0.

    Let S_j be the running sums of `inverse`, the series of inverse(x) / (1 - x). If they are > 0 and
    log-convex, S_j^2 <= S_{j-1} S_{j+1}, then by Kaluza's theorem all coefficients of (1 - x) / inverse(x)
    but the first are <= 0, and these are the differences of the coefficients of C. Computed in exact
    arithmetic. False says nothing.

    References:
        Kaluza, Mathematische Zeitschrift 28 (1928). The truncated (1 - x)^power meets the condition.
    """
    if len(inverse) == 2:
        return bool(-inverse[1] <= inverse[0])  # powers of a number in [0, 1]
    if len(inverse) > EXACT_BANDS:
        return False
    # from the last one on they are equal, and meet the condition as inverse_j <= 0
    sums = list(accumulate(Fraction(float(value)) for value in inverse))
    return sums[-1] > 0 and all(b * b <= a * c for a, b, c in zip(sums, sums[1:], sums[2:], strict=False))
