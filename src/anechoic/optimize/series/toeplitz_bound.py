"""A lower bound for all Toeplitz strategies of some bands: the dual of their optimisation.

Let sensitivity^2 = sum_s k_s c_s^2 over s < bands, error^2 = sum_t v_t b_t^2, and b c = a as power series.
For any numbers phi_0, …, phi_{n-1} and the Hankel matrix H[s, t] = phi_{s+t} (zero from n on),

    sum_k phi_k a_k = c^T H b <= ||k^1/2 c|| ||v^1/2 b|| ||k^-1/2 H v^-1/2||,

so that the sum over the norm bounds the loss from below, however c is chosen. At a stationary c the
multipliers of b c = a make (k^1/2 c, v^1/2 b) a pair of singular vectors; where it is the largest pair, the
bound equals the loss: a local optimum is proven to be the global one.
(For n -> infinity and max loss this is the duality of H^1 and H^infinity behind Theorem 2.5.)
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import fft
from scipy.linalg import cholesky, hankel, solve_triangular

from anechoic._validate import Array
from anechoic.algebra import toeplitz
from anechoic.lower_bounds.result import Bound

THEOREM = "duality with Hankel forms"
# Multiply-adds that the Gram matrix of H may take, its largest size, and entries of a block of it.
WORK, LARGEST, CHUNK = 5e10, 2048, 2**21
DENSE = 1024  # steps up to which a matrix Q is written out
# Bands from which the power method is taken where it can be: it is faster, and loses 1e-8 or less.
POWERS_FROM, POWERS = 512, 6
ROUNDING = 1e-10


def toeplitz_bound(a: Array, c: Array, columns: Array, v: Array) -> Bound | None:
    """The bound from the multipliers at c, or None where its norm is too costly, or not bounded.

    Args:
        a: first column of A, shape (n,).
        c: a stationary first column of C, shape (bands,); anything else gives a valid bound, but a low one.
        columns: k > 0, shape (bands,).
        v: weights of the squares of b, >= 0, not increasing, shape (n,).
    """
    steps = int(np.flatnonzero(v)[-1]) + 1
    bands = min(len(c), steps)
    a, c, columns, v = a[:steps], c[:bands], columns[:bands], v[:steps]
    b = toeplitz.solve(c, a)
    phi = toeplitz.solve(c, (v * b)[::-1])[::-1]  # C^T phi = v b
    if not np.isfinite(phi).all():
        return None
    if (
        float(steps) * bands**2 <= WORK
        and bands <= LARGEST
        and not (bands >= POWERS_FROM and phi.min() > 0.0)
    ):
        norm = _norm_by_gram(phi, columns, v)
    else:
        phi = np.maximum(phi, 0.0)
        norm = _norm_by_powers(phi, columns, v, b)
    return _bound(phi, a, norm, bands)


def form_bound(a: Array, c: Array, columns: Array, form: Callable[[Array], Array]) -> Bound | None:
    """The same for error^2 = b^T Q b with Q positive definite: the norm is that of k^-1/2 H Q^-1/2.

    Args:
        a, c, columns: as for `toeplitz_bound`.
        form: gives Q b. Q is written out, so that None is returned beyond n = 1024.
    """
    n = len(a)
    if n > DENSE:
        return None
    phi = toeplitz.solve(c, form(toeplitz.solve(c, a))[::-1])[::-1]
    root = cholesky(np.array([form(unit) for unit in np.eye(n)]), lower=True)
    part = solve_triangular(root, hankel(phi)[:, : len(c)], lower=True) / np.sqrt(columns)
    return _bound(phi, a, float(np.sqrt(np.linalg.eigvalsh(part.T @ part)[-1])), len(c))


def _bound(phi: Array, a: Array, norm: float, bands: int) -> Bound | None:
    total = float(phi @ a) - 1e-14 * float(np.abs(phi) @ np.abs(a))
    if not (np.isfinite(norm) and norm > 0.0 and total > 0.0):
        return None
    kind = "lower-triangular Toeplitz strategies"
    covers = kind if bands == len(a) else f"{kind} with at most {bands} bands"
    return Bound(total / norm * (1.0 - ROUNDING), THEOREM, covers)


def _norm_by_gram(phi: Array, columns: Array, v: Array) -> float:
    """||k^-1/2 H v^-1/2|| by the eigenvalues of its Gram matrix, shape (bands, bands)."""
    n, bands = len(phi), len(columns)
    padded = np.concatenate([phi, np.zeros(bands - 1)])
    rows = np.lib.stride_tricks.sliding_window_view(padded, bands)  # [t, s] = phi_{s+t}
    roots = 1.0 / np.sqrt(v)
    gram = np.zeros((bands, bands))
    step = max(1, CHUNK // bands)
    for start in range(0, n, step):
        part = rows[start : start + step] * roots[start : start + step, None]
        gram += part.T @ part
    scale = 1.0 / np.sqrt(columns)
    return float(np.sqrt(np.linalg.eigvalsh(scale[:, None] * gram * scale)[-1]))


def _norm_by_powers(phi: Array, columns: Array, v: Array, b: Array) -> float:
    """An upper bound of the norm for phi >= 0: max_t (v^-1 H^T k^-1 H y)_t / y_t for any y > 0.

    This is the theorem of Collatz and Wielandt for the largest eigenvalue of a non-negative matrix. Some
    steps of the power method, from y = b, bring it near.
    """
    n, bands = len(phi), len(columns)
    best = np.inf
    for floor in (1e-3, 1e-6, 1e-9):
        y = np.maximum(b, floor * np.abs(b).max())
        for _ in range(POWERS):
            z = _hankel_above(phi, _hankel_above(phi, y, bands) / columns, n) / v
            best = min(best, float((z / y).max()))
            y = np.maximum(z / z.max(), floor)
    return float(np.sqrt(best))


def _hankel_above(phi: Array, y: Array, rows: int) -> Array:
    """sum_t phi_{s+t} y_t for s < rows and numbers >= 0, plus what the FFT may round off."""
    size = fft.next_fast_len(len(phi) + max(len(y), rows) - 1, real=True)
    sums = fft.irfft(fft.rfft(phi, size) * fft.rfft(y, size).conj(), size)[:rows]
    rounding = 1e-15 * math.log2(size + 1) * float(np.linalg.norm(phi) * np.linalg.norm(y))
    return np.asarray(np.maximum(sums, 0.0) + rounding)
