"""Minimum-phase factors of mixtures of Poisson kernels: arrays in, arrays out."""

from __future__ import annotations

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from anechoic._validate import Array

ITERATIONS = 200
TOLERANCE = 1e-12  # of each residue, relative
NEAR = 1e-8


def minimum_phase(gaps: Array, weights: Array) -> Array:
    """w > 0 with |sum_j w_j / (1 - a_j x)|^2 = sum_j weight_j (1 - a_j^2) / |1 - a_j x|^2, |x| = 1.

    Comparing residues at 1 / a_j gives w_j sum_i w_i / (1 - a_i a_j) = weight_j, which is the gradient of a
    strictly convex function, w^T M w / 2 - sum_j weight_j log w_j: one solution, found by Newton's method.
    The zeros of the mixture with positive w interlace the poles outside the disc: it is minimum phase.

    Args:
        gaps: 1 - a_j, shape (d,), in (0, 1), distinct.
        weights: shape (d,), > 0.

    Returns:
        w, shape (d,).

    Raises:
        ArithmeticError: if Newton's method does not settle.
    """
    kernel = 1.0 / (gaps[:, None] + gaps[None, :] - np.outer(gaps, gaps))  # 1 / (1 - a_i a_j)
    w = np.sqrt(weights / kernel.sum(axis=1))

    def value(w: Array) -> float:
        return float(0.5 * w @ kernel @ w - weights @ np.log(w))

    for _ in range(ITERATIONS):
        pull = kernel @ w
        if np.abs(w * pull / weights - 1.0).max() <= TOLERANCE:
            return np.asarray(w)
        # in the variable log w the Hessian diag(w) M diag(w) + diag(w M w) is well scaled
        gradient = w * pull - weights
        hessian = kernel * np.outer(w, w)
        hessian[np.diag_indices(len(w))] += np.maximum(w * pull, weights)
        step = cho_solve(cho_factor(hessian), -gradient)
        size, slope, now = 1.0, float(gradient @ step), value(w)
        # near the end the fall of the value drowns in rounding, and Newton's step is safe
        while -slope > NEAR * weights.sum() and value(w * np.exp(size * step)) > now + 0.25 * size * slope:
            size /= 2.0
        w = w * np.exp(size * step)
    raise ArithmeticError(
        f"the minimum-phase factor of {len(gaps)} modes was not found in {ITERATIONS} steps: merge modes"
        " whose eigenvalues almost coincide."
    )
