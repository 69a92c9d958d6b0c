"""Dense optimisation under several participations: Problem 4.6 and its relatives, with certificates."""

from __future__ import annotations

import numpy as np
import scipy

from anechoic._validate import Array
from anechoic.errors import UnsupportedError
from anechoic.lower_bounds.dual import EPS, cycles
from anechoic.lower_bounds.result import Bound
from anechoic.lower_bounds.several_participations import EVERY, NUCLEAR, full_batch_bound
from anechoic.optimize.full.epochs import epochs
from anechoic.optimize.full.search import Progress, optimum
from anechoic.participation import Cyclic, FullBatch, OncePerEpoch
from anechoic.participation.base import Participation
from anechoic.workloads.base import Workload

#: C, shape (n, n), what no factorisation can beat where that was found, and the evaluations that it took.
Found = tuple[Array, Bound | None, int]


def optimum_under(
    participation: Participation,
    workload: Workload,
    weights: Array | None,
    gap: float,
    progress: Progress | None,
) -> Found:
    """Return the optimum of Problem 4.6 for cycles, in closed form where all steps are in one.

    It is then the optimum over **every** factorisation, for every dimension of the gradients (the dual bound
    is tight, see `lower_bounds.dual`). For one step an epoch it is that without correlations between epochs.

    Args:
        participation: of units, of which some take part several times.
        workload: A, n steps; n^2 numbers are held, and n^3 operations take place in each evaluation.
        weights: of the squared errors, of sum 1; None for the largest.
        gap: stop when the loss is at most 1 + gap times the lower bound.
        progress: called with the evaluations so far and the least loss so far.

    Raises:
        UnsupportedError: for another schema.

    References:
        Monograph, Problem 4.6, Propositions 3.11 and 4.9.
    """
    n = workload.n
    if isinstance(participation, FullBatch) or participation.max_participations_in(n) == n:
        return _full_batch(workload, weights, gap)
    if isinstance(participation, OncePerEpoch):
        c, evaluations = epochs(workload.to_dense(), participation.period, weights, gap, progress)
        return c, None, evaluations
    if not isinstance(participation, Cyclic):
        raise UnsupportedError(
            f"participation={participation!r}: dense optimisation knows Single, Cyclic, OncePerEpoch and"
            " FullBatch. For MinSep use optimize.banded with as many bands as the separation, which is as"
            " good; for others optimize.blt or optimize.toeplitz for a MinSep that allows all patterns."
        )
    patterns = cycles(min(participation.period, n), n)
    c, value, evaluations = optimum(workload.to_dense(), patterns, weights, gap, progress)
    return c, Bound(value, NUCLEAR, EVERY), evaluations


def _full_batch(workload: Workload, weights: Array | None, gap: float) -> tuple[Array, Bound, int]:
    """The diagonal optimum: in closed form for given weights, else by ascent over them."""
    bound = full_batch_bound(workload, weights)
    squares = np.square(workload.to_dense())
    if weights is not None:
        return np.diag(_diagonal(squares, weights)), bound, 1

    def error(diagonal: Array) -> float:
        return float(np.sqrt((squares / np.square(diagonal)).sum(axis=1).max()))

    heaviest = np.zeros(workload.n)
    heaviest[int(np.sqrt(squares).sum(axis=1).argmax())] = 1.0
    best = [_diagonal(squares, heaviest)]
    highest = [bound.value]
    calls = [1]

    def weighted(x: Array) -> Array:
        shares = np.exp(np.maximum(x - x.max(), -60.0))
        return np.asarray(shares / shares.sum())

    def value(x: Array) -> tuple[float, Array]:
        # the dual function sum_t sqrt(sum_s p_s A[s, t]^2) is concave in p
        calls[0] += 1
        shares = weighted(x)
        roots = np.sqrt(squares.T @ shares)
        total = float(roots.sum())
        by_share = 0.5 * squares @ (1.0 / roots) / total
        return -float(np.log(total)), -shares * (by_share - shares @ by_share)

    def reached(x: Array) -> bool:
        shares = weighted(x)
        highest[0] = max(highest[0], float(np.sqrt(squares.T @ shares).sum()))
        diagonal = _diagonal(squares, shares)
        if error(diagonal) < error(best[0]):
            best[0] = diagonal
        return error(best[0]) <= (1 + 0.01 * gap) * highest[0]  # further rounds cost little

    def callback(x: Array) -> None:
        if reached(x):
            raise StopIteration

    # even weights may be optimal: L-BFGS takes no step from there, and calls nothing back
    even = np.zeros(workload.n)
    if error(best[0]) > (1 + 1e-12) * highest[0] and not reached(even):
        options = {"maxiter": 5000, "maxfun": 20000, "maxcor": 30, "ftol": 0.0, "gtol": 0.0}
        scipy.optimize.minimize(value, even, jac=True, method="L-BFGS-B", callback=callback, options=options)
    slack = 1 - 4 * (workload.n + 8) * EPS
    return np.diag(best[0]), Bound(max(bound.value, highest[0] * slack), bound.theorem, EVERY), calls[0]


def _diagonal(squares: Array, weights: Array) -> Array:
    """sqrt of M[t, t] proportional to the norm of column t, of sum 1; columns that do not count stay > 0."""
    m = np.sqrt(squares.T @ weights)
    m = np.maximum(m, 1e-10 * m.max())
    return np.asarray(np.sqrt(m / m.sum()))
