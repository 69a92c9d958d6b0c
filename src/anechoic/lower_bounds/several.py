"""What no mechanism can beat under several participations, for any workload and every dimension.

The theorem is in `lower_bounds.dual`: every choice of weights p and of a multiplier W gives a valid bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import singledispatch

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anechoic._validate import MODERATE, Array, finite_array
from anechoic.errors import UnsupportedError
from anechoic.losses.kinds import LossKind, row_weights
from anechoic.lower_bounds.cells import cells_bound
from anechoic.lower_bounds.dual import (
    EPS,
    Multiplier,
    ParticipationDual,
    columns,
    cycles,
    nuclear_bound,
    padded,
    rescaled,
    start,
)
from anechoic.lower_bounds.result import Bound
from anechoic.participation import MinSep
from anechoic.participation.base import Participation
from anechoic.strategies.base import Strategy
from anechoic.workloads.base import Workload

EVERY = "every factorisation"
NUCLEAR = "nuclear norm of diag(p)^½ A W^½ over sqrt(sum v) (dual of Problem 4.6)"
STRINGS = "nuclear norm of diag(p)^½ A (R (x) I)^½ over sqrt(sum v) (dual of Problem 4.6)"
DIAGONAL = "full batch: sum of the column norms of diag(p)^½ A"
STILL = 1e-7  # relative growth in three rounds below which a bound is left as it is
PARAMETERS = 2**16  # numbers in the factors of overlapping patterns
# Steps up to which a bound from n x n arrays is cheap; from which patterns of cells may tell more.
SMALL, TINY = 256, 64


def participation_bound(
    workload: Workload,
    participation: Participation,
    patterns: Sequence[Sequence[int]],
    blocks: Sequence[ArrayLike],
    kind: LossKind = "rms",
) -> Bound:
    """The bound that W = sum_pi S_pi gives: no factorisation A = B C has a smaller loss.

    Args:
        workload: A, n steps; n^3 operations.
        participation: the schema.
        patterns: steps of each pi, distinct; each must be allowed by the schema, or part of an allowed one.
        blocks: S_pi = v_pi R_pi, symmetric, semidefinite, shape (|pi|, |pi|); v_pi is the largest diagonal
            entry.
        kind: of the loss; a bound of a weighted mean of the squared errors also bounds "max", for which the
            weights are equal here.

    Raises:
        ValueError: if a pattern is not allowed, or a block is of another shape, or not semidefinite.

    Example:
        >>> from anechoic import workloads
        >>> from anechoic.participation import Cyclic
        >>> bound = participation_bound(workloads.prefix_sum(2), Cyclic(1), [[0, 1]], [np.eye(2)])
        >>> round(bound.value, 6)
        1.581139
    """
    n = workload.n
    if len(patterns) != len(blocks) or not len(patterns):
        raise ValueError(
            f"{len(patterns)} patterns but {len(blocks)} blocks: give one block for each pattern."
        )
    k = max(map(len, patterns))
    factors = np.zeros((len(patterns), k, k))
    for place, (steps, given) in enumerate(zip(patterns, blocks, strict=True)):
        _check_allowed(participation, steps, n)
        block = finite_array(f"blocks[{place}]", given, ndim=2)
        if (
            block.shape != (len(steps), len(steps))
            or np.abs(block - block.T).max() > 1e-9 * np.abs(block).max()
        ):
            raise ValueError(
                f"blocks[{place}] must be symmetric with one row for each of {len(steps)} steps."
            )
        values, vectors = np.linalg.eigh((block + block.T) / 2)
        if values[0] < -1e-9 * max(values[-1], 0.0) or values[-1] <= 0:
            raise ValueError(
                f"blocks[{place}] must be semidefinite and not zero; an eigenvalue is {values[0]}."
            )
        # the factor is what counts from here on: it is semidefinite whatever was rounded
        factors[place, : len(steps), : len(steps)] = vectors * np.sqrt(np.maximum(values, 0.0))
    weights = _weights(kind, n)
    value = nuclear_bound(
        workload.to_dense(),
        np.full(n, 1.0 / n) if weights is None else weights,
        Multiplier(padded(patterns), factors),
    )
    return Bound(value, NUCLEAR, EVERY)


def certify(
    workload: Workload,
    strategy: Strategy,
    participation: Participation,
    kind: LossKind = "rms",
    *,
    rounds: int = 12,
) -> Bound:
    """A bound for every factorisation, started from the multipliers that a good strategy suggests.

    W begins with the blocks of M^-1 H M^-1 for M = C^T C, made feasible, and is improved by L-BFGS. Patterns
    are those of `contained_patterns`; for Cyclic and FullBatch nothing is lost by it.

    Args:
        workload: A, n steps; each round takes n^3 operations and n^2 memory.
        strategy: C, of any class, square or not.
        participation: Single, Cyclic, MinSep, OncePerEpoch or FullBatch.
        kind: of the loss.
        rounds: of L-BFGS, >= 0.

    Raises:
        ValueError: if workload and strategy differ in their steps.
        UnsupportedError: for another schema.
    """
    n = workload.n
    if strategy.n != n:
        raise ValueError(f"workload has n={n} steps but strategy has n={strategy.n}: build both for one run.")
    if participation.max_participations_in(n) == n:
        return full_batch_bound(workload, _weights(kind, n))
    patterns = contained_patterns(participation, n)
    weights = _weights(kind, n)
    dense = workload.to_dense()
    rows = np.sqrt(np.full(n, 1.0 / n) if weights is None else weights)[:, None] * dense
    c = strategy.to_dense()
    suggested = columns(np.linalg.solve(c.T @ c, rows.T).T, patterns)
    begin = rescaled(patterns, np.matmul(suggested.transpose(0, 2, 1), suggested))
    return ascended(dense, weights, begin, rounds)


def ascended(workload: Array, weights: Array | None, begin: Multiplier, rounds: int) -> Bound:
    """The bound after at most some rounds of L-BFGS from a multiplier; fewer where it has stopped to grow."""
    dual = ParticipationDual(workload, begin.patterns, weights)

    def stalled(reached: list[float]) -> bool:
        return len(reached) > rounds or (len(reached) > 4 and reached[-1] < reached[-4] * (1 + STILL))

    point = dual.best(dual.pack(begin), stalled, rounds=max(1, rounds))
    return Bound(nuclear_bound(workload, point.weights, point.multiplier), NUCLEAR, EVERY)


def scaled_bound(workload: Array, weights: Array | None, patterns: NDArray[np.intp], rounds: int) -> Bound:
    """The same from the start of these patterns, for squares beyond the range of floats too."""
    unit = 2.0 ** (math.frexp(float(np.abs(workload).max()))[1] - 1)
    if 1.0 / MODERATE < unit < MODERATE:
        unit = 1.0
    a = workload / unit
    found = ascended(a, weights, start(a, weights, patterns), rounds)
    return replace(found, value=min(found.value * unit, float(np.finfo(np.float64).max)))


def full_batch_bound(workload: Workload, weights: Array | None) -> Bound:
    """The optimum where every step may be touched by one unit: sum_t ||diag(p)^½ A[:, t]||.

    It is the dual bound at W = D^-½ H D^-½, D = diag(H), H = A^T diag(p) A, and it is attained by the
    diagonal M with M[t, t] proportional to sqrt(D[t, t]). For the max loss (`weights` None) it holds for
    every p; that of the largest row sum of |A| is taken, which is attained by prefix sums.

    References:
        Monograph, Propositions 3.11 and 4.9.
    """
    a = workload.to_dense()
    n = workload.n
    if weights is None:
        value = max(float(np.abs(a).sum(axis=1).max()), _column_norms(a, np.full(n, 1.0 / n)))
    else:
        value = _column_norms(a, weights)
    return Bound(value * (1 - 4 * (n + 8) * EPS), DIAGONAL, EVERY)


def cheap_bound(workload: Workload, participation: Participation, kind: LossKind) -> Bound | None:
    """A bound that takes a fraction of a second, or None where none is known.

    Up to 256 steps some rounds of L-BFGS, for any workload and loss; for the RMS and max losses of prefix
    sums `lower_bounds.cells`, whatever n is, where few cells do.
    """
    found = [
        bound
        for bound in (_of_few_steps(workload, participation, kind), _of_cells(workload, participation, kind))
        if bound is not None
    ]
    return max(found, key=lambda bound: bound.value, default=None)


def _of_cells(workload: Workload, participation: Participation, kind: LossKind) -> Bound | None:
    if not (workload.is_prefix_sum and isinstance(kind, str) and kind in ("rms", "max")):
        return None
    try:
        value = cells_bound(workload.n, participation, free=kind == "max") if workload.n > TINY else None
    except UnsupportedError:
        return None
    return None if value is None else Bound(value, STRINGS, EVERY)


def _of_few_steps(workload: Workload, participation: Participation, kind: LossKind) -> Bound | None:
    n = workload.n
    try:
        period = participation.contained_period(n)
    except UnsupportedError:
        return None
    if n <= SMALL:
        weights = _weights(kind, n)
        if period == 1:
            return full_batch_bound(workload, weights)
        a = workload.to_dense()
        rounds = 3 if weights is not None else 10
        patterns = contained_patterns(participation, n)
        if patterns.shape[0] > period:  # overlapping ones, whose start is less good
            rounds = 20
        return scaled_bound(a, weights, patterns, rounds)
    return None


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


def _column_norms(a: Array, weights: Array) -> float:
    return float(np.sqrt(np.square(a).T @ weights).sum())


def _weights(kind: LossKind, n: int) -> Array | None:
    return None if isinstance(kind, str) and kind == "max" else row_weights(kind, n)


def _check_allowed(participation: Participation, steps: Sequence[int], n: int) -> None:
    """Refuse a pattern that the schema does not allow."""
    ordered = [int(step) for step in steps]
    distinct = len(set(ordered)) == len(ordered) > 0 and min(ordered) >= 0 and max(ordered) < n
    if not (distinct and participation.allows(ordered, n)):
        raise ValueError(
            f"pattern {ordered} is not one of distinct steps below {n} that {participation!r} allows."
        )
