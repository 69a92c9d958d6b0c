"""Conjecture 4.7: that Problem 4.6 may ask for equality where it means "at most". Checked case by case."""

from __future__ import annotations

import numpy as np
import scipy

from anechoic._validate import Array
from anechoic.errors import UnsupportedError
from anechoic.lower_bounds.several_participations import maximal_patterns
from anechoic.optimize import banded, dense
from anechoic.participation import MinSep
from anechoic.participation.base import Participation
from anechoic.workloads.base import Workload, checked_workload

LARGEST = 16  # steps up to which the patterns are listed
CLOSE = 1e-3  # relative; the optimum is known to about the root of the gap


def conjecture_4_7(workload: Workload, participation: Participation) -> bool | None:
    """Solve Problem 4.6 with inequalities for the RMS loss; do the equalities hold at its solution?

    Where no two patterns overlap (Single, Cyclic, FullBatch) the conjecture is a theorem: the multipliers of
    the equalities are diagonal entries of M^-1 H M^-1, which is semidefinite, so none is negative and the
    solution is optimal under the inequalities as well. Where they do, it can fail: for prefix sums, n = 4
    and MinSep(1, 3) the equalities force M = I / 3 and a loss of 2.7386, while a larger M[0, 0] has 2.7321.

    Args:
        workload: A, at most 16 steps.
        participation: Single, Cyclic, FullBatch, MinSep or OncePerEpoch. Patterns that are part of another
            allowed one are left out: with them the equalities could not hold for any schema.

    Returns:
        Whether the optimum under sum_{t in pi} M[t, t] <= 1 attains 1 on every maximal pattern; None where
        the equalities contradict one another, so that Problem 4.6 has no solution: nothing is compared.

    Raises:
        UnsupportedError: for another schema, or too many steps.

    References:
        Monograph, Conjecture 4.7.
    """
    n = checked_workload(workload).n
    if n > LARGEST:
        raise UnsupportedError(
            f"n={n}: the patterns of {participation!r} are listed up to {LARGEST} steps only."
        )
    if isinstance(participation, MinSep) and 1 < participation.max_participations_in(n) < n:
        bands = min(participation.separation, n)
        found = banded(workload, bands=bands, participation=participation)
    else:
        found = dense(workload, participation=participation, gap=1e-6)
    patterns = maximal_patterns(list(participation.patterns(n)))
    squares = np.square(found.strategy.to_dense()).sum(axis=0)
    incidence = np.zeros((len(patterns), n))
    for row, steps in zip(incidence, patterns, strict=True):
        row[list(steps)] = 1.0
    sums = incidence @ squares
    return bool(sums.min() > (1 - CLOSE) * sums.max()) if _consistent(incidence) else None


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
