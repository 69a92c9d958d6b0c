"""Algebra of lower-triangular Toeplitz matrices: first columns as power series modulo x^n.

A lower-triangular Toeplitz matrix is fixed by its first column; products, inverses and roots of
such matrices are those of the power series. Series longer than `FFT_FROM` go through the FFT.
"""

from __future__ import annotations

import numpy as np
from scipy import fft

from anechoic._validate import Array

FFT_FROM = 256
MILLER = 16  # terms of a series up to which its powers are made by recursion


def product(a: Array, b: Array, n: int) -> Array:
    """First n coefficients of a(x) b(x)."""
    a, b = a[:n], b[:n]
    if min(len(a), len(b)) <= 32 or len(a) + len(b) <= FFT_FROM:
        full = np.convolve(a, b)[:n]
    else:
        size = fft.next_fast_len(min(len(a) + len(b) - 1, 2 * n), real=True)
        full = fft.irfft(fft.rfft(a, size) * fft.rfft(b, size), size)[: min(n, len(a) + len(b) - 1)]
    return np.pad(full, (0, n - len(full)))


def multiply(c: Array, x: Array) -> Array:
    """C x for the Toeplitz matrix C with first column `c` (padded with zeros), along axis 0."""
    from scipy.signal import lfilter

    n = len(x)
    c = c[:n]
    if len(c) <= 64 or n <= FFT_FROM:
        return np.asarray(lfilter(c, [1.0], x, axis=0))
    size = fft.next_fast_len(n + len(c) - 1, real=True)
    spectrum = fft.rfft(c, size).reshape((-1,) + (1,) * (x.ndim - 1))
    return np.asarray(fft.irfft(spectrum * fft.rfft(x, size, axis=0), size, axis=0)[:n])


def solve(c: Array, z: Array) -> Array:
    """C^-1 z for the Toeplitz matrix C with first column `c` (padded with zeros), along axis 0."""
    from scipy.signal import lfilter

    n = len(z)
    c = c[:n]
    if len(c) <= 64 or n <= FFT_FROM:
        return np.asarray(lfilter([1.0], c, z, axis=0))
    return multiply(inverse(c, n), z)


def inverse(c: Array, n: int) -> Array:
    """First n coefficients of 1 / c(x), c_0 != 0, by Newton's iteration (short c: by recursion)."""
    from scipy.signal import lfilter

    c = c[:n]
    if len(c) <= 64 or n <= FFT_FROM:
        impulse = np.zeros(n)
        impulse[0] = 1.0
        return np.asarray(lfilter([1.0], c, impulse))
    length = FFT_FROM // 2
    result = inverse(c[:length], length)
    while length < n:
        length = min(2 * length, n)
        correction = -product(c[:length], result, length)
        correction[0] += 2.0
        result = product(result, correction, length)
    return result


def sqrt(a: Array, n: int) -> Array:
    """First n coefficients of the square root of a(x), a_0 > 0, with positive constant term."""
    a = np.pad(a[:n], (0, max(0, n - len(a))))
    root = np.array([np.sqrt(a[0])])
    while len(root) < n:
        length = min(2 * len(root), n)
        padded = np.pad(root, (0, length - len(root)))
        root = 0.5 * (padded + product(a[:length], inverse(padded, length), length))
    return root


def power(a: Array, exponent: float, n: int) -> Array:
    """First n coefficients of a(x)^exponent, a_0 > 0, with positive constant term, for any real exponent.

    Two terms give binomials; up to `MILLER` terms, J. C. P. Miller's recursion takes O(n len(a)); longer
    series go through exp(exponent log a) in O(n log n).
    """
    a = a[:n]
    kept = int(np.flatnonzero(a)[-1]) + 1
    a, lead = a[:kept] / a[0], float(a[0]) ** exponent
    if kept <= 2:
        ratio = float(a[1]) if kept == 2 else 0.0
        t = np.arange(1, n, dtype=np.float64)
        return np.asarray(lead * np.concatenate([[1.0], np.cumprod(ratio * (exponent - t + 1.0) / t)]))
    if kept > MILLER:
        return np.asarray(lead * _exp(exponent * _log(a, n), n))
    # a b' = exponent a' b, coefficient by coefficient
    lags = np.arange(1, kept, dtype=np.float64)
    backwards = np.zeros(n + kept - 1)  # b_t stands at n - 1 - t, so that a window runs to the past
    backwards[n - 1] = 1.0
    slope, fixed = (exponent + 1.0) * lags * a[1:], a[1:]
    for step in range(1, n):
        past = backwards[n - step : n - step + kept - 1]
        backwards[n - 1 - step] = (slope @ past) / step - fixed @ past
    return np.asarray(lead * backwards[:n][::-1])


def _log(a: Array, n: int) -> Array:
    """First n coefficients of log a(x), a_0 = 1: the integral of a' / a."""
    t = np.arange(1, n, dtype=np.float64)
    slope = np.pad(a[1:], (0, n - len(a))) * t
    return np.concatenate([[0.0], product(slope, inverse(a, n), n)[: n - 1] / t])


def _exp(f: Array, n: int) -> Array:
    """First n coefficients of exp f(x), f_0 = 0, by Newton's iteration."""
    result = np.ones(1)
    while len(result) < n:
        length = min(2 * len(result), n)
        padded = np.pad(result, (0, length - len(result)))
        correction = f[:length] - _log(padded, length)
        correction[0] += 1.0
        result = product(padded, correction, length)
    return result


def dense(c: Array, n: int) -> Array:
    """The n x n lower-triangular Toeplitz matrix with first column `c` (padded with zeros)."""
    from scipy.linalg import toeplitz

    column = np.pad(c[:n], (0, max(0, n - len(c))))
    row = np.zeros(n)
    row[0] = column[0]
    return np.asarray(toeplitz(column, row))
