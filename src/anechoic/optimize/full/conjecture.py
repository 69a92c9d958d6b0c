"""Conjecture 4.7: that Problem 4.6 may ask for equality where it means "at most". Checked case by case."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from anechoic._validate import Array
from anechoic.errors import UnsupportedError
from anechoic.losses.kinds import row_weights
from anechoic.optimize.full.participation import dense_with_participation
from anechoic.participation import Cyclic
from anechoic.participation.base import Participation
from anechoic.workloads.base import Workload, checked_workload

LARGEST = 16  # steps up to which the patterns of an overlapping schema are listed
CLOSE = 1e-3  # relative; the optimum is known to about the root of the gap


@dataclass(frozen=True)
class Conjecture:
    """Whether Conjecture 4.7 held for one workload and schema, for the RMS loss.

    Attributes:
        held: the optimum under sum_{t in pi} M[t, t] <= 1 attains 1 on every pattern; None where the
            equalities contradict one another, so that Problem 4.6 has no solution and there is nothing to
            compare.
        smallest: the smallest multiplier v_pi over their mean, for patterns that do not overlap; the smallest
            sum of M[t, t] over a maximal pattern, for those that do.
        reason: what decided it.
    """

    held: bool | None
    smallest: float
    reason: str


def conjecture_4_7(workload: Workload, participation: Participation) -> Conjecture:
    """Solve Problem 4.6 with inequalities for the RMS loss; do the equalities hold at its solution?

    Where no two patterns overlap (Single, Cyclic, FullBatch) the conjecture is a theorem: the multipliers of
    the equalities are diagonal entries of M^-1 H M^-1, which is semidefinite, so none is negative and the
    solution is optimal under the inequalities as well. Where they do, it can fail: for prefix sums, n = 4
    and MinSep(1, 3) the equalities force M = I / 3 and a loss of 2.7386, while a larger M[0, 0] has 2.7321.

    Args:
        workload: A, at most 16 steps where patterns overlap.
        participation: Single, Cyclic, FullBatch, MinSep or OncePerEpoch. Patterns that are part of another
            allowed one are left out: with them the equalities could not hold for any schema.

    Raises:
        UnsupportedError: for another schema, or too many steps.

    References:
        Monograph, Conjecture 4.7.
    """
    checked_workload(workload)
    if not isinstance(participation, Participation):
        raise ValueError(f"participation={participation!r} must be a Participation, such as Single().")
    n = workload.n
    # whole cycles are allowed, so where no other pair of steps is, they are all patterns, and disjoint
    cycles = Cyclic(participation.contained_period(n))
    if np.array_equal(participation.together(n), cycles.together(n)):
        multipliers = _multipliers(workload, participation)
        smallest = float(multipliers.min() / multipliers.mean())
        return Conjecture(
            smallest >= 0, smallest, "multipliers are diagonal entries of a semidefinite matrix"
        )
    if n > LARGEST:
        raise UnsupportedError(
            f"n={n}: the patterns of {participation!r} are listed up to {LARGEST} steps only."
        )
    incidence = _maximal(participation, n)
    optimum = dense_with_participation(workload, participation, "rms", gap=1e-6)
    sums = incidence @ optimum.strategy.column_norms_squared()
    smallest = float(sums.min() / sums.max())
    if not _consistent(incidence):
        return Conjecture(None, smallest, "the equalities of Problem 4.6 contradict one another")
    return Conjecture(
        smallest > 1 - CLOSE, smallest, "sums over the patterns at the optimum under inequalities"
    )


def _multipliers(workload: Workload, participation: Participation) -> Array:
    """Of the equality of each pattern, shape (patterns,)."""
    n = workload.n
    c = dense_with_participation(workload, participation, "rms", gap=1e-6).strategy.to_dense()
    rows = np.sqrt(row_weights("rms", n))[:, None] * workload.to_dense()
    diagonal = np.square(np.linalg.solve(c.T @ c, rows.T)).sum(axis=1)
    return np.array([diagonal[list(steps)].mean() for steps in participation.patterns(n)])


def _maximal(participation: Participation, n: int) -> Array:
    """Incidence of the patterns that are no part of another, shape (patterns, n)."""
    found = {frozenset(steps) for steps in participation.patterns(n)}
    kept = sorted(sorted(steps) for steps in found if not any(steps < other for other in found))
    incidence = np.zeros((len(kept), n))
    for row, steps in zip(incidence, kept, strict=True):
        row[steps] = 1.0
    return incidence


def _consistent(incidence: Array) -> bool:
    """Whether some d > 0 has the sum 1 on every pattern: linear programming for the largest least entry."""
    patterns, n = incidence.shape
    answer = scipy.optimize.linprog(
        np.append(np.zeros(n), -1.0),
        A_ub=np.hstack([-np.eye(n), np.ones((n, 1))]),
        b_ub=np.zeros(n),
        A_eq=np.hstack([incidence, np.zeros((patterns, 1))]),
        b_eq=np.ones(patterns),
        bounds=[(None, None)] * (n + 1),
    )
    return bool(answer.status == 0 and -answer.fun > 1e-9)
