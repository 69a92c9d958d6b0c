"""The best of all strategies, with a certificate (monograph, Section 4.2).

One participation is solved here to a duality gap; see `optimize.full.balance` for the bounds and the
iteration, `optimize.full.bidiagonal` for the workloads whose iterations cost O(n), and
`optimize.full.modulus` for all others.
"""

from __future__ import annotations

import time
import warnings

import numpy as np

from anechoic._validate import Array, one_of, positive_float
from anechoic.algebra.threads import on_one_thread_if_small
from anechoic.errors import PerformanceWarning
from anechoic.losses.norms import KINDS, LossNorm, row_weights
from anechoic.lower_bounds.result import Bound
from anechoic.optimize.full.balance import BalancedFactors, Progress, balance, filled_up
from anechoic.optimize.full.bidiagonal import BidiagonalModulus, bidiagonal_inverse
from anechoic.optimize.full.cheap_candidates import cheap_candidates, of_sensitivity_one
from anechoic.optimize.full.modulus import MatrixModulus, Modulus
from anechoic.optimize.full.participation import optimum_under
from anechoic.optimize.result import Optimized, finish, small_enough
from anechoic.participation.base import Participation
from anechoic.participation.single import SINGLE
from anechoic.strategies import Dense
from anechoic.workloads.base import Workload

GAP, GAP_OF_SEVERAL = 1e-5, 1e-4
DENSE_UP_TO = 2**14  # steps: C takes 2 GiB
# What the rational approximation may be off by, relative to the gap asked for.
SHARE = 1e-3
# Weight, relative to the largest, that counts as none.
NEGLIGIBLE = 1e-15


@on_one_thread_if_small
def dense(
    workload: Workload,
    *,
    participation: Participation = SINGLE,
    loss: LossNorm = "rms",
    gap: float | None = None,
    progress: Progress | None = None,
) -> Optimized:
    """Return the lower-triangular strategy of smallest loss, certified to a relative gap of at most `gap`.

    That holds for one participation, and for Cyclic and FullBatch (Problem 4.6), unless the iteration stops
    first, which `gap` of the result tells. Under MinSep no algorithm for the optimum is known:
    `optimize.banded` with as many bands as the separation is within a few per cent.

    For prefix sums, exponential decay and anything else whose inverse is bidiagonal, with any learning
    rates, an iteration takes O(n), and only C itself O(n^2) memory and O(n^3) time (n = 4096: seconds). For
    other workloads an iteration is a singular value decomposition. Deterministic.

    Guarantee: `lower_bound` holds for every factorisation of the workload, in floating point too; `loss` is
    that of the returned strategy, which is no worse than independent noise or the square root; another one,
    also of a smaller class, may be better by as much as `gap` says. Where the optimum is not attained
    (weights that are 0), the strategy comes as close as `gap` says.

    Args:
        workload: A, n steps.
        participation: Single (default), Cyclic or FullBatch; others where they amount to one of these.
        loss: "rms", "max" (the gamma_2 norm of A), "last", or weights of the steps, >= 0, shape (n,).
        gap: relative difference of loss and lower bound to stop at, in [1e-9, 0.1]; None for 1e-5, or 1e-4
            for several participations.
        progress: called with the number of evaluations and the loss reached, after each.

    Returns:
        The strategy, with columns of norm at most 1 (one participation), its loss and its bound.

    Raises:
        ValueError: for bad arguments.
        UnsupportedError: for schemas that have no dense optimiser (it is a ValueError too).

    Example:
        >>> from anechoic import workloads
        >>> round(dense(workloads.prefix_sum(64), loss="max").loss, 4)
        2.1114

    References:
        Monograph, Problem 4.3 and Theorem 4.4, for RMS; for max, the dual of the gamma_2 norm as in Haagerup
        (1985) and in Mathias, The Hadamard operator norm of a circulant and applications (1993).
    """
    started = time.perf_counter()
    _checked_types(workload, participation)
    n, asked = small_enough(workload, DENSE_UP_TO).n, (workload, participation, loss)
    # where nobody touches some of the steps, one participation is not that of Problem 4.3
    several = participation.max_participations_in(n) > 1 or len(participation.touched(n)) < n
    gap = (GAP_OF_SEVERAL if several else GAP) if gap is None else _checked_gap(gap)
    if several:
        weights = None if isinstance(loss, str) and loss == "max" else row_weights(loss, n)
        c, bound, evaluations = optimum_under(participation, workload, weights, gap, progress)
        found = finish(Dense(c), asked, started, evaluations, bound=bound, others=cheap_candidates(workload))
        return of_sensitivity_one(found, participation)
    modulus, fixed = _problem(workload, loss, gap)
    # half of the gap for the weights, half for filling up a singular Gram matrix
    balanced = balance(modulus, fixed, gap=0.5 * gap, progress=progress)
    singular = fixed is not None and len(fixed) < workload.n
    strategy = Dense(filled_up(modulus, balanced, 0.5 * gap if singular else 0.0, gap))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PerformanceWarning)  # n x n arrays are what was asked for
        others = cheap_candidates(workload)
        bound = _bound(balanced, loss)
        found = finish(strategy, asked, started, balanced.evaluations, bound=bound, others=others)
        return of_sensitivity_one(found, participation)


@on_one_thread_if_small
def dense_bound(
    workload: Workload, *, loss: LossNorm = "rms", gap: float = GAP, progress: Progress | None = None
) -> Bound:
    """Return the smallest loss that any strategy has for one participation, from below, without the strategy.

    Takes O(n) time and memory per iteration where the inverse of the workload is bidiagonal, such as for
    prefix sums: n = 10**6 is a matter of a minute. Every other strategy can be measured against it.

    Guarantee: no factorisation of the workload has a loss below `value`, in floating point too. It is
    within `gap` of the smallest loss unless the iteration stopped first.

    Args:
        workload: A, n steps.
        loss: "rms", "max", "last", or weights of the steps, >= 0, shape (n,).
        gap: relative, in [1e-9, 0.1].
        progress: called with the number of evaluations and an upper bound of the smallest loss, after each.

    Raises:
        ValueError: for bad arguments.

    Example:
        >>> from anechoic import workloads
        >>> round(dense_bound(workloads.prefix_sum(10_000), loss="max").value, 3)
        3.674

    References:
        As for `dense`.
    """
    _checked_types(workload, SINGLE)
    _checked_gap(gap)
    modulus, fixed = _problem(workload, loss, gap)
    return _bound(balance(modulus, fixed, gap=gap, progress=progress), loss)


def _checked_types(workload: Workload, participation: Participation) -> None:
    small_enough(workload)
    if not isinstance(participation, Participation):
        raise ValueError(f"participation={participation!r} must be a Participation, such as Single().")


def _checked_gap(gap: float) -> float:
    if not 1e-9 <= positive_float("gap", gap) <= 0.1:
        raise ValueError(
            f"gap={gap} must lie in [1e-9, 0.1]: it is relative, and rounding leaves about 1e-10."
        )
    return gap


def _problem(workload: Workload, loss: LossNorm, gap: float) -> tuple[Modulus, Array | None]:
    """The modulus of A, and the weights of its rows (None where they are free, for "max")."""
    weights: Array | None = None
    if not (isinstance(loss, str) and one_of("loss", loss, KINDS) == "max"):
        weights = row_weights(loss, workload.n)
        # less would underflow; the rest keeps its weights, so that its bound is one of the whole loss
        kept = np.flatnonzero(weights > NEGLIGIBLE * weights.max())
        if len(kept) < workload.n:
            rows = np.zeros((workload.n, len(kept)))
            rows[kept, np.arange(len(kept))] = 1.0
            return MatrixModulus(workload.adjoint_multiply(rows).T, symmetric=False), weights[kept]
    symmetric = workload.is_toeplitz
    inverse = bidiagonal_inverse(workload)
    if inverse is None:
        return MatrixModulus(workload.to_dense(), symmetric=symmetric), weights
    return BidiagonalModulus(*inverse, symmetric=symmetric, tolerance=SHARE * gap), weights


def _bound(found: BalancedFactors, loss: LossNorm) -> Bound:
    if isinstance(loss, str) and loss == "max":
        return Bound(found.lower, "dual of the gamma_2 norm", "every factorisation")
    return Bound(found.lower, "dual of Problem 4.3 (weighted nuclear norm)", "every factorisation")
