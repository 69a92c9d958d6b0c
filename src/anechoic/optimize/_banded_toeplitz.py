"""The best banded Toeplitz strategy for any Toeplitz workload (monograph, Section 4.3.1).

Let a(x), c(x) be the power series of A and C. B = A C^-1 has the series b = a/c, the squared error is
sum_t v_t b_t^2 with v_t = (n - t)/n for RMS and 1 for max, and with h = b/c the derivative of b by c_j is
-x^j h: the whole gradient is one correlation of v b with h, at lags 0 to bands - 1.
"""

from __future__ import annotations

import time

import numpy as np
from scipy import fft
from scipy.optimize import minimize
from scipy.signal import lfilter

from anechoic import toeplitz
from anechoic._validate import Array, one_of, positive_int
from anechoic.errors import UnsupportedError
from anechoic.optimize.result import Optimized, finish
from anechoic.optimize.schema import SINGLE, comb_of
from anechoic.participation import Participation
from anechoic.strategies import BandedToeplitz
from anechoic.strategies.toeplitz import square_root_coefficients
from anechoic.workloads import Workload

# Bands from which divisions and correlations are faster through the FFT, measured: between 110 and 160 for
# n = 10^3 to 10^5.
FFT_FROM = 128
OPTIONS = {"maxiter": 1000, "maxfun": 1500, "gtol": 1e-7, "ftol": 1e-12, "maxcor": 20}


def banded_toeplitz(
    workload: Workload, *, bands: int, participation: Participation = SINGLE, loss: str = "rms"
) -> Optimized:
    """The Toeplitz strategy with at most `bands` bands of smallest loss, by L-BFGS on exact gradients.

    One evaluation costs O(n min(bands, log n)) time and O(n) memory; 10 to 30 are needed. Deterministic.

    For one participation, or `bands` at most the separation, coefficients are free: columns that one unit
    can touch are orthogonal, and the sensitivity is exact whatever the signs (Lemma 3.16 b). For more
    bands than that the coefficients are kept non-negative and non-increasing, so that Lemma 3.16 (c) gives
    it, unless free ones with as many bands as the separation do at least as well.

    Guarantee: the loss is that of the returned strategy, with exact sensitivity; it is a local minimum.

    Args:
        workload: a Toeplitz workload, n steps.
        bands: 1 <= bands <= n; n bands give the optimal Toeplitz strategy.
        participation: Single (default), Cyclic, MinSep or FullBatch.
        loss: "rms" or "max" over the steps.

    Returns:
        The strategy, scaled to ||c|| = 1 (its noise std is then the noise multiplier of one participation),
        its loss, and for prefix sums with one participation a lower bound for all strategies.

    Raises:
        ValueError: for bad arguments, bands > n, or a workload with learning rates.
        UnsupportedError: for schemas without a known worst pattern (it is a ValueError too).

    Example:
        >>> from anechoic import workloads
        >>> round(banded_toeplitz(workloads.prefix_sum(1024), bands=32).loss, 4)
        4.9556

    References:
        Monograph, Section 4.3.1 and Eq. (4.11).
    """
    started = time.perf_counter()
    kind = one_of("loss", loss, ("max", "rms"))
    if not isinstance(workload, Workload):
        raise ValueError(f"workload={workload!r} must be a Workload, such as workloads.prefix_sum(n).")
    if not workload.is_toeplitz:
        raise UnsupportedError(
            f"workload={type(workload).__name__} has learning rates and is not Toeplitz: leave them out of"
            " the design (prefix_sum(n) serves every optimiser well)."
        )
    n = workload.n
    bands = positive_int("bands", bands)
    if bands > n:
        raise ValueError(f"bands={bands} must be at most n={n}: bands=n gives the optimal Toeplitz strategy.")
    objective = _Objective(workload, comb_of(participation, n), kind)
    start = square_root_coefficients(workload, bands)
    if bands <= objective.separation:
        column = _free(objective, start)
    else:
        fewer = _free(objective, start[: objective.separation])
        falling = _falling(objective, np.concatenate([fewer / fewer[0], start[len(fewer) :]]))
        column = min(fewer, falling, key=lambda c: objective(c)[0])
    strategy = BandedToeplitz(n, column / np.sqrt(np.square(column).sum()))
    return finish(strategy, workload, participation, kind, evaluations=objective.evaluations, started=started)


class _Objective:
    """log(sensitivity * error) of a first column c, shape (bands,), and its gradient."""

    def __init__(self, workload: Workload, comb: tuple[int, int], kind: str) -> None:
        n = workload.n
        self.a = workload.coefficients
        self.v = np.ones(n) if kind == "max" else (n - np.arange(n, dtype=np.float64)) / n
        self.separation, self.count = comb
        self.evaluations = 0

    def __call__(self, c: Array) -> tuple[float, Array]:
        self.evaluations += 1
        sensitivity, by_sensitivity = self._sensitivity(c)
        with np.errstate(over="ignore", invalid="ignore"):
            b, h = _divide_twice(self.a, c)
            weighted = self.v * b
            error = float(weighted @ b)
            # a step of the line search may leave the region where 1/c stays bounded: send it back
            if not np.isfinite(error) or not np.isfinite(h).all():
                return 1e10, np.zeros_like(c)
            gradient = by_sensitivity / sensitivity - _correlate(weighted, h, len(c)) / error
        return 0.5 * float(np.log(sensitivity * error)), gradient

    def _sensitivity(self, c: Array) -> tuple[float, Array]:
        """|| sum_{j < count} C[:, j separation] ||^2, and half its gradient."""
        n, b, k = len(self.a), self.separation, self.count
        if len(c) <= b:
            # tooth j keeps the entries above row n: c_t where t + j b < n
            kept = np.minimum(k, -(-(n - np.arange(len(c))) // b))
            return float(kept @ np.square(c)), kept * c
        length = min(n, (k - 1) * b + len(c))
        grid = np.zeros((-(-length // b), b))
        grid.flat[: len(c)] = c
        sums = _window(grid, k)
        sums.flat[length:] = 0.0
        teeth = _window(sums[::-1], k)[::-1].reshape(-1)
        return float(np.square(sums).sum()), teeth[: len(c)]


def _window(grid: Array, count: int) -> Array:
    """Sums of each row of `grid` and the count - 1 rows before it."""
    sums = np.cumsum(grid, axis=0)
    if len(sums) > count:
        sums[count:] -= sums[:-count].copy()
    return sums


def _free(objective: _Objective, start: Array) -> Array:
    """Coefficients of any sign."""
    return np.asarray(minimize(objective, start, jac=True, method="L-BFGS-B", options=OPTIONS).x)


def _falling(objective: _Objective, start: Array) -> Array:
    """Coefficients that do not increase and are >= 0: running sums, from the end, of drops >= 0."""
    drops = np.maximum(-np.diff(np.minimum.accumulate(start), append=0.0), 1e-9)
    units = np.sqrt(drops)  # they differ by orders of magnitude

    def by_drops(scaled: Array) -> tuple[float, Array]:
        value, gradient = objective(_from_drops(units * scaled))
        return value, units * np.cumsum(gradient)

    bounds = [(0.0, None)] * len(drops)
    found = minimize(by_drops, drops / units, jac=True, method="L-BFGS-B", bounds=bounds, options=OPTIONS)
    return _from_drops(units * found.x)


def _from_drops(drops: Array) -> Array:
    return np.cumsum(drops[::-1])[::-1]


def _divide_twice(a: Array, c: Array) -> tuple[Array, Array]:
    """a/c and a/c^2 as power series of the length of a."""
    n = len(a)
    if len(c) < FFT_FROM:
        b = np.asarray(lfilter([1.0], c, a))
        return b, np.asarray(lfilter([1.0], c, b))
    inverse = toeplitz.inverse(c, n)
    b = toeplitz.product(a, inverse, n)
    return b, toeplitz.product(b, inverse, n)


def _correlate(x: Array, y: Array, lags: int) -> Array:
    """sum_t x_t y_{t - j} for j < lags."""
    n = len(x)
    if lags < FFT_FROM:
        return np.correlate(np.concatenate([x, np.zeros(lags - 1)]), y, "valid")
    size = fft.next_fast_len(n + lags - 1, real=True)
    return np.asarray(fft.irfft(fft.rfft(x, size) * fft.rfft(y, size).conj(), size)[:lags])
