"""The search for the optimum of Problem 4.6: the dual is ascended, a strategy is read off its points."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from anechoic._validate import Array
from anechoic.algebra.semidefinite import largest_correlated_sum
from anechoic.lower_bounds.dual import DualPoint, Multiplier, ParticipationDual, nuclear_bound, start

Progress = Callable[[int, float], None]

DIRECT, DIRECT_MAX = 60, 40  # rounds of L-BFGS without a barrier; where the weights are free
FIRST, RESTARTS, ROUNDS = 0.003, 5, 24  # on the central path: three times the first barrier; for each barrier
# With free weights and no barrier: rounds that each end in a strategy, and between two later ones. Rounds
# between two strategies whose sensitivity takes semidefinite programmes, without a barrier and with one.
AT_FIRST, LATER = 12, 4
SELDOM, OFTEN = 8, 3
# Weights that small, relative to the largest, may make the search fail: where the gap is not even near, it
# is repeated with other parts shared out.
SMALL, NEAR, LADDER = 1e-6, 2e-5, (1e-5, 1e-7, 1e-9)
RIDGES = (0.0, *(10.0**power for power in range(-9, 3)))


def optimum(
    a: Array, patterns: NDArray[np.intp], weights: Array | None, gap: float, progress: Progress | None
) -> tuple[Array, float, int]:
    """C of sensitivity at most 1, shape (columns, columns), its certified bound, and the evaluations.

    Args:
        a: the columns of A that somebody touches, shape (steps, columns).
        patterns: of columns, shape (count, longest), -1 beyond the end; every column is in just one.
        weights: of the squared errors; None for the max loss.
        gap: relative, to stop at.
        progress: called with the evaluations and the least loss so far.

    L-BFGS on the dual gives M within some ten evaluations where the optimal p and R_pi are regular, which
    is so for most weights of the steps. Where it stops short the central path is followed, with a barrier
    that falls to the gap asked for.
    """
    search = _Search(a, patterns, weights, gap, progress)
    for part in _parts(weights, gap):
        shared = None if weights is None else spread(weights, part)
        _follow(ParticipationDual(a, patterns, shared), start(a, shared, patterns), search)
        if search.loss <= (1 + max(gap, NEAR)) * search.bound:
            break
    return search.strategy, search.bound, search.evaluations


def _parts(weights: Array | None, gap: float) -> list[float]:
    """Parts of the weights to share out, in the order of trial; more than one where weights nearly vanish."""
    if weights is None or weights[: np.flatnonzero(weights)[-1]].min(initial=1.0) >= SMALL * weights.max():
        return [1e-3 * gap]
    return [1e-3 * gap, *(part for part in LADDER if part != 1e-3 * gap)]


def _follow(dual: ParticipationDual, begin: Multiplier, search: _Search) -> None:
    """Ascends the dual, first without a barrier, and then along the central path."""
    search.begin()
    rounds = DIRECT if search.weights is not None else DIRECT_MAX
    reached = dual.ascend(dual.pack(begin), search.directly, rounds=rounds)
    multiplier, p = reached.multiplier, reached.weights
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
        if self.weights is None and self.asked > AT_FIRST and self.asked % LATER:
            self._higher(point)
            return False
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

    def _higher(self, point: DualPoint) -> bool:
        higher = point.value > self.value
        if higher:
            self.value, self.highest = point.value, point
        return higher

    def _try(self, point: DualPoint, evaluations: int, *, masked: bool) -> float:
        evaluations = self.evaluations = self._before + evaluations
        higher = self._higher(point)
        loss, c = _primal(self.a, self.patterns, self.weights, point.gram(), masked=masked)
        lower = loss < self.loss or evaluations == 1
        if lower:
            self.loss, self.strategy = loss, c
        if self.progress is not None:
            self.progress(evaluations, self.loss)
        if (higher or lower) and self.loss <= (1 + self.gap) * self.value:
            self.certify()
            self.reached = self.loss <= (1 + self.gap) * self.bound
        return loss


def spread(weights: Array, part: float) -> Array:
    """Weights of which a small part is shared out among the steps up to the last that counts.

    Where a step before that does not count at all, M is singular, and L-BFGS slow. The search is guided by
    these weights; loss and bound are those of the weights asked for.
    """
    counting = np.arange(len(weights)) <= np.flatnonzero(weights)[-1]
    return np.asarray((1 - part) * weights + part * counting / counting.sum())


def _primal(
    a: Array, patterns: NDArray[np.intp], weights: Array | None, m: Array, *, masked: bool
) -> tuple[float, Array]:
    """A bound of the loss of C, and C of sensitivity at most 1, from the minimiser M of the Lagrangian.

    Entries of M between steps of one pattern are 0 at the optimum, if one is attained: they are set to 0, or
    left as they are at the price of a larger sensitivity, which is less where M is nearly singular. Steps in
    patterns below the largest sensitivity are scaled up, or, which no error can suffer from, their diagonal
    is added to: whichever is better. M is written to.
    """
    blocks = [steps[steps >= 0] for steps in patterns]
    totals, largest, added = [], np.zeros(len(m)), np.zeros(len(m))
    for kept in blocks:
        block = np.ix_(kept, kept)
        if masked:
            m[block] = np.diag(m[block].diagonal())
        totals.append(float(m[block].trace()) if masked else largest_correlated_sum(m[block])[1])
    for kept, total in zip(blocks, totals, strict=True):
        largest[kept], added[kept] = total, (1.0 - total / max(totals)) / len(kept)
    scales = np.where(largest > 0, 1.0 / np.sqrt(np.where(largest > 0, largest, 1.0)), 1.0)
    candidates = [_factored(a, weights, m * scales[:, None] * scales)]
    if added.max() > 0:
        candidates.append(_factored(a, weights, m / max(totals) + np.diag(added)))
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
