"""The best lower bound of the loss of any mechanism that is cheap for any workload and loss."""

from __future__ import annotations

import math
from functools import singledispatch

import numpy as np

from anechoic._validate import Array, one_of
from anechoic.algebra.nuclear import MARGIN
from anechoic.errors import UnsupportedError
from anechoic.losses.norms import KINDS, LossNorm
from anechoic.lower_bounds.one_participation import (
    ARRAYS_UP_TO,
    FFT_UP_TO,
    even_nuclear_norm,
    nuclear_bounds,
    row_bounds,
    row_sizes,
)
from anechoic.lower_bounds.patterns import CAUCHY, listed_bound
from anechoic.lower_bounds.result import Bound
from anechoic.lower_bounds.several_participations import cheap_bound
from anechoic.participation import Cyclic, MinSep, OncePerEpoch, Patterns
from anechoic.participation.base import Participation
from anechoic.participation.single import SINGLE
from anechoic.sensitivity.scheduling import best_schedule
from anechoic.workloads.base import Workload


def lower_bound(
    workload: Workload, participation: Participation = SINGLE, kind: LossNorm = "rms"
) -> Bound | None:
    """Return the best bound that is cheap at this n, or None where none is known.

    For one participation: the closed form of `prefix_sum_lower_bound`, nuclear norms and their duals
    (`algebra.nuclear`), and the largest entry of a row. For several: the dual of Problem 4.6 at few steps
    (`lower_bounds.several_participations`), a nuclear norm at many, and sums of a row over a pattern.
    Where the patterns are listed, only the columns of steps that somebody may touch count.
    Dense optimisers find better ones on their way.

    Args:
        workload: A.
        participation: which steps one privacy unit may touch; one of them by default.
        kind: as in `loss`.

    Raises:
        ValueError: for an unknown kind.
    """
    if not isinstance(workload, Workload) or not isinstance(participation, Participation):
        raise ValueError(
            f"workload={workload!r}, participation={participation!r}: a Workload and a Participation are"
            " needed, in this order."
        )
    if isinstance(kind, str):
        one_of("kind", kind, KINDS)
    once = participation.max_participations_in(workload.n) == 1
    if not once or len(participation.touched(workload.n)) < workload.n:
        return bound_under(participation, workload, kind)
    found = [*row_bounds(workload, kind), *nuclear_bounds(workload, kind)]
    return max(found, key=lambda bound: bound.value, default=None)


@singledispatch
def bound_under(participation: Participation, workload: Workload, kind: LossNorm) -> Bound | None:
    """The best of the dual bound of few steps, and of a nuclear norm with an even mean of the columns.

    Take a cyclic schema that is contained in this one: its b patterns share the steps out. A unit with
    orthogonal rows at the steps of pi moves C G by the root of the sum of ||C[:, j]||^2 over j in pi, which
    is at most the sensitivity; so ||C||_F^2 <= b sens^2, and the loss is at least ||W^(1/2) A||_* / sqrt(b).

    Where all its rows are equal up to signs s, |sum_j A[t, j] s_j| <= ||B[t]|| sens; the sum is over pi.
    """
    n = workload.n
    try:
        period = participation.contained_period(n)
    except UnsupportedError:
        return None
    found = [bound for bound in [cheap_bound(workload, participation, kind)] if bound is not None]
    value = even_nuclear_norm(workload, kind)
    if value is not None:
        value *= math.sqrt(n / period) * (1 - MARGIN)
        found.append(Bound(value, "nuclear norm of the weighted A over sqrt(period)"))
    if isinstance(kind, str) and kind != "rms" and (n <= FFT_UP_TO or workload.is_prefix_sum):
        found.append(Bound(_largest_pattern_sum(workload, participation, period), CAUCHY))
    return max(found, key=lambda bound: bound.value, default=None)


@bound_under.register
def _(participation: Patterns, workload: Workload, kind: LossNorm) -> Bound | None:
    return listed_bound(workload, participation, kind)


def _largest_pattern_sum(workload: Workload, participation: Participation, period: int) -> float:
    """The largest sum of |A[n-1, j]| over the steps j of a pattern, rounded down.

    For the last error that is the infimum over every factorisation: M = C^T C near the rank-one matrix
    |a| |a|^T, a the last row of A but for signs, comes as close as one likes.
    """
    n = workload.n
    if workload.is_prefix_sum:
        return participation.max_participations_in(n) * (1 - MARGIN)
    return sum_over_pattern(participation, row_sizes(workload, n - 1), period) * (1 - MARGIN)


@singledispatch
def sum_over_pattern(participation: Participation, sizes: Array, period: int) -> float:
    """A large sum of `sizes`, shape (n,), over a pattern: one of the contained cycles of `period`."""
    return float(np.bincount(np.arange(len(sizes)) % period, weights=sizes).max())


@sum_over_pattern.register
def _(participation: MinSep, sizes: Array, period: int) -> float:
    count = participation.max_participations_in(len(sizes))
    if len(sizes) * count > ARRAYS_UP_TO:
        return sum_over_pattern(Cyclic(period), sizes, period)
    return float(best_schedule(sizes, participation.separation, count))


@sum_over_pattern.register
def _(participation: OncePerEpoch, sizes: Array, period: int) -> float:
    return float(np.maximum.reduceat(sizes, np.arange(0, len(sizes), participation.period)).sum())
