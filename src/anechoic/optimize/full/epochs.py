"""Dense strategies for one step an epoch: the best of each epoch for one participation, side by side.

Where no noise is correlated from one epoch to another, C has a block C_e for each epoch, and sens^2 is the
sum over the epochs of their largest squared column norms d_e. The squared error is the sum of v_e^2 / d_e,
v_e the least loss of one participation for the columns of A of epoch e, so that d_e is best proportional to
v_e. For the largest error the weights of the steps rise where errors are large.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import block_diag, solve_triangular

from anechoic._validate import Array
from anechoic.optimize.full.balance import Progress, balance, filled_up
from anechoic.optimize.full.modulus import MatrixModulus

TURNS = 25  # of the weights for the largest error
SHARE = 1e-3  # of the gap: weights that are shared out, so that every step has some


def epochs(
    a: Array, period: int, weights: Array | None, gap: float, progress: Progress | None
) -> tuple[Array, int]:
    """Return C of sensitivity 1, shape (n, n), and the evaluations that it took.

    Args:
        a: A, shape (n, n).
        period: steps of an epoch.
        weights: of the squared errors, of sum 1; None for the largest.
        gap: relative, of the optimum of each epoch.
        progress: called with the evaluations so far and the least loss so far.
    """
    n, evaluations, least = len(a), 0, float("inf")
    p = np.full(n, 1.0 / n) if weights is None else weights
    for _ in range(TURNS if weights is None else 1):
        shared = (1 - SHARE * gap) * p + SHARE * gap / n
        blocks, lengths = [], []
        for first in range(0, n, period):
            triangle = np.linalg.qr(np.sqrt(shared)[:, None] * a[:, first : first + period], mode="r")
            size = len(triangle)
            modulus = MatrixModulus(np.sqrt(size) * triangle, symmetric=False)
            found = balance(modulus, np.full(size, 1.0 / size), gap=gap)
            evaluations += found.evaluations
            blocks.append(filled_up(modulus, found, 0.0, gap))
            lengths.append(found.upper)
        total = sum(lengths)
        c = block_diag(*(np.sqrt(v / total) * block for v, block in zip(lengths, blocks, strict=True)))
        squares = np.square(solve_triangular(c, a.T, trans="T", lower=True)).sum(axis=0)
        value = float(np.sqrt(squares.max() if weights is None else p @ squares))
        if value < least:
            least, best = value, c
        if progress is not None:
            progress(evaluations, least)
        p = p * squares / (p @ squares)
    return best, evaluations
