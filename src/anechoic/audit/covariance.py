"""Test of the covariance of emitted noise: C times its rows must be white, of the claimed std.

Every p-value below is exact for W = C E / s with i.i.d. standard normal entries, up to rounding:

* a sum of squares is chi-squared;
* given everything before row u, <W_t, W_u> / ||W_t|| is standard normal for each t < u, so that sums over
  disjoint u are exactly normal;
* below the diagonal of the triangular factor of W (Bartlett's decomposition) entries are i.i.d. standard
  normal, so that the sum of all their squares is chi-squared too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike
from scipy import fft
from scipy.special import log_ndtr

from anechoic._validate import Array, positive_float
from anechoic.audit.observation import inverted
from anechoic.strategies.base import Strategy

#: Most rows for which all pairs are compared, and for which Bartlett's decomposition is taken.
PAIRS_UP_TO = 3000


@dataclass(frozen=True)
class CovarianceTest:
    """Whiteness of C times the emitted noise.

    Attributes:
        p_value: of all tests together (Bonferroni).
        p_values: of each test by name.
        std_ratio: estimated std of the i.i.d. noise over the claimed one.
        entries: numbers that the test rests on, n * m.
    """

    p_value: float
    p_values: dict[str, float]
    std_ratio: float
    entries: int

    @property
    def worst(self) -> str:
        """Name of the test with the least p-value."""
        return min(self.p_values, key=lambda name: self.p_values[name])


def covariance_test(strategy: Strategy, noise: ArrayLike, noise_std: float) -> CovarianceTest:
    """Test emitted noise rows against noise_std * C^-1 Z.

    The tests: "scale" (std over all entries), "row scale" (std of single steps), "mean", "shape" (normal law
    of single entries), "row lag" and "coordinate lag" (correlation at every lag, of steps and of
    coordinates), "row pair" (any two steps, as where a row is used again), "portmanteau" (all of them).

    Args:
        strategy: C, square.
        noise: emitted rows in clip norms, shape (n, m).
        noise_std: claimed std of one entry of Z, over the clip norm.

    Raises:
        UnsupportedError: if C is not square.
        ValueError: if shapes do not fit.
    """
    white = inverted(strategy, noise) / positive_float("noise_std", noise_std)
    if white.ndim != 2 or not white.size:
        raise ValueError(f"noise has shape {white.shape}: (steps, coordinates) is needed.")
    n, m = white.shape
    squares = np.square(white).sum(axis=1)
    found = {
        "scale": float(_two_sided_chi2(squares.sum(), n * m)),
        "row scale": _least(_two_sided_chi2(squares, m)),
        "mean": _least(_two_sided(np.array([white.sum() / np.sqrt(n * m)]))),
        "shape": float(scipy.stats.kstest(white.ravel(), "norm").pvalue),
    }
    if n > 1:
        found["row lag"] = _lags(white)
    if m > 1:
        found["coordinate lag"] = _lags(white.T)
    if 1 < n <= PAIRS_UP_TO:
        found["row pair"] = _pairs(white)
        if n <= m:
            found["portmanteau"] = _bartlett(white)
    ratio = float(np.sqrt(squares.sum() / (n * m)))
    return CovarianceTest(min(1.0, len(found) * min(found.values())), found, ratio, n * m)


def _least(p_values: Array) -> float:
    return min(1.0, float(p_values.min()) * p_values.size)


def _two_sided(z: Array) -> Array:
    return np.asarray(np.minimum(1.0, 2.0 * np.exp(log_ndtr(-np.abs(z)))))


def _two_sided_chi2(value: ArrayLike, freedom: int) -> Array:
    return np.asarray(
        2.0 * np.minimum(scipy.stats.chi2.sf(value, freedom), scipy.stats.chi2.cdf(value, freedom))
    )


def _lags(white: Array) -> float:
    """Correlation of row u with row u - h, summed over u: standard normal for every lag h."""
    n = len(white)
    units = _units(white)
    size = fft.next_fast_len(2 * n - 1, real=True)
    step = max(1, 4_000_000 // size)  # columns at a time
    total = np.zeros(size)
    for start in range(0, white.shape[1], step):
        block = slice(start, start + step)
        product = fft.rfft(white[:, block], size, axis=0) * fft.rfft(units[:, block], size, axis=0).conj()
        total += fft.irfft(product, size, axis=0).sum(axis=1)
    lags = np.arange(1, n)
    return _least(_two_sided(total[lags] / np.sqrt(n - lags)))


def _pairs(white: Array) -> float:
    products = _units(white) @ white.T
    return _least(_two_sided(products[np.triu_indices(len(white), 1)]))


def _bartlett(white: Array) -> float:
    lower = np.asarray(np.linalg.qr(white.T, mode="r")).T
    n = len(white)
    inside = lower[np.tril_indices(n, -1)]
    return float(scipy.stats.chi2.sf(np.square(inside).sum(), n * (n - 1) // 2))


def _units(white: Array) -> Array:
    norms = np.sqrt(np.square(white).sum(axis=1, keepdims=True))
    return np.asarray(np.divide(white, norms, out=np.zeros_like(white), where=norms > 0))
