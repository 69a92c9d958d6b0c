"""Algebra of lower-triangular Toeplitz matrices: first columns as power series modulo x^n.

A lower-triangular Toeplitz matrix is fixed by its first column; products, inverses and roots of
such matrices are those of the power series. Series longer than `FFT_FROM` go through the FFT.
"""

from __future__ import annotations

import numpy as np
import scipy
from scipy.linalg import get_lapack_funcs

from anechoic._validate import Array

FFT_FROM = 256
MILLER = 16  # terms of a series up to which its powers are made by recursion
UNIT = 2.0**-53  # half the distance of 1 to the next float64
DIVIDED = 2**20  # entries of a band up to which LAPACK divides by it
BLOCK = 2**15  # entries that are worked on in twice the precision at a time


def product(a: Array, b: Array, n: int) -> Array:
    """First n coefficients of a(x) b(x)."""
    a, b = a[:n], b[:n]
    if min(len(a), len(b)) <= 32 or len(a) + len(b) <= FFT_FROM:
        full = np.convolve(a, b)[:n]
    else:
        size = scipy.fft.next_fast_len(min(len(a) + len(b) - 1, 2 * n), real=True)
        both = scipy.fft.rfft(a, size) * scipy.fft.rfft(b, size)
        full = scipy.fft.irfft(both, size)[: min(n, len(a) + len(b) - 1)]
    return np.pad(full, (0, n - len(full)))


def multiply(c: Array, x: Array) -> Array:
    """C x for the Toeplitz matrix C with first column `c` (padded with zeros), along axis 0."""
    n = len(x)
    c = c[:n]
    if len(c) <= 64 or n <= FFT_FROM:
        return np.asarray(np.apply_along_axis(lambda column: np.convolve(c, column)[:n], 0, x))
    size = scipy.fft.next_fast_len(n + len(c) - 1, real=True)
    spectrum = scipy.fft.rfft(c, size).reshape((-1,) + (1,) * (x.ndim - 1))
    return np.asarray(scipy.fft.irfft(spectrum * scipy.fft.rfft(x, size, axis=0), size, axis=0)[:n])


def solve(c: Array, z: Array) -> Array:
    """C^-1 z for the Toeplitz matrix C with first column `c` (padded with zeros), along axis 0."""
    n = len(z)
    c = c[:n]
    if len(c) <= 64 or n <= FFT_FROM:
        return divided(z, c)
    return multiply(inverse(c, n), z)


def divided(z: Array, c: Array) -> Array:
    """C^-1 z by recursion, for few numbers or many, real or complex."""
    n = len(z)
    if n * len(c) > DIVIDED or not z.size:
        return np.asarray(scipy.signal.lfilter([1.0], c, z, axis=0))
    # to import scipy.signal, and with it all of scipy.stats, takes as long as most plans
    columns, values = np.tile(c[:n], (n, 1)).T, z.reshape(n, -1)
    (solve_band,) = get_lapack_funcs(("tbtrs",), (columns, values))
    return np.ascontiguousarray(solve_band(columns, values, uplo="L")[0]).reshape(z.shape)


def inverse(c: Array, n: int) -> Array:
    """First n coefficients of 1 / c(x), c_0 != 0, by Newton's iteration (short c: by recursion)."""
    c = c[:n]
    if len(c) <= 64 or n <= FFT_FROM:
        return divided(np.eye(1, n)[0], c)
    length = FFT_FROM // 2
    result = inverse(c[:length], length)
    while length < n:
        length = min(2 * length, n)
        correction = -product(c[:length], result, length)
        correction[0] += 2.0
        result = product(result, correction, length)
    return result


def accurate_inverse(a: Array, c: Array, tolerance: float) -> tuple[Array, float]:
    """The series 1/a modulo x^n as accurately as needed, and a bound of what may be missing.

    Let a c = 1 + e modulo x^n. Then c - 1/a = e / a, so that the Toeplitz matrices C of c and C' of 1/a have
    C - C' = E C', and | |C u| - |C' u| | <= sum|e| |C' u| for every vector u: sum|e| bounds the relative
    error of every norm, whatever the pattern. By recursion |e_t| <= (terms + 2) units of sum_j |a_j c_{t-j}|.
    If no sign of a allows any cancellation, c_t is off by at most t times (terms + 2) units. Where neither is
    enough, as for zeros of high order near 1, c is refined, with residuals in twice the precision.

    Args:
        a: the series, shape (terms,), a_0 != 0.
        c: 1/a by recursion in float64, shape (n,).
        tolerance: relative error that is good enough.

    Returns:
        c itself where the recursion is good enough, else a new array, rounded to float64; and a bound of
        sum|e| / (1 - sum|e|), infinite where 1/a is not known at all.
    """
    n = len(c)
    a = a[:n]
    unit = 1.01 * (len(a) + 2) * UNIT
    ratio = a[1:] / a[0]
    turned = ratio * (-1.0) ** np.arange(1, len(a))
    if ((ratio <= 0).all() or (turned <= 0).all()) and unit * n <= tolerance:
        return c, unit * n
    first = unit * float(np.abs(a).sum()) * float(np.abs(c).sum())
    if first <= tolerance:
        return c, first * (1.0 + 2.0 * tolerance)
    return _refined(a, c, tolerance)


def _refined(a: Array, c: Array, tolerance: float) -> tuple[Array, float]:
    """`accurate_inverse` by iterative refinement of c = high + low."""
    high, low, before = c.copy(), np.zeros_like(c), np.inf
    # errors of compensated sums of 2 terms + 2 numbers (Ogita, Rump and Oishi, 2005)
    unit = (1.01 * (2 * len(a) + 4) * UNIT) ** 2
    with np.errstate(all="ignore"):
        while True:
            e = _residual(a, high, low)
            unseen = unit * float(np.abs(a).sum()) * float(np.abs(high).sum())
            bound = float(np.abs(e).sum()) * (1.0 + 1e-9) + unseen
            if bound <= tolerance:
                return high, bound / (1.0 - bound) + UNIT
            if not bound < before / 1.5 or unseen > tolerance:
                # bounds that stay large are of no use, and beyond 1 they say nothing
                return high, bound / (1.0 - bound) if bound < 1.0 else np.inf
            before = bound if bound < 1e300 else before
            change = low - divided(e, a)
            high, low = _sum(high, change)


def _residual(a: Array, high: Array, low: Array) -> Array:
    """a (high + low) - 1 modulo x^n, as if in twice the precision and rounded once."""
    n, terms = len(high), len(a)
    found = np.empty(n)
    for start in range(0, n, BLOCK):
        stop = min(n, start + BLOCK)
        total, rest = np.zeros(stop - start), np.zeros(stop - start)
        if start == 0:
            total[0] = -1.0
        for j in range(min(terms, stop)):
            if a[j] == 0.0:
                continue
            skipped = max(0, j - start)  # entries of the block before lag j
            past = slice(start + skipped - j, stop - j)
            term, error = _product(float(a[j]), high[past])
            total[skipped:], lost = _sum(total[skipped:], term)
            rest[skipped:] += lost + error + a[j] * low[past]
        found[start:stop] = total + rest
    return found


def _sum(x: Array, y: Array) -> tuple[Array, Array]:
    """x + y rounded, and what rounding took (Knuth)."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def _product(x: float, y: Array) -> tuple[Array, Array]:
    """x y rounded, and what rounding took (Dekker)."""
    halves = []
    for value in (np.float64(x), y):
        shifted = 134217729.0 * value  # 2^27 + 1
        upper = shifted - (shifted - value)
        halves.append((upper, value - upper))
    (xu, xl), (yu, yl) = halves
    rounded = x * y
    return rounded, xl * yl - (((rounded - xu * yu) - xl * yu) - xu * yl)


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
    column = np.pad(c[:n], (0, max(0, n - len(c))))
    return np.asarray(scipy.linalg.toeplitz(column, np.zeros(n)))
