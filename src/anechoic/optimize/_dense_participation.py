"""Dense optimisation under several participations: Problem 4.6 and its relatives, with certificates."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.optimize import minimize

from anechoic._validate import Array, positive_float
from anechoic.errors import UnsupportedError
from anechoic.losses import LossKind, row_weights
from anechoic.lower_bounds import Bound
from anechoic.lower_bounds_participation import (
    EVERY,
    NUCLEAR,
    ascended,
    contained_period,
    full_batch_bound,
)
from anechoic.optimize._dense_windows import windows_strategy
from anechoic.optimize.result import Optimized, finish
from anechoic.participation import Cyclic, FullBatch, MinSep, OncePerEpoch, Participation
from anechoic.participation_dual import (
    EPS,
    DualPoint,
    Multiplier,
    ParticipationDual,
    cycles,
    nuclear_bound,
    start,
)
from anechoic.sensitivity.correlations import largest_correlated_sum
from anechoic.strategies import Dense
from anechoic.workloads import Workload

Progress = Callable[[int, float], None]

DIRECT = 60  # rounds of L-BFGS without a barrier
FIRST, RESTARTS, ROUNDS = 0.03, 5, 24  # on the central path: three times the first barrier; for each barrier
SELDOM, OFTEN = 8, 3  # rounds between two strategies whose sensitivity takes semidefinite programmes
# Weights that small, relative to the largest, may make the search fail: where the gap is not even near, it
# is repeated with other parts shared out.
SMALL, NEAR, LADDER = 1e-6, 2e-5, (1e-5, 1e-7, 1e-9)
RIDGES = (0.0, *(10.0**power for power in range(-9, 3)))


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
    dimension of the gradients (the dual bound is tight, see `participation_dual`). Full batch: the same, in
    closed form: M diagonal with M[t, t] proportional to ||diag(p)^½ A[:, t]||. Minimum separation and one
    step an epoch: the optimum over M that vanish on the patterns off their diagonals, as in Problem 4.8 but
    with a free diagonal, under the exact sensitivity of Algorithm 3.2; the bound is that of a cyclic schema
    it contains.

    Args:
        workload: A, n steps; n^2 numbers are held, and n^3 operations take place in each evaluation.
        participation: Cyclic, MinSep, OncePerEpoch, FullBatch, or Single.
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
    n = workload.n
    weights = None if isinstance(kind, str) and kind == "max" else row_weights(kind, n)
    count = participation.max_participations_in(n)
    started = time.perf_counter()
    match participation:
        case Cyclic() | FullBatch() | MinSep() | OncePerEpoch() if count == n:
            c, bound, evaluations = _full_batch(workload, weights, gap)
        case _ if count == 1:
            c, bound, evaluations = _disjoint(workload.to_dense(), cycles(n, n), weights, gap, progress)
        case Cyclic(period=period):
            c, bound, evaluations = _disjoint(workload.to_dense(), cycles(period, n), weights, gap, progress)
        case MinSep() | OncePerEpoch():
            a = workload.to_dense()
            begin = start(a, weights, cycles(contained_period(participation, n), n))
            bound = ascended(a, weights, begin, DIRECT)
            c, evaluations = windows_strategy(a, participation, weights, bound.value * (1 + gap), progress)
        case _:
            raise UnsupportedError(
                f"participation={participation!r}: dense optimisation knows Single, Cyclic, MinSep,"
                " OncePerEpoch and FullBatch. Optimise for one of these that allows all of its patterns."
            )
    return finish(
        Dense(c), workload, participation, kind, evaluations=evaluations, started=started, bound=bound
    )


def _disjoint(
    a: Array, patterns: NDArray[np.intp], weights: Array | None, gap: float, progress: Progress | None
) -> tuple[Array, Bound, int]:
    """C, shape (n, n), its certificate and the evaluations, for patterns that do not overlap.

    L-BFGS on the dual gives M within some ten evaluations where the optimal p and R_pi are regular, which
    is so for most weights of the steps. Else the central path is followed, with a barrier that falls to the
    gap asked for.
    """
    search = _Search(a, patterns, weights, gap, progress)
    for part in _parts(weights, gap):
        shared = None if weights is None else _spread(weights, part)
        _follow(ParticipationDual(a, patterns, shared), start(a, shared, patterns), search)
        if search.loss <= (1 + max(gap, NEAR)) * search.bound:
            break
    return search.strategy, Bound(search.bound, NUCLEAR, EVERY), search.evaluations


def _parts(weights: Array | None, gap: float) -> list[float]:
    """Parts of the weights to share out, in the order of trial; more than one where weights nearly vanish."""
    if weights is None or weights[: np.flatnonzero(weights)[-1]].min(initial=1.0) >= SMALL * weights.max():
        return [1e-3 * gap]
    return [1e-3 * gap, *(part for part in LADDER if part != 1e-3 * gap)]


def _follow(dual: ParticipationDual, begin: Multiplier, search: _Search) -> None:
    """Ascends the dual, first without a barrier, and then along the central path."""
    search.begin()
    dual.ascend(dual.pack(begin), search.directly, rounds=DIRECT)
    multiplier, p = begin, None
    barrier = FIRST
    while not search.reached and barrier > search.gap / 10:
        barrier /= 3
        dual.barrier = barrier
        for _ in range(RESTARTS):
            point = dual.ascend(dual.pack(multiplier, p), search.on_path(barrier), rounds=ROUNDS)
            multiplier, p = point.multiplier, point.weights
            if search.reached or search.centred:
                break
    if not search.reached:
        search.certify()


class _Search:
    """The best strategy and the highest bound so far, and whether they are near enough."""

    highest: DualPoint
    strategy: Array

    def __init__(
        self,
        a: Array,
        patterns: NDArray[np.intp],
        weights: Array | None,
        gap: float,
        progress: Progress | None,
    ) -> None:
        self.a, self.patterns, self.weights, self.gap, self.progress = a, patterns, weights, gap, progress
        self.loss, self.value, self.bound = float("inf"), -float("inf"), -float("inf")
        self.reached = self.centred = False
        self.asked = self.evaluations = self._before = 0

    def begin(self) -> None:
        """A new dual follows, of other weights: its values do not compare with those so far."""
        self.value, self._before = -float("inf"), self.evaluations

    def directly(self, point: DualPoint, evaluations: int) -> bool:
        """The strategy with M masked; now and then, also the one with M as it is."""
        self.asked += 1
        self._try(point, evaluations, masked=True)
        if not self.reached and self.asked % SELDOM == 0:
            self._try(point, evaluations, masked=False)
        return self.reached

    def on_path(self, barrier: float) -> Callable[[DualPoint, int], bool]:
        """Stops where the strategy of the point shows that it is near the central path."""
        self.centred = False

        def done(point: DualPoint, evaluations: int) -> bool:
            self.asked += 1
            if self.asked % OFTEN == 0:
                loss = self._try(point, evaluations, masked=False)
                self.centred = loss <= (1 + 3 * barrier) * point.value
            return self.reached or self.centred

        return done

    def certify(self) -> None:
        """The safe bound of the highest point, at the weights asked for."""
        weights = self.highest.weights if self.weights is None else self.weights
        self.bound = max(self.bound, nuclear_bound(self.a, weights, self.highest.multiplier))

    def _try(self, point: DualPoint, evaluations: int, *, masked: bool) -> float:
        evaluations = self.evaluations = self._before + evaluations
        higher = point.value > self.value
        if higher:
            self.value, self.highest = point.value, point
        loss, c = _primal(self.a, self.patterns, self.weights, point, masked=masked)
        lower = loss < self.loss or evaluations == 1
        if lower:
            self.loss, self.strategy = loss, c
        if self.progress is not None:
            self.progress(evaluations, self.loss)
        if (higher or lower) and self.loss <= (1 + self.gap) * self.value:
            self.certify()
            self.reached = self.loss <= (1 + self.gap) * self.bound
        return loss


def _spread(weights: Array, part: float) -> Array:
    """Weights of which a small part is shared out among the steps up to the last that counts.

    Where a step before that does not count at all, M is singular, and L-BFGS slow. The search is guided by
    these weights; loss and bound are those of the weights asked for.
    """
    counting = np.arange(len(weights)) <= np.flatnonzero(weights)[-1]
    return np.asarray((1 - part) * weights + part * counting / counting.sum())


def _primal(
    a: Array, patterns: NDArray[np.intp], weights: Array | None, point: DualPoint, *, masked: bool
) -> tuple[float, Array]:
    """A bound of the loss of C, and C of sensitivity at most 1, from the minimiser M of the Lagrangian.

    Entries of M between steps of one pattern are 0 at the optimum, if one is attained: they are set to 0, or
    left as they are at the price of a larger sensitivity, which is less where M is nearly singular. A pattern
    below the largest sensitivity is scaled up to it, or, which no error can suffer from, its diagonal is
    added to: whichever is better.
    """
    m = point.gram()
    totals = np.empty(len(patterns))
    for index, steps in enumerate(patterns):
        kept = steps[steps >= 0]
        block = np.ix_(kept, kept)
        if masked:
            m[block] = np.diag(m[block].diagonal())
        totals[index] = float(m[block].trace()) if masked else largest_correlated_sum(m[block])[1]
    scales, added = np.empty(len(m)), np.empty(len(m))
    for steps, total in zip(patterns, totals, strict=True):
        kept = steps[steps >= 0]
        scales[kept] = 1.0 / np.sqrt(total) if total > 0 else 1.0
        added[kept] = (1.0 - total / totals.max()) / len(kept)
    candidates = [_factored(a, weights, m * scales[:, None] * scales)]
    if added.max() > 0:
        candidates.append(_factored(a, weights, m / totals.max() + np.diag(added)))
    return min(candidates, key=lambda candidate: candidate[0])


def _factored(a: Array, weights: Array | None, m: Array) -> tuple[float, Array]:
    """The error of C with C^T C = M, and C; a multiple of the diagonal is added where M is not definite."""
    diagonal = np.maximum(m.diagonal(), 1e-12)  # steps after the last that counts
    for ridge in RIDGES:
        np.fill_diagonal(m, (1.0 + ridge) * diagonal)
        try:
            # C^T C = M for lower-triangular C: a Cholesky factor from the last step to the first
            factor = np.linalg.cholesky(m[::-1, ::-1])
        except np.linalg.LinAlgError:
            continue
        c = np.ascontiguousarray(factor[::-1, ::-1].T) / np.sqrt(1.0 + ridge)
        squares = np.square(solve_triangular(c, a.T, trans="T", lower=True)).sum(axis=0)
        return float(np.sqrt(squares.max() if weights is None else weights @ squares)), c
    return float("inf"), np.diag(np.sqrt(diagonal))


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
        return error(best[0]) <= (1 + gap) * highest[0]

    def callback(x: Array) -> None:
        if reached(x):
            raise StopIteration

    # even weights may be optimal: L-BFGS takes no step from there, and calls nothing back
    even = np.zeros(workload.n)
    if error(best[0]) > (1 + 1e-12) * highest[0] and not reached(even):
        options = {"maxiter": 5000, "maxfun": 20000, "maxcor": 30, "ftol": 0.0, "gtol": 0.0}
        minimize(value, even, jac=True, method="L-BFGS-B", callback=callback, options=options)
    slack = 1 - 4 * (workload.n + 8) * EPS
    return np.diag(best[0]), Bound(max(bound.value, highest[0] * slack), bound.theorem, EVERY), calls[0]


def _diagonal(squares: Array, weights: Array) -> Array:
    """sqrt of M[t, t] proportional to the norm of column t, of sum 1; columns that do not count stay > 0."""
    m = np.sqrt(squares.T @ weights)
    m = np.maximum(m, 1e-10 * m.max())
    return np.asarray(np.sqrt(m / m.sum()))
