"""Nuclear norms from below: ||W^(1/2) A V^(1/2)||_* for diagonals of non-negative w and v, each of sum 1.

Every such number is a lower bound of the loss with row weights w and one participation: where A = BC,

    ||W^(1/2) A V^(1/2)||_* <= ||W^(1/2) B||_F ||C V^(1/2)||_F,

and ||C V^(1/2)||_F^2 is a mean of squared column norms. For the max loss w may be chosen too, as a mean of
squared errors is at most the largest. (Weak duality; strong duality holds for the best v, or w and v.)
"""

from __future__ import annotations

import math

import numpy as np
from scipy import fft

from anechoic._validate import Array

# What rounding may add to a sum of singular values, relative: n times a few ulps, for n up to 4096.
MARGIN = 1e-11


def dual_value(a: Array, w: Array | None, *, steps: int, columns: Array | None = None) -> float:
    """The largest of the dual values of `steps` choices of v (w=None: of w and v).

    The next choice is v <- diag((V^(1/2) A^T W A V^(1/2))^(1/2)), normalised, whose fixed
    point is the best one; for w the same with the rows.

    Args:
        a: A, shape (n, n).
        w: weights of the rows, shape (n,), sum 1; None for the best ones (max loss).
        steps: decompositions, each O(n^3); >= 1.
        columns: v to start from, shape (n,), sum 1; None for the column norms of W^(1/2) A.
    """
    size = 2.0 ** math.frexp(float(np.abs(a).max()))[1]  # squares of entries are held for any size of A
    if not 0.0 < size < math.inf:
        return 0.0
    return size * _dual_value(a / size, w, steps, columns)


def _dual_value(a: Array, w: Array | None, steps: int, columns: Array | None) -> float:
    n = len(a)
    rows = np.full(n, 1.0 / n) if w is None else w
    if columns is None:
        columns = np.sqrt(rows @ np.square(a))
        columns /= columns.sum()
    best = 0.0
    for step in range(steps):
        weighted = np.sqrt(rows)[:, None] * a * np.sqrt(columns)
        if step == steps - 1:
            values = np.linalg.svd(weighted, compute_uv=False)
            return max(best, float(values.sum()) * (1 - MARGIN))
        left, values, right = np.linalg.svd(weighted)
        best = max(best, float(values.sum()) * (1 - MARGIN))
        columns = np.square(right).T @ values
        columns /= columns.sum()
        if w is None:
            rows = np.square(left) @ values
            rows /= rows.sum()
    return best


def toeplitz_nuclear_norm(a: Array) -> float:
    """||A||_* for the lower-triangular Toeplitz A with first column a: reversed, its rows are symmetric."""
    from scipy.linalg import hankel

    values = np.linalg.eigvalsh(np.asarray(hankel(a[::-1])))
    return float(np.abs(values).sum()) * (1 - MARGIN)


def circulant_value(a: Array, rates: Array | None, w: Array, v: Array) -> float:
    """A lower bound of ||W^(1/2) T D V^(1/2)||_*, T Toeplitz, in O(n log n).

    The nuclear norm is the largest tr(M^T X) over X with ||X|| <= 1. Circulant and skew-circulant X with
    eigenvalues on the unit circle are orthogonal, and tr(M^T X) = sum_k g_k x_k, where g_k is the sum of the
    k-th diagonal of M. The best eigenvalues give the mean of |g(z)| over the n roots z of 1, or of -1. That
    is within 4 % of the nuclear norm for prefix sums of 64 steps or more.

    Args:
        a: first column of T, shape (n,).
        rates: diagonal of D, shape (n,), or None.
        w: weights of the rows, shape (n,), sum 1.
        v: weights of the columns, shape (n,), sum 1.
    """
    n = len(a)
    left, right = np.sqrt(w), np.sqrt(v) if rates is None else np.sqrt(v) * rates
    size = fft.next_fast_len(2 * n, real=True)
    diagonals = fft.irfft(fft.rfft(left, size) * np.conj(fft.rfft(right, size)), size)[:n]
    g = a * diagonals
    twist = np.exp(1j * np.pi / n * np.arange(n))
    value = max(float(np.abs(fft.fft(z)).mean()) for z in (g, g * twist))
    # errors of an FFT are a few ulps times log n of the 2-norm of what it transforms
    ulps = 16 * np.finfo(np.float64).eps * math.log2(2 * n)
    lost = float(np.linalg.norm(g)) + math.sqrt(n) * float(np.abs(a).max() * np.linalg.norm(right))
    return float(value * (1 - MARGIN) - ulps * lost)
