"""One pattern with Gram entries of mixed signs: the supremum over every dimension, by duality."""

from __future__ import annotations

import numpy as np

from anechoic._validate import Array

LARGEST = 512  # steps in a pattern up to which the programme is solved
GAP = 1e-10
UNIT = 2.0**-52
ROUNDS = 60


def largest_correlated_sum(gram: Array, *, floor: float = 0.0) -> tuple[float, float]:
    """Certified bounds of max <M, R> over correlation matrices R (semidefinite, unit diagonal).

    This is sup ||C U||_F^2 over U with rows of norm <= 1 on one pattern, over every dimension: R = U U^T.
    Any y with diag(y) - M semidefinite bounds it by sum y, and the least such bound is attained. A
    primal-dual interior-point method moves R and y together; both stay feasible, so both sides are
    certified whenever it stops. That a Cholesky factorisation succeeds says that diag(y) - M is semidefinite
    but for its rounding, at most k (k + 1) 2^-53 of its diagonal (Higham 2002, Theorem 10.3), by which the
    upper bound is raised.

    Args:
        gram: M on the pattern, symmetric, positive semidefinite, shape (k, k).
        floor: stop as soon as the upper bound is at most this.

    Returns:
        (lower, upper), with a relative gap of at most 1e-10 where the method converged.

    References:
        Helmberg, Rendl, Vanderbei, Wolkowicz, SIAM J. Optim. 6 (1996).
    """
    scale = float(np.abs(gram).max())
    if scale == 0.0:
        return 0.0, 0.0
    m = gram / scale
    k = len(m)
    sums = np.abs(m).sum(axis=1)
    lower, upper = float(max(m.sum(), m.trace())), float(sums.sum())  # signs all equal; Lemma 3.15(a)
    y, r = sums + 0.1, np.eye(k)
    mu = float(y.sum() - (m * r).sum()) / (2 * k)
    for _ in range(ROUNDS):
        if upper - lower <= GAP * upper or upper * scale <= floor:
            break
        try:
            inverse = np.linalg.inv(np.diag(y) - m)
            dy = np.linalg.solve(inverse * r, mu * inverse.diagonal() - 1.0)
        except np.linalg.LinAlgError:
            break
        dr = mu * inverse - r - (inverse * dy) @ r
        dr = (dr + dr.T) / 2
        np.fill_diagonal(dr, 0.0)
        along_r, along_y = _feasible(r, dr), _feasible(np.diag(y) - m, np.diag(dy))
        r, y = r + along_r * dr, y + along_y * dy
        lower, upper = max(lower, float((m * r).sum())), min(upper, float(y.sum()))
        if along_r + along_y < 0.01:
            break  # rounding has the last word
        mu = float(y.sum() - (m * r).sum()) / (2 * k) * (0.3 if along_r + along_y > 1.6 else 1.0)
    return lower * scale, upper * scale * (1 + k * (k + 1) * UNIT)


def _feasible(matrix: Array, step: Array) -> float:
    """A length in [0, 1] along `step` that keeps a positive definite matrix so."""
    length = 1.0
    while length > 1e-6:
        try:
            np.linalg.cholesky(matrix + length * step)
        except np.linalg.LinAlgError:
            length *= 0.8
        else:
            return length if length == 1.0 else 0.95 * length
    return 0.0
