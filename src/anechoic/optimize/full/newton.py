"""Newton steps for the weights of `optimize.full.balance`, from the singular vectors of K = U Sigma V^T.

Let w = (p, q) and w_i (1 + d_i) be the weights after a relative step d. To second order,

    ||K||_* + d^T g - 1/4 d^T H d,   g = 1/2 (diag U Sigma U^T, diag V Sigma V^T),

    H = [[P, -R], [-R^T, Q]],   R_ij = sum_ab U_ia U_ib V_ja V_jb s_a s_b / (s_a + s_b),

and P, Q likewise with U twice and V twice: H is positive semidefinite, as the nuclear norm is concave in the
weights. With s_a s_b / (s_a + s_b) = integral of exp(-t / s_a) exp(-t / s_b) dt, which a dozen nodes give
to a percent, R = sum of the entrywise squares of U exp(-t / Sigma) V^T: products of matrices only.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from anechoic._validate import Array

# Distance of the nodes in log t: the error is 2 exp(-pi^2 / SPACING), relatively.
SPACING = 2.0
# Share of the way to the boundary w = 0 that a step may go.
BOUNDARY = 0.95


class SingularPair(NamedTuple):
    """K = left diag(values) right, values falling; left is (rows, r), right (r, n)."""

    left: Array
    values: Array
    right: Array


def newton_step(
    singular: SingularPair, weights: Array, slopes: Array, barrier: float, *, symmetric: bool
) -> Array:
    """Factors by which to multiply the weights, > 0: a step on nuclear norm + barrier * sum log w.

    Args:
        singular: of K.
        weights: the free ones, each row of sum 1: q, or q where p is its flip, or (q, p); shape (1 or 2, n).
        slopes: diagonals of the moduli over their trace, in the same order.
        barrier: > 0, relative to the nuclear norm.
        symmetric: p is the flip of q.
    """
    shape = weights.shape
    w, gradient = weights.ravel(), 0.5 * slopes.ravel()
    curvature = 0.5 * _curvature(singular, len(weights), symmetric) / float(singular.values.sum())
    # w / 2 - g is the multiplier of w >= 0 where the weight is to vanish: the primal-dual form of the barrier
    curvature[np.diag_indices(len(w))] += np.maximum(barrier, 0.5 * w - gradient)
    sums = np.zeros((len(w), shape[0]))
    for block in range(shape[0]):
        sums[block * shape[1] : (block + 1) * shape[1], block] = weights[block]
    solved = np.linalg.solve(curvature, np.column_stack([gradient + barrier, sums]))
    multipliers = np.linalg.solve(sums.T @ solved[:, 1:], sums.T @ solved[:, 0])
    step = solved[:, 0] - solved[:, 1:] @ multipliers
    length = min(1.0, BOUNDARY / max(float(-step.min()), 1e-300))
    return np.asarray(1.0 + length * step).reshape(shape)


def _curvature(singular: SingularPair, blocks: int, symmetric: bool) -> Array:
    """H for the free weights: of q, or of q with p its flip, or of (q, p)."""
    left, values, right = singular
    inverse = 1.0 / np.maximum(values, 1e-16 * values[0])
    vectors = right.T if blocks == 1 else np.concatenate([right.T, left])
    first, last = math.log(0.5 / inverse.max()) - 5.0, math.log(0.5 / inverse.min()) + 3.0
    total = np.zeros((len(vectors), len(vectors)))
    for node in np.exp(np.arange(first, last, SPACING)):
        decays = np.exp(-node * inverse)
        product = (vectors * decays) @ vectors.T
        total += SPACING * node * np.square(product)
        if symmetric:
            total -= SPACING * node * np.square((vectors * decays) @ left[::-1].T)
    if blocks == 2:
        n = right.shape[1]
        total[:n, n:] *= -1.0
        total[n:, :n] *= -1.0
    return total
