"""Lower bounds under several participations, for any workload and every dimension.

The theorem is in `lower_bounds.dual`: every choice of weights p and of a multiplier W gives a valid bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import singledispatch

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import MODERATE, Array
from anechoic.errors import UnsupportedError
from anechoic.losses.norms import LossNorm, row_weights
from anechoic.lower_bounds.dual import (
    EPS,
    ParticipationDual,
    cycles,
    nuclear_bound,
    padded,
    start,
)
from anechoic.lower_bounds.result import Bound
from anechoic.lower_bounds.strings import strings_bound
from anechoic.participation import MinSep
from anechoic.participation.base import Participation
from anechoic.sensitivity.patterns import few_patterns
from anechoic.workloads.base import Workload

EVERY = "every factorisation"
NUCLEAR = "nuclear norm of diag(p)^½ A W^½ over sqrt(sum v) (dual of Problem 4.6)"
STRINGS = "nuclear norm of diag(p)^½ A (R (x) I)^½ over sqrt(sum v) (dual of Problem 4.6)"
DIAGONAL = "full batch: sum of the column norms of diag(p)^½ A"
STEPS = 64  # of the ascent over free weights
STILL = 1e-7  # relative growth in three rounds below which a bound is left as it is
FEW, LONG = 400, 60  # patterns up to which all of them are taken, and then the rounds
PARAMETERS = 2**16  # numbers in the factors of overlapping patterns
# Steps up to which a bound from n x n arrays is cheap; from which `lower_bounds.strings` may tell more.
SMALL, TINY = 256, 64


def scaled_bound(workload: Array, weights: Array | None, patterns: NDArray[np.intp], rounds: int) -> Bound:
    """The bound after at most some rounds of L-BFGS; fewer where it has stopped to grow.

    For squares beyond the range of floats too.
    """
    unit = 2.0 ** (math.frexp(float(np.abs(workload).max()))[1] - 1)
    if 1.0 / MODERATE < unit < MODERATE:
        unit = 1.0
    a = workload / unit
    dual = ParticipationDual(a, patterns, weights)

    def stalled(reached: list[float]) -> bool:
        return len(reached) > rounds or (len(reached) > 4 and reached[-1] < reached[-4] * (1 + STILL))

    point = dual.best(dual.pack(start(a, weights, patterns)), stalled, rounds=max(1, rounds))
    value = nuclear_bound(a, point.weights, point.multiplier) * unit
    return Bound(min(value, float(np.finfo(np.float64).max)), NUCLEAR, EVERY)


def full_batch_bound(workload: Workload, weights: Array | None) -> Bound:
    """The optimum where every step may be touched by one unit: sum_t ||diag(p)^½ A[:, t]||.

    It is the dual bound at W = D^-½ H D^-½, D = diag(H), H = A^T diag(p) A, and it is attained by the
    diagonal M with M[t, t] proportional to sqrt(D[t, t]). For the max loss (`weights` None) it holds for
    every p; the largest row sum of |A|, which is attained by prefix sums, is where p is that row alone.

    References:
        Monograph, Propositions 3.11 and 4.9.
    """
    a = workload.to_dense()
    n = workload.n
    if weights is None:
        value, p, squares = float(np.abs(a).sum(axis=1).max()), np.full(n, 1.0 / n), np.square(a)
        for _ in range(STEPS):  # multiplicative ascent: the bound is concave in p
            norms = np.sqrt(squares.T @ p)
            value = max(value, float(norms.sum()))
            p *= squares @ (1.0 / norms)
            p /= p.sum()
    else:
        value = float(np.sqrt(np.square(a).T @ weights).sum())
    return Bound(value * (1 - 4 * (n + 8) * EPS), DIAGONAL, EVERY)


def cheap_bound(workload: Workload, participation: Participation, kind: LossNorm) -> Bound | None:
    """A bound that takes some seconds at most, or None where none is known.

    Up to 256 steps some rounds of L-BFGS, for any workload and loss; for the RMS and max losses of prefix
    sums `lower_bounds.strings`, whatever n is, where few cells do.
    """
    n = workload.n
    try:
        period = participation.contained_period(n)
    except UnsupportedError:
        return None
    found = [_of_few_steps(workload, participation, kind, period)] if n <= SMALL else []
    if n > TINY and workload.is_prefix_sum and isinstance(kind, str) and kind in ("rms", "max"):
        value = strings_bound(n, participation, free=kind == "max")
        found += [Bound(value, STRINGS, EVERY)] if value is not None else []
    return max(found, key=lambda bound: bound.value, default=None)


def _of_few_steps(workload: Workload, participation: Participation, kind: LossNorm, period: int) -> Bound:
    weights = None if isinstance(kind, str) and kind == "max" else row_weights(kind, workload.n)
    if period == 1:
        return full_batch_bound(workload, weights)
    if every := few_patterns(participation, workload.n, FEW):
        return scaled_bound(workload.to_dense(), weights, padded(maximal_patterns(every)), LONG)
    patterns = contained_patterns(participation, workload.n)
    # overlapping ones have a start that is less good
    rounds = 20 if patterns.shape[0] > period else 3 if weights is not None else 10
    return scaled_bound(workload.to_dense(), weights, patterns, rounds)


def maximal_patterns(patterns: Iterable[Sequence[int]]) -> list[tuple[int, ...]]:
    """The patterns that are not part of another one, the longest first."""
    kept: list[tuple[int, ...]] = []
    sets: list[set[int]] = []
    for pattern in sorted(set(map(tuple, patterns)), key=lambda steps: (-len(steps), steps)):
        if not any(larger.issuperset(pattern) for larger in sets):
            kept.append(pattern)
            sets.append(set(pattern))
    return kept


@singledispatch
def contained_patterns(participation: Participation, n: int) -> NDArray[np.intp]:
    """Patterns that the schema allows and that bound it well, shape (count, longest), -1 beyond the end.

    The cycles of the least period that it allows, unless a schema knows better.

    Raises:
        UnsupportedError: if none are known.
    """
    return cycles(participation.contained_period(n), n)


@contained_patterns.register
def _(participation: MinSep, n: int) -> NDArray[np.intp]:
    """With fewer participations than fit the combs of that separation at every offset, which overlap.

    They are worse than cycles that reach over all steps.
    """
    b, count = participation.separation, participation.max_participations_in(n)
    if count == 1 or count * b >= n:
        return cycles(participation.contained_period(n), n)
    # a comb cut short by n is part of the one that begins a separation before
    last = max(n - 1 - (count - 1) * b, b - 1)
    spacing = max(1, (last + 1) * count**2 // PARAMETERS)
    combs = np.arange(0, last + 1, spacing)[:, None] + b * np.arange(count)
    return np.where(combs < n, combs, -1)
