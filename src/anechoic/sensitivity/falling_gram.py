"""Toeplitz C whose Gram matrix falls with the lag from the separation on: the comb is the worst pattern."""

from __future__ import annotations

import numpy as np
import scipy

from anechoic._validate import Array
from anechoic.sensitivity import theorems
from anechoic.sensitivity.limits import TIGHT
from anechoic.sensitivity.result import Sensitivity
from anechoic.strategies.base import Strategy


def work(strategy: Strategy, separation: int, count: int) -> int:
    """Numbers that go through transforms in `later_and_farther`."""
    n, bands = strategy.n, strategy.structure.bands
    cut = min(
        count - 1, -(-bands // separation)
    )  # columns of the comb that step n cuts short, and a whole one
    return 4 * min(n, 2 * bands) * (cut + 2)


def later_and_farther(strategy: Strategy, separation: int, count: int) -> Sensitivity:
    """sens^2 <= sum_{p, q < k} max of r(max(p, q), lag) over lags >= |p - q| b, for Toeplitz C.

    r(q, lag) = sum_{u < n - q b} |c_u c_{u + lag}| is the entry of |C|^T |C| at (q b - lag, q b), continued
    upwards where lag > q b. It falls as q grows, and the p-th and q-th step of a pattern have t' >= q b and
    t' - t >= (q - p) b. So each pair of participations is bounded on its own. Where C >= 0 and every maximum
    lies at lag = (q - p) b, the comb 0, b, 2b, … attains all of them at once: Lemma 3.16(c) without falling
    coefficients, of which only the products at lags >= b have to fall. The value is exact where it does.
    """
    n, b = strategy.n, separation
    c = np.abs(strategy.coefficients[: strategy.structure.bands])
    c = c[: int(np.flatnonzero(c)[-1]) + 1]
    squares = np.cumsum(np.square(c))
    size = scipy.fft.next_fast_len(2 * len(c), real=True)
    spectrum = scipy.fft.rfft(c, size)
    bound, terms = float(squares[-1]), np.zeros(0)
    for q in range(1, count):
        kept = min(len(c), n - q * b)
        if kept < len(c) or not len(terms):
            terms = _largest_from(c, spectrum, kept, b)
        bound += float(squares[kept - 1]) + 2.0 * float(terms[1 : q + 1].sum())
    attained = strategy.comb_norm_squared(b, count) >= (1.0 - TIGHT) * bound  # rows of U all equal
    word = ", attained by the comb" if attained else ""
    return Sensitivity.of_squared(
        bound, attained, f"|C|^T |C| later and farther apart{word}", theorems.FALLING_PRODUCTS
    )


def _largest_from(c: Array, spectrum: Array, kept: int, separation: int) -> Array:
    """max over lags >= j b of sum_{u < kept} c_u c_{u + lag}, for j b < len(c)."""
    size = scipy.fft.next_fast_len(2 * len(c), real=True)
    products = scipy.fft.irfft(spectrum * scipy.fft.rfft(c[:kept], size).conj(), size)[: len(c)]
    largest = np.maximum.accumulate(np.maximum(products, 0.0)[::-1])[::-1]
    return np.asarray(largest[::separation])
