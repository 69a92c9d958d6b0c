"""Dense optimisation for listed patterns, which may overlap and may leave steps out.

The squared sensitivity, max over pi of sup <C^T C, R> over correlation matrices R on pi, is convex in
M = C^T C, and so is tr(H M^-1): Problem 4.6 without its equalities. Its dual is that of `lower_bounds.dual`,
which is tight for overlapping patterns too. Two kinds of steps take no part in it. Those that nobody touches:
their columns of C are a large multiple of unit vectors, so that they hardly have noise. And those that no
error with a weight depends on: theirs are a small one, so that they hardly cost sensitivity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array
from anechoic.errors import UnsupportedError
from anechoic.lower_bounds.dual import padded
from anechoic.lower_bounds.listed import maximal
from anechoic.lower_bounds.result import Bound
from anechoic.lower_bounds.several import EVERY, NUCLEAR
from anechoic.optimize.full.search import optimum
from anechoic.participation import Patterns
from anechoic.workloads.base import Workload

PARAMETERS = 2**18  # numbers in the factors of all patterns: beyond, an evaluation takes many seconds
SHARE = 1e-10  # of the squared error that noise at steps without a unit may add, and of the sensitivity


def listed_strategy(
    workload: Workload,
    participation: Patterns,
    weights: Array | None,
    gap: float,
    progress: Callable[[int, float], None] | None,
) -> tuple[Array, Bound, int]:
    """C, shape (n, n), what no factorisation can beat, and the evaluations.

    Args:
        workload: A, n steps.
        participation: the listed patterns.
        weights: of the squared errors, sum 1; None for the max loss.
        gap: relative, to stop at.
        progress: called with the evaluations and the least loss so far.

    Raises:
        UnsupportedError: if nobody takes part in any of the n steps, or no error that counts depends on who
            does, or the patterns are too many.
    """
    n = workload.n
    touched = np.array(participation.touched(n), dtype=np.intp)
    if not len(touched):
        raise UnsupportedError(
            f"participation={participation!r}: nobody takes part in the first {n} steps, so that nothing has"
            " to be protected there. List the steps that units touch."
        )
    a = workload.to_dense()
    counting = (a if weights is None else a[weights > 0])[:, touched].any(axis=0)
    silent, touched = touched[~counting], touched[counting]
    if not len(touched):
        raise UnsupportedError(
            f"participation={participation!r}: no error that has a weight in the loss depends on the steps"
            " that units touch, so that any noise there is free, and the least loss is 0. Give weights to"
            " steps whose errors depend on them, with loss='rms' for example."
        )
    place = {int(step): index for index, step in enumerate(touched)}
    cut = [[place[step] for step in steps if step in place] for steps in participation.patterns(n)]
    patterns = maximal([steps for steps in cut if steps])
    inner, value, evaluations = listed_optimum(a[:, touched], patterns, weights, gap, progress)
    c = np.zeros((n, n))
    c[np.ix_(touched, touched)] = inner
    c[silent, silent] = np.sqrt(SHARE / max(1, len(silent))) * float(np.abs(inner).max())
    rest = np.setdiff1d(np.arange(n), np.concatenate([touched, silent]))
    if len(rest):
        c[rest, rest] = _large(a, inner, touched, rest, weights)
    return c, Bound(value, NUCLEAR, EVERY), evaluations


def listed_optimum(
    a: Array,
    patterns: Sequence[tuple[int, ...]],
    weights: Array | None,
    gap: float,
    progress: Callable[[int, float], None] | None,
) -> tuple[Array, float, int]:
    """Lower-triangular C of sensitivity 1 for the columns of `a`, the certified bound, and the evaluations.

    Args:
        a: shape (steps, columns); every column is in one of the patterns.
        patterns: of columns, none a part of another.
        weights, gap, progress: as for `listed_strategy`.

    Raises:
        UnsupportedError: if the patterns are too many.
    """
    numbers = len(patterns) * len(patterns[0]) ** 2
    if numbers > PARAMETERS:
        raise UnsupportedError(
            f"{len(patterns)} patterns of up to {len(patterns[0])} steps have {numbers} multipliers; at most"
            f" {PARAMETERS} are solved for. Use a schema that allows all of them, such as MinSep."
        )
    return optimum(a, padded(patterns), weights, gap, progress)


def _large(
    a: Array, inner: Array, touched: NDArray[np.intp], rest: NDArray[np.intp], weights: Array | None
) -> float:
    """Diagonal entry of C at steps without a unit: their noise adds next to nothing to the error."""
    own = np.square(np.linalg.solve(inner.T, a[:, touched].T)).sum(axis=0)
    added = np.square(a[:, rest]).sum(axis=1)
    ratio = float(added.max() / own.max() if weights is None else (weights @ added) / (weights @ own))
    return max(float(np.abs(inner).max()), float(np.sqrt(ratio / SHARE)))
