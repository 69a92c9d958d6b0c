"""Loss and gradient of Toeplitz strategies: what the optimisers of this family share.

Let a(x), c(x) be the power series of A and C. B = A C^-1 has the series b = a/c, and every squared error here
is a quadratic form b^T Q b. With h = b/c the derivative of b by c_j is -x^j h: the whole gradient is one
correlation of Q b with h, at lags 0 to bands - 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from scipy import fft

from anechoic._validate import Array, one_of
from anechoic.algebra import toeplitz
from anechoic.errors import UnsupportedError
from anechoic.losses.norms import KINDS, LossNorm, row_weights, tail_weights
from anechoic.optimize.result import NUMBERS, small_enough
from anechoic.workloads.base import Workload
from anechoic.workloads.optimizers import toeplitz_factor

# Bands from which divisions and correlations are faster through the FFT, measured: between 110 and 160 for
# n = 10^3 to 10^5.
FFT_FROM = 128

Progress = Callable[[int, float], None]


class QuadraticForm(Protocol):
    """A symmetric positive semidefinite matrix Q, given by Q b."""

    def __call__(self, b: Array) -> Array: ...


class ToeplitzObjective:
    """log(sensitivity * error) of a first column c, shape (bands,), and its gradient.

    Args:
        workload: a Toeplitz workload, or restart differences of one (root mean square only).
        comb: separation and count of the worst pattern.
        kind: the loss.
        progress: called with the number of evaluations and the loss.
    """

    def __init__(
        self, workload: Workload, comb: tuple[int, int], kind: LossNorm, progress: Progress | None = None
    ) -> None:
        plain, self.form = quadratic_form(workload, kind)
        self.a = plain.coefficients
        self.separation, self.count = comb
        self.progress = progress
        self.evaluations = 0

    def __call__(self, c: Array) -> tuple[float, Array]:
        self.evaluations += 1
        if c[0] <= 0.0:  # all drops at their bound of 0; the loss does not depend on the scale of c
            return 1e10, np.zeros_like(c)
        sensitivity, by_sensitivity = comb_squared(c, len(self.a), self.separation, self.count)
        with np.errstate(over="ignore", invalid="ignore"):
            b, h = _divide_twice(self.a, c)
            weighted = self.form(b)
            error = float(weighted @ b)
            # a step of the line search may leave the region where 1/c stays bounded: send it back
            if not (np.isfinite(error) and error > 0.0 and np.isfinite(h).all()):
                return 1e10, np.zeros_like(c)
            gradient = by_sensitivity / sensitivity - correlate(weighted, h, len(c)) / error
        value = 0.5 * float(np.log(sensitivity * error))
        if self.progress is not None:
            self.progress(self.evaluations, float(np.exp(value)))
        return value, gradient

    def column_weights(self, bands: int) -> Array:
        """k with sensitivity^2 = sum_j k_j c_j^2, shape (bands,), for bands <= separation and any signs."""
        return _teeth(len(self.a), self.separation, self.count, bands)


def comb_squared(c: Array, n: int, separation: int, count: int) -> tuple[float, Array]:
    """|| sum_{j < count} C[:, j separation] ||^2 of the Toeplitz C of c, n steps, and half its gradient."""
    if len(c) <= separation:
        kept = _teeth(n, separation, count, len(c))
        return float(kept @ np.square(c)), kept * c
    length = min(n, (count - 1) * separation + len(c))
    grid = np.zeros((-(-length // separation), separation))
    grid.flat[: len(c)] = c
    sums = _window(grid, count)
    sums.flat[length:] = 0.0
    return float(np.square(sums).sum()), _window(sums[::-1], count)[::-1].reshape(-1)[: len(c)]


def _teeth(n: int, separation: int, count: int, bands: int) -> Array:
    """In how many teeth of the comb c_t is: tooth j keeps the entries above row n, where t + j b < n."""
    return np.minimum(count, -(-(n - np.arange(bands)) // separation)).astype(float)


def quadratic_form(workload: Workload, kind: LossNorm) -> tuple[Workload, QuadraticForm]:
    """The Toeplitz workload behind `workload`, and Q with squared error b^T Q b for b = a/c.

    With learning rates the error is that form but for what they change within the memory of C^-1: entry
    [t, t - s] of B is taken to be b_s times the rate of its column.

    Raises:
        UnsupportedError: if there is no such workload, or for restart differences another loss than "rms".
    """
    small_enough(workload, NUMBERS // 4)  # transforms of twice the length, of complex numbers
    if isinstance(kind, str):
        one_of("loss", kind, KINDS)
    if workload.restarts is not None and workload.restarts[0].is_toeplitz:
        if not (isinstance(kind, str) and kind == "rms"):
            raise UnsupportedError(f"loss={kind!r} of restart differences: Toeplitz optimisers know 'rms'.")
        base, period = workload.restarts
        return base, RestartForm(workload.n, period)
    if not workload.has_toeplitz_factor:
        raise UnsupportedError(
            f"workload={type(workload).__name__} is not Toeplitz, nor one with learning rates: take"
            " optimize.banded, or optimize.dense."
        )
    if workload.rates is None:
        v = tail_weights(kind, workload.n)
    elif isinstance(kind, str) and kind == "max":
        raise UnsupportedError(
            'loss="max" of a workload with learning rates: Toeplitz optimisers know "rms", "last", weights.'
        )
    else:  # v_s = sum_t w_t eta_{t - s}^2
        weights = row_weights(kind, workload.n)
        v = np.maximum(toeplitz.multiply(np.square(workload.rates), weights[::-1].copy())[::-1], 0.0)
    return toeplitz_factor(workload), lambda b: np.asarray(v * b)


class RestartForm:
    """Q of the mean squared row norm of Lambda_tau A C^-1 (see `RestartDifferences`), applied in O(n).

    With e the end of the period before and l rows since, row e + l - 1 has the squared norm
    sum_i b_i^2 over i < e + l, plus the same over i < e, minus 2 sum_{i < e} b_i b_{i + l}. Its weight is 1/n
    for l = tau and 1/(n tau) otherwise. Summed over the rows, b_i b_{i+l} counts once for every period whose
    predecessor ended after i, so that both parts follow from running sums.
    """

    def __init__(self, n: int, period: int) -> None:
        self.n, self.period = n, period
        self.whole, self.rest = divmod(n, period)  # finished periods, and rows of the one that is cut
        t = np.arange(n)
        local = 1.0 / (n * period)
        rows = np.full(n, local)
        rows[period - 1 :: period] = 1.0 / n
        later = np.cumsum(rows[::-1])[::-1]  # weight of the rows from i on
        # of the rows in periods that begin after i
        begins = (t // period + 1) * period
        self.diagonal = later + np.where(begins < n, later[np.minimum(begins, n - 1)], 0.0)
        self.periods = np.maximum(self.whole - 1 - t // period, 0) * local
        self.cut = np.where(t < self.whole * period, local, 0.0) if self.rest else None

    def __call__(self, b: Array) -> Array:
        n, tau = self.n, self.period
        result = self.diagonal * b
        if self.whole > 1:  # lags 1, …, tau - 1 of weight 1 and lag tau of weight tau, in units of `local`
            scaled = self.periods * b
            result -= self.periods * (_ahead(b, tau) + (tau - 1) * _shifted(b, -tau))
            result -= _behind(scaled, tau) + (tau - 1) * _shifted(scaled, tau)
        if self.cut is not None and self.whole:
            result -= self.cut * _ahead(b, self.rest) + _behind(self.cut * b, self.rest)
        return np.asarray(result[:n])


def _ahead(x: Array, lags: int) -> Array:
    """sum_{l = 1..lags} x_{t + l}."""
    return _behind(x[::-1], lags)[::-1]


def _behind(x: Array, lags: int) -> Array:
    """sum_{l = 1..lags} x_{t - l}."""
    sums = np.concatenate([np.zeros(1), np.cumsum(x)])
    t = np.arange(len(x))
    return np.asarray(sums[:-1] - sums[np.maximum(t - lags, 0)])


def _shifted(x: Array, by: int) -> Array:
    """x_{t - by}, zero outside."""
    result = np.zeros_like(x)
    if by >= 0:
        result[by:] = x[: len(x) - by]
    else:
        result[:by] = x[-by:]
    return result


def _window(grid: Array, count: int) -> Array:
    """Sums of each row of `grid` and the count - 1 rows before it."""
    sums = np.cumsum(grid, axis=0)
    if len(sums) > count:
        sums[count:] -= sums[:-count].copy()
    return sums


def _divide_twice(a: Array, c: Array) -> tuple[Array, Array]:
    """a/c and a/c^2 as power series of the length of a."""
    n = len(a)
    if len(c) < FFT_FROM:
        b = toeplitz.divided(a, c)
        return b, toeplitz.divided(b, c)
    inverse = toeplitz.inverse(c, n)
    b = toeplitz.product(a, inverse, n)
    return b, toeplitz.product(b, inverse, n)


def correlate(x: Array, y: Array, lags: int) -> Array:
    """sum_t x_t y_{t - j} for j < lags."""
    n = len(x)
    if lags < FFT_FROM:
        return np.correlate(np.concatenate([x, np.zeros(lags - 1)]), y, "valid")
    size = fft.next_fast_len(n + lags - 1, real=True)
    return np.asarray(fft.irfft(fft.rfft(x, size) * fft.rfft(y, size).conj(), size)[:lags])
