"""Dense optimisation under several participations: Problem 4.6 and its relatives, with certificates."""

from __future__ import annotations

import time
from functools import singledispatch

import numpy as np
import scipy

from anechoic._validate import Array, positive_float
from anechoic.algebra import banded
from anechoic.errors import UnsupportedError
from anechoic.losses.kinds import LossKind, row_weights
from anechoic.lower_bounds.dual import EPS, cycles, start
from anechoic.lower_bounds.listed import maximal
from anechoic.lower_bounds.result import Bound
from anechoic.lower_bounds.several import EVERY, NUCLEAR, ascended, contained_patterns, full_batch_bound
from anechoic.optimize.columns.banded import NEGLIGIBLE, begun, presentable
from anechoic.optimize.columns.neighbours import neighbours, serves
from anechoic.optimize.columns.objective import DenseObjective, objective_of
from anechoic.optimize.full.generated import GENERATED_UP_TO, generated_bound
from anechoic.optimize.full.listed import listed_strategy
from anechoic.optimize.full.quick import of_sensitivity_one, quick
from anechoic.optimize.full.search import SMALL, Progress, optimum, spread
from anechoic.optimize.result import Optimized, finish
from anechoic.optimize.windows import windows_of, windows_strategy
from anechoic.participation import Cyclic, FullBatch, MinSep, OncePerEpoch, Patterns
from anechoic.participation.base import Participation
from anechoic.strategies import Dense
from anechoic.workloads.base import Workload

FEW_STEPS, FEW_PATTERNS = 12, 40  # up to which all patterns are listed
DIRECT = 60  # rounds of L-BFGS for a bound
# Steps from which a search under minimum separation is one over banded columns; the gap to the bound of their
# class at which that for the largest error ends, as other classes may be better still.
SMALL_BANDS, LARGEST_GAP = 128, 1e-3


def dense_with_participation(
    workload: Workload,
    participation: Participation,
    kind: LossKind = "rms",
    *,
    gap: float = 1e-4,
    progress: Progress | None = None,
) -> Optimized:
    """A dense C with the least loss under several participations, and what no factorisation can beat.

    Cyclic: the optimum of Problem 4.6, which is then the optimum over **every** factorisation, for every
    dimension of the gradients (the dual bound is tight, see `lower_bounds.dual`). Full batch: the same, in
    closed form: M diagonal with M[t, t] proportional to ||diag(p)^½ A[:, t]||. Minimum separation and one
    step an epoch: the optimum over M that vanish on the patterns off their diagonals, as in Problem 4.8 but
    with a free diagonal, under the exact sensitivity of Algorithm 3.2; the bound is that of a cyclic schema
    it contains.

    Args:
        workload: A, n steps; n^2 numbers are held, and n^3 operations take place in each evaluation.
        participation: Cyclic, MinSep, OncePerEpoch, FullBatch, Patterns, or Single.
        kind: "rms", "max", "last", or weights of the steps, shape (n,).
        gap: stop when the loss is at most 1 + gap times the lower bound.
        progress: called with the evaluations so far and the least loss so far.

    Raises:
        ValueError: for an unknown kind, or a gap that is not > 0.
        UnsupportedError: for another schema.

    References:
        Monograph, Problems 4.6 and 4.8, Propositions 3.11 and 4.9.
    """
    gap = positive_float("gap", gap)
    weights = None if isinstance(kind, str) and kind == "max" else row_weights(kind, workload.n)
    started = time.perf_counter()
    c, bound, evaluations = found_under(participation, workload, weights, gap, progress)
    asked = workload, participation, kind
    found = finish(Dense(c), asked, started, evaluations, bound=bound, others=quick(workload))
    return of_sensitivity_one(found, participation)


#: C, shape (n, n), what no factorisation can beat, and the evaluations that it took.
Found = tuple[Array, Bound, int]


@singledispatch
def found_under(
    participation: Participation,
    workload: Workload,
    weights: Array | None,
    gap: float,
    progress: Progress | None,
) -> Found:
    """What is found for a schema, for the given weights of the squared errors, or None for the largest.

    Raises:
        UnsupportedError: for a schema that it does not know.
    """
    if participation.max_participations_in(workload.n) == 1:
        return _disjoint(workload, workload.n, weights, gap, progress)
    raise UnsupportedError(
        f"participation={participation!r}: dense optimisation knows Single, Cyclic, MinSep, OncePerEpoch,"
        " FullBatch and Patterns. Optimise for one of these that allows all of its patterns."
    )


@found_under.register
def _(
    participation: FullBatch, workload: Workload, weights: Array | None, gap: float, progress: Progress | None
) -> Found:
    return _full_batch(workload, weights, gap)


@found_under.register
def _(
    participation: Patterns, workload: Workload, weights: Array | None, gap: float, progress: Progress | None
) -> Found:
    return listed_strategy(workload, participation, weights, gap, progress)


@found_under.register
def _(
    participation: Cyclic, workload: Workload, weights: Array | None, gap: float, progress: Progress | None
) -> Found:
    if participation.max_participations_in(workload.n) == workload.n:
        return _full_batch(workload, weights, gap)
    return _disjoint(workload, min(participation.period, workload.n), weights, gap, progress)


@found_under.register(MinSep)
@found_under.register(OncePerEpoch)
def _(
    participation: MinSep | OncePerEpoch,
    workload: Workload,
    weights: Array | None,
    gap: float,
    progress: Progress | None,
) -> Found:
    n, count = workload.n, participation.max_participations_in(workload.n)
    if count == n:
        return _full_batch(workload, weights, gap)
    if count == 1:
        return _disjoint(workload, n, weights, gap, progress)
    a = workload.to_dense()
    begin = start(a, weights, contained_patterns(participation, n))
    bound = ascended(a, weights, begin, DIRECT)
    if n <= GENERATED_UP_TO:
        further = generated_bound(a, weights, participation)[0]
        bound = max(bound, further, key=lambda found: found.value)
    shared = weights
    if weights is not None and weights.min() < SMALL * weights.max():
        shared = spread(weights, 1e-2 * gap)
    enough = bound.value * (1 + gap)
    c, evaluations = _over_windows(participation, workload, a, shared, enough, progress)
    return c, bound, evaluations


def few_patterns(participation: Participation, n: int) -> Patterns | None:
    """All that are part of no other, where they are few: their optimum is known (Problem 4.6)."""
    if n > FEW_STEPS:
        return None
    found = maximal(list(participation.patterns(n)))
    return Patterns(found) if len(found) <= FEW_PATTERNS else None


def _over_windows(
    participation: Participation,
    workload: Workload,
    a: Array,
    weights: Array | None,
    enough: float,
    progress: Progress | None,
) -> tuple[Array, int]:
    """C whose Gram matrix vanishes on the patterns, and the evaluations it took.

    Under minimum separation for the largest error up to twice as many bands as the separation, where that
    search is quick. Else, for many steps, as many bands as the separation, the same class, by columns: where
    the inverse of the workload has few bands, an evaluation takes O(n separation^2).
    """
    n = workload.n
    if isinstance(participation, MinSep):
        twice = min(2 * participation.separation, n)
        if weights is None and serves(workload, twice, participation):
            columns, evaluations = neighbours(workload, twice, participation, progress)
            return banded.dense(presentable(columns)), evaluations
    windows = windows_of(participation, n)
    if windows is None:
        raise UnsupportedError(f"participation={participation!r} is not described by windows of steps.")
    if n <= SMALL_BANDS or not isinstance(participation, MinSep):
        return windows_strategy(a, windows, weights, enough, progress)
    bands = min(participation.separation, n)
    objective = objective_of(workload, bands)
    if objective is None:
        objective = DenseObjective(a)
    even = np.full(n, 1.0 / n)
    search, columns = begun(
        objective, workload, even if weights is None else weights, bands, participation, progress
    )
    if weights is None:
        columns = search.minimax(columns, workload, LARGEST_GAP)[0]
    else:
        columns = search.minimise(columns, np.maximum(weights, NEGLIGIBLE / n))
    return banded.dense(presentable(columns)), search.evaluations


def _disjoint(
    workload: Workload, period: int, weights: Array | None, gap: float, progress: Progress | None
) -> tuple[Array, Bound, int]:
    """C, shape (n, n), its certificate and the evaluations, for cycles, which do not overlap."""
    c, value, evaluations = optimum(workload.to_dense(), cycles(period, workload.n), weights, gap, progress)
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
