"""Bounds under minimum separation and one step an epoch from patterns that are found on the way.

Their patterns are too many to be listed. The dual of `lower_bounds.dual` holds for any of them: it begins
with combs or cycles, and the M that it suggests names patterns for which the sensitivity of M is large. These
are added, and the dual is ascended again, until they are as many as take about a second.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array
from anechoic.lower_bounds.dual import DualPoint, ParticipationDual, nuclear_bound, padded, start
from anechoic.lower_bounds.result import Bound
from anechoic.lower_bounds.several import EVERY, NUCLEAR, contained_patterns
from anechoic.optimize.full.search import optimum
from anechoic.participation.base import Participation

GENERATED_UP_TO = 64  # steps
# Steps, and numbers in the factors, up to which the optimum for the patterns found is computed.
SOLVED_UP_TO, SOLVED_PARAMETERS = 17, 2**10
PARAMETERS = 2**13  # numbers in the factors of all patterns
GENERATIONS, ROUNDS = 6, 60  # of patterns, and of L-BFGS in each
STILL = 1e-5  # relative growth in ten rounds below which an ascent ends


def generated_bound(
    a: Array, weights: Array | None, participation: Participation
) -> tuple[Bound, NDArray[np.intp]]:
    """The highest bound, for every factorisation, and the patterns of the last ascent, (count, longest).

    Args:
        a: A, shape (n, n).
        weights: of the squared errors, sum 1; None for the max loss.
        participation: with more than one participation.
    """
    n = len(a)
    patterns = {tuple(int(t) for t in row if t >= 0) for row in contained_patterns(participation, n)}
    highest = 0.0
    for _ in range(GENERATIONS):
        listed = padded(sorted(patterns))
        point = _ascended(a, weights, listed)
        value = nuclear_bound(a, point.weights if weights is None else weights, point.multiplier)
        highest = max(highest, value)
        new = heavy_patterns(point.gram(), participation) - patterns
        room = PARAMETERS // listed.shape[1] ** 2 - len(patterns)
        if not new or room <= 0:
            break
        patterns |= set(sorted(new)[:: -(-len(new) // room)])
    return Bound(highest, NUCLEAR, EVERY), listed


def generated_strategy(
    a: Array, weights: Array | None, participation: Participation, gap: float
) -> Array | None:
    """C, (n, n), the optimum for the patterns found, which may be good for all; None where it is slow."""
    if len(a) > SOLVED_UP_TO:
        return None
    patterns = generated_bound(a, weights, participation)[1]
    if patterns.size * patterns.shape[1] > SOLVED_PARAMETERS:
        return None
    return optimum(a, patterns, weights, gap, None)[0]


def heavy_patterns(gram: Array, participation: Participation) -> set[tuple[int, ...]]:
    """For each step an allowed pattern that holds it, of large sum of |M|: the heaviest joins in turn."""
    n = len(gram)
    sizes = np.abs(gram)
    apart = participation.together(n)
    chosen = np.eye(n, dtype=bool)  # one pattern a row
    free = apart.copy()
    for _ in range(participation.max_participations_in(n) - 1):
        gains = np.where(free, sizes.diagonal() + 2.0 * chosen @ sizes, -1.0)
        best = gains.argmax(axis=1)
        grows = gains.max(axis=1) >= 0.0
        chosen[grows, best[grows]] = True
        free[grows] &= apart[best[grows]]
    return {tuple(int(t) for t in np.flatnonzero(row)) for row in chosen}


def _ascended(a: Array, weights: Array | None, patterns: NDArray[np.intp]) -> DualPoint:
    dual = ParticipationDual(a, patterns, weights)

    def stalled(reached: list[float]) -> bool:
        return len(reached) > 10 and reached[-1] < reached[-11] * (1 + STILL)

    return dual.best(dual.pack(start(a, weights, patterns)), stalled, rounds=ROUNDS)
