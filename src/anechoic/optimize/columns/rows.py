"""Rows of B = A C^-1 for a banded C, written out: a sharp bound, and columns whose largest errors are level.

A bound. Let Z = M^-1 A^T W A M^-1 = L L^T for M = C^T C, with L = M^-1 A^T W^1/2. At the optimum its entries
in the bands vanish off the diagonal: rows of L that are less than `bands` apart are orthogonal. Near it they
nearly are, and Gram-Schmidt from the last row on, each against the `bands` - 1 after it (which are orthogonal
by then), makes them so. For the rows L' that result, scaled by any numbers, and every C' of these bands

    ||W^1/2 A L'||_* <= ||W^1/2 B'||_F ||C' L'||_F,    ||C' L'||_F^2 = sum_t ||L'_t||^2 ||C'_t||^2,

which is at most the price of ||L'_t||^2 times the squared sensitivity. What is lost is of second order in the
distance from the optimum, where the bound without a change of L loses the first.

Level errors. The squared error of step t has the derivative -2 b_i (C^-1 b)_j by C[i, j], b the row t of B.
The shortest change of the columns that brings the largest ones down to a level is a linear system.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from anechoic._validate import Array
from anechoic.algebra import banded
from anechoic.algebra.nuclear import MARGIN
from anechoic.optimize.columns.scales import Scales
from anechoic.workloads.base import Workload

EPS = float(np.finfo(np.float64).eps)
# Numbers in the rows that a bound uses, and in the derivatives of errors that are made level.
NUMBERS, DERIVATIVES = 2**20, 2**24
RESCALED = 3  # times that lengths of rows are chosen anew
# Level errors: shares of the largest error that are looked at, rounds of added steps, and of the whole.
BELOW, ADDED, REPEATS = 0.02, 6, 4
RIDGE = 1e-12


def bound_by_rows(workload: Workload, scales: Scales, columns: Array, weights: Array) -> float:
    """A lower bound, root scale, of the loss of every C of these bands; 0 where it would take too long.

    Args:
        workload: A.
        scales: of the columns, which give the price.
        columns: of a C near the optimum, shape (n, bands); anything else gives a valid bound, but a low one.
        weights: of the squared errors, >= 0, of sum 1.
    """
    n, bands = columns.shape
    # weights that are left out only lower the bound
    kept = np.argsort(-weights, kind="stable")[: max(1, NUMBERS // n)]
    kept = np.sort(kept[weights[kept] > 0])
    rows = np.sqrt(weights[kept])[:, None] * rows_of(workload, kept)
    images = banded.solve(columns, banded.solve_adjoint(columns, rows.T))
    if not np.isfinite(images).all():
        return 0.0
    orthogonal = _orthogonal(images, bands)
    # lengths of the rows of L', best for the trace of W^1/2 A L', which at the optimum is the nuclear norm
    lengths = np.square(orthogonal).sum(axis=1)
    shares = np.einsum("tr,rt->t", orthogonal, rows)
    factors, best, highest = np.ones(n), np.ones(n), 0.0
    for _ in range(RESCALED + 1):
        rewards = np.maximum(factors * shares, 0.0)
        price = scales.price(np.square(factors) * lengths)
        if not (rewards.any() and 0.0 < price < np.inf):
            break
        if rewards.sum() > highest * np.sqrt(price):
            best, highest = factors, float(rewards.sum() / np.sqrt(price))
        wanted = scales.multipliers(rewards / rewards.sum())
        positive = (lengths > 0) & (wanted > 0)
        factors = np.sqrt(np.where(positive, wanted, 0.0) / np.where(positive, lengths, 1.0))
    orthogonal *= best[:, None]
    values = np.linalg.svd(rows @ orthogonal, compute_uv=False)
    # what rounding adds to the products
    lost = n * EPS * float(np.linalg.norm(np.abs(rows) @ np.abs(orthogonal))) * len(kept) ** 0.5
    total = float(values.sum()) * (1 - MARGIN) - lost
    price = scales.price(_multipliers(orthogonal, bands))
    return total / float(np.sqrt(price)) if price > 0.0 and np.isfinite(price) else 0.0


def rows_of(workload: Workload, steps: NDArray[np.intp]) -> Array:
    """Some rows of A, shape (steps, n)."""
    units = np.zeros((workload.n, len(steps)))
    units[steps, np.arange(len(steps))] = 1.0
    return np.ascontiguousarray(workload.adjoint_multiply(units).T)


def _orthogonal(images: Array, bands: int) -> Array:
    """Rows less than `bands` apart made orthogonal, but for rounding."""
    rows = images.copy()
    squares = np.zeros(len(rows))
    for t in range(len(rows) - 1, -1, -1):
        later = slice(t + 1, t + bands)
        for _ in range(2):  # what rounding left over is taken off as well
            rows[t] -= (rows[later] @ rows[t] / squares[later]) @ rows[later]
        # rows that are zero stay without effect
        squares[t] = max(float(rows[t] @ rows[t]), np.finfo(np.float64).tiny)
    return rows


def _multipliers(rows: Array, bands: int) -> Array:
    """v with L L^T <= diag(v) in the bands: squared lengths, and what is left of products of rows."""
    squares = np.square(rows).sum(axis=1)
    result = squares * (1.0 + rows.shape[1] * EPS)
    lengths = np.sqrt(squares)
    for lag in range(1, min(bands, len(rows))):
        products = np.abs(np.einsum("tr,tr->t", rows[lag:], rows[:-lag]))
        products += rows.shape[1] * EPS * lengths[lag:] * lengths[:-lag]
        result[lag:] += products
        result[:-lag] += products
    return np.asarray(result)


def level(
    workload: Workload, squares_of: Callable[[Array], Array], columns: Array, units: Array, weights: Array
) -> Array:
    """Columns of the same norms, near the given ones, whose largest error is smaller, if there are such.

    Args:
        workload: A.
        squares_of: squared errors of the steps, shape (n,), from columns.
        columns: near a stationary point of the mean of these weights, shape (n, bands).
        units: sizes of the changes of each column, shape (n, 1).
        weights: of the squared errors, >= 0, of sum 1; the largest errors have nearly all.
    """
    squares = squares_of(columns)
    for _ in range(REPEATS):
        largest = float(squares.max())
        excess = largest / float(weights @ squares) - 1.0
        below = max(BELOW, 2.0 * excess)
        most = max(1, DERIVATIVES // columns.size)
        near = np.argsort(-squares, kind="stable")[:most]
        near = np.sort(near[squares[near] > (1.0 - below) * largest])
        change = _levelling(workload, columns, units, near, squares[near], weights[near])
        if change is None:
            break
        lengths = np.sqrt(np.square(columns).sum(axis=1, keepdims=True))
        for step in (1.0, 0.5, 0.25):
            trial = columns + step * change
            trial *= lengths / np.sqrt(np.square(trial).sum(axis=1, keepdims=True))
            with np.errstate(all="ignore"):
                found = squares_of(trial)
            if found.max() < largest:  # False where the trial is out of range
                break
        else:
            break
        columns, squares = trial, found
        if largest - float(squares.max()) < 1e-7 * largest:
            break
    return columns


def _levelling(
    workload: Workload, columns: Array, units: Array, steps: NDArray[np.intp], squares: Array, weights: Array
) -> Array | None:
    """The shortest change that levels the errors of weight, to first order, and lifts none above."""
    n, bands = columns.shape
    active = weights > 1e-3 * weights.max(initial=0.0)
    if not active.any():
        return None
    slopes = _slopes(workload, columns, steps)
    # norms are kept; a column of small norm or much weight changes less
    norms = np.square(columns).sum(axis=1)
    slopes -= columns * (np.einsum("tji,ji->tj", slopes, columns) / norms)[:, :, None]
    slopes *= np.sqrt(norms)[:, None] / units
    flat = slopes.reshape(len(steps), n * bands)
    products = flat @ flat.T
    shares = np.where(active, weights, 0.0)
    wanted = float(shares @ squares / shares.sum()) - squares
    ridge = RIDGE * float(products.diagonal().max())
    for _ in range(ADDED):
        try:
            factor = cho_factor(products[np.ix_(active, active)] + ridge * np.eye(int(active.sum())))
        except LinAlgError:
            ridge *= 100.0
            continue
        change = np.zeros(len(steps))
        change[active] = cho_solve(factor, wanted[active])
        above = ~active & (products @ change > wanted + 1e-9 * squares)
        if not above.any():
            break
        active |= above
    else:
        return None
    return np.asarray((change @ flat).reshape(n, bands) * np.sqrt(norms)[:, None] / units)


def _slopes(workload: Workload, columns: Array, steps: NDArray[np.intp]) -> Array:
    """Derivatives of the squared errors of some steps by the columns, shape (steps, n, bands)."""
    n, bands = columns.shape
    decoders = banded.solve_adjoint(columns, rows_of(workload, steps).T)
    images = banded.solve(columns, decoders).T
    padded = np.zeros((len(steps), n + bands))
    padded[:, :n] = decoders.T
    windows = np.lib.stride_tricks.sliding_window_view(padded, bands, axis=1)[:, :n]
    return np.asarray(-2.0 * windows * images[:, :, None])
