"""Weights p of rows and q of columns for which K = diag(p)^½ A diag(q)^½ has its largest nuclear norm.

For any p, q >= 0 with sum 1 and any A = B C,

    ||K||_* <= ||diag(p)^½ B||_F ||C diag(q)^½||_F <= (weighted error of the rows) (largest column norm of C),

so that ||K||_* bounds every loss from below: the RMS loss of weights p for fixed p (this is the dual of
Problem 4.3 of the monograph, for the best scale of its variable), and the max loss for any p. From above, C
with C^T C = diag(q)^-½ (K^T K)^½ diag(q)^-½ has squared column norms diag((K^T K)^½) / q, and B = A C^-1 has
squared row norms diag((K K^T)^½) / p: the loss of this very C follows from the same diagonals. The two meet
where both quotients are constant, which is the fixed point of q <- diag((K^T K)^½), p <- diag((K K^T)^½), up
to scale. Anderson's acceleration in log p and log q needs some 15 steps of it for prefix sums. Where rows of
B or columns of C stay short at the optimum, their weights go to 0; adding a constant to the diagonals keeps
them away from it, at the price of a known share of the gap (a logarithmic barrier). Where singular vectors
are at hand, Newton's method on the barrier problem takes over.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, cholesky

from anechoic._validate import Array
from anechoic.errors import UnsupportedError
from anechoic.optimize.full.modulus import Modulus
from anechoic.optimize.full.newton import newton_step

Progress = Callable[[int, float], None]

ITERATIONS = 400
MEMORY = 6
# A plain step goes about half the way where rows are nearly orthogonal, and less elsewhere.
RELAXATION = 1.9
LONGEST = 3.0
# Share of the gap that the barrier may cost.
BARRIER = 0.3
# Weights below this share of the largest could underflow.
FLOOR = 1e-13


class BalancedFactors(NamedTuple):
    """The best weights found.

    Attributes:
        p, q: weights of rows and columns whose strategy has the loss `upper`, each of sum 1.
        lower: certified lower bound of the loss of every factorisation.
        upper: loss of the strategy of these weights but for rounding.
        evaluations: moduli computed.
    """

    p: Array
    q: Array
    lower: float
    upper: float
    evaluations: int


def balance(
    modulus: Modulus, fixed: Array | None, *, gap: float, progress: Progress | None = None
) -> BalancedFactors:
    """Weights whose bounds differ by at most `gap`, relatively, or the best of `ITERATIONS`.

    Args:
        modulus: of A.
        fixed: p, > 0 with sum 1, for a weighted RMS loss; None for the max loss.
        gap: relative, > 0.
        progress: called with the number of evaluations and the loss reached.
    """
    n = modulus.n
    symmetric = fixed is None and modulus.symmetric
    halves = 1 if fixed is not None or symmetric else 2
    logs = np.zeros((halves, n))
    history = _History()
    best: BalancedFactors | None = None
    lower = highest = 0.0
    for evaluation in range(1, ITERATIONS + 1):
        weights = np.exp(logs - logs.max(axis=1, keepdims=True))
        weights = np.maximum(weights, FLOOR)
        weights /= weights.sum(axis=1, keepdims=True)
        q = weights[0]
        p = fixed if fixed is not None else weights[-1] if halves == 2 else q[::-1]
        found = modulus.diagonals(p, q, rows=halves == 2)
        ratios = np.stack([found.columns] if found.rows is None else [found.columns, found.rows]) / weights
        norm = float(found.columns.sum())
        # squared norms of the rows of B: their weighted mean is the nuclear norm
        error = norm if fixed is not None else float(ratios[-1].max())
        upper = math.sqrt(float(ratios[0].max()) * error)
        lower = max(lower, float(found.certain))
        if best is None or upper < best.upper:
            best = BalancedFactors(p, q, lower, upper, evaluation)
        if progress is not None:
            progress(evaluation, best.upper)
        if best.upper <= lower * (1.0 + gap):
            break
        barrier = BARRIER * gap / n
        ready = evaluation >= modulus.patience and norm > highest * (1.0 - 1e-3)
        singular = modulus.singular(p, q) if ready else None
        if singular is not None:
            highest = max(highest, norm)
            slopes = ratios * weights / norm
            logs = np.log(
                weights * newton_step(singular, weights, slopes, 0.5 * barrier, symmetric=symmetric)
            )
            continue
        logs, residual = np.log(weights), np.log(ratios / norm + barrier / weights)
        residual -= (weights * residual).sum(axis=1, keepdims=True)
        if norm < highest * (1.0 - 1e-3):
            history = _History()
        highest = max(highest, norm)
        logs = logs + np.clip(history.step(logs, residual, np.sqrt(weights)), -LONGEST, LONGEST)
    return best._replace(lower=lower, evaluations=evaluation)  # type: ignore[union-attr]


def filled_up(modulus: Modulus, found: BalancedFactors, mixed: float, gap: float) -> Array:
    """Return C with C^T C = M, after M has been filled up to 1 on its diagonal: that lowers every error.

    `mixed` is the share of the identity in it, to make it positive definite.
    """
    for share in (mixed, mixed + 0.25 * gap):
        gram = modulus.flipped_gram(found.p, found.q)
        gram *= (1.0 - share) / gram.diagonal().max()
        np.fill_diagonal(gram, 1.0)
        try:
            # LAPACK sees the transpose: its lower factor is our upper one
            factor = cholesky(gram.T, lower=True, overwrite_a=True, check_finite=False)
        except LinAlgError:
            continue
        # flipped Gram matrix = R^T R, so that J R J is lower-triangular with the Gram matrix itself
        return np.asarray(factor.T[::-1, ::-1])
    raise UnsupportedError(
        f"gap={gap}: the optimal strategy is singular to working precision; a larger gap, or weights of the"
        " steps that differ less, make it regular."
    )


class _History:
    """Anderson's acceleration: the combination of the last points whose residuals cancel best."""

    def __init__(self) -> None:
        self._points: list[tuple[Array, Array]] = []

    def step(self, point: Array, residual: Array, scales: Array) -> Array:
        """Where to go from `point`; all arguments have one shape, `scales` weight the residuals."""
        earlier = self._points[-MEMORY:]
        self._points = [*earlier, (point, residual)]
        plain = RELAXATION * residual
        if not earlier:
            return plain
        moves = np.stack([(point - x).ravel() for x, _ in earlier])
        changes = np.stack([(residual - r).ravel() for _, r in earlier])
        weighted = changes * scales.ravel()
        coefficients = np.linalg.lstsq(weighted.T, (residual * scales).ravel(), rcond=1e-9)[0]
        return plain - (coefficients @ (moves + RELAXATION * changes)).reshape(point.shape)
