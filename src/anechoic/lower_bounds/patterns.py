"""Lower bounds for listed patterns, whichever steps they leave out.

Where nobody touches step t, column t of C costs nothing, and in the limit of large ones its noise vanishes:
only the columns of A that somebody touches are to be factorised. The theorem is that of `lower_bounds.dual`
for W = sum_pi S_pi over the listed patterns, which has no entries elsewhere. Columns may be left out, as
every bound for some of them holds for all; those that no error with a weight depends on are.
"""

from __future__ import annotations

import numpy as np

from anechoic._validate import Array
from anechoic.algebra.nuclear import MARGIN
from anechoic.losses.norms import LossNorm, row_weights
from anechoic.lower_bounds.dual import padded
from anechoic.lower_bounds.one_participation import row_sizes
from anechoic.lower_bounds.result import Bound
from anechoic.lower_bounds.several_participations import LONG, SMALL, maximal_patterns, scaled_bound
from anechoic.participation import Patterns
from anechoic.workloads.base import Workload

STEPS = 256  # whose columns count in a bound that is cheap
NUMBERS = 2**24  # entries of the columns of A that are made for it
PARAMETERS = 2**14  # numbers in the factors of all patterns that are used
ROUNDS = 30  # of L-BFGS
CAUCHY = "sum of a row of A over a pattern (Cauchy-Schwarz)"


def listed_bound(workload: Workload, participation: Patterns, kind: LossNorm) -> Bound | None:
    """A bound for every factorisation that takes about a second at most.

    None where nobody takes part, or no error that counts depends on who does: then there is none above 0.
    """
    n = workload.n
    if not participation.touched(n) or n > NUMBERS // 2:
        return None
    largest, found = isinstance(kind, str) and kind == "max", list[Bound | None]()
    if isinstance(kind, str) and kind in ("max", "last"):
        found.append(_of_last_row(workload, participation))
    if largest and n <= SMALL:  # with weights that the dual chooses
        patterns = padded(maximal_patterns(participation.patterns(n)))
        found.append(scaled_bound(workload.to_dense(), None, patterns, LONG))
    elif n * min(STEPS, len(participation.touched(n))) <= NUMBERS:
        found.append(_of_columns(workload, participation, row_weights("rms" if largest else kind, n)))
    held = (bound for bound in found if bound is not None and bound.value > 0)
    return max(held, key=lambda bound: bound.value, default=None)


def _of_last_row(workload: Workload, participation: Patterns) -> Bound:
    """|sum_j A[n-1, j] s_j| <= ||B[n-1]|| sens for signs s on a pattern."""
    sizes = row_sizes(workload, workload.n - 1)
    value = max(float(sizes[list(pattern)].sum()) for pattern in participation.patterns(workload.n))
    return Bound(value * (1 - MARGIN), CAUCHY)


def _of_columns(workload: Workload, participation: Patterns, weights: Array) -> Bound | None:
    """The dual for the columns of A at up to `STEPS` of the steps that are touched, W^½ A = Q R."""
    n = workload.n
    touched = participation.touched(n)
    steps = np.array(touched[:: -(-len(touched) // STEPS)])
    units = np.zeros((n, len(steps)))
    units[steps, np.arange(len(steps))] = 1.0
    rows = np.sqrt(weights)[:, None] * workload.multiply(units)
    counting = rows.any(axis=0)
    steps, rows = steps[counting], rows[:, counting]
    if not len(steps):
        return None
    place = {int(step): index for index, step in enumerate(steps)}
    cut = [[place[step] for step in pattern if step in place] for pattern in participation.patterns(n)]
    longest_first = maximal_patterns([pattern for pattern in cut if pattern])
    # as many as a dual takes in a second
    patterns = padded(longest_first[: max(1, PARAMETERS // len(longest_first[0]) ** 2)])
    # R has the nuclear norms of W^½ A; the square one has even weights that undo its scale
    square = np.zeros((len(steps), len(steps)))
    triangle = np.linalg.qr(rows, mode="r")
    square[: len(triangle)] = triangle
    square *= np.sqrt(len(steps))
    even = np.full(len(steps), 1.0 / len(steps))
    bound = scaled_bound(square, even, patterns, ROUNDS)
    return Bound(bound.value * (1 - MARGIN), bound.theorem)
