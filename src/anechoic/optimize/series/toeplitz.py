"""The best Toeplitz strategy with all n coefficients (monograph, Sections 2.3 and 2.8)."""

from __future__ import annotations

import time

import numpy as np

from anechoic.algebra.threads import on_one_thread
from anechoic.losses.norms import LossNorm
from anechoic.optimize.periodic_pattern import periodic_pattern
from anechoic.optimize.result import Optimized, finish
from anechoic.optimize.series.banded_inverse import banded_inverse
from anechoic.optimize.series.banded_toeplitz import best_column
from anechoic.optimize.series.blt import blt
from anechoic.optimize.series.toeplitz_objective import Progress, ToeplitzObjective, quadratic_form
from anechoic.optimize.series.toeplitz_search import LONGER_UP_TO
from anechoic.participation.base import Participation
from anechoic.participation.single import SINGLE
from anechoic.strategies import Toeplitz
from anechoic.workloads.base import Workload

INVERSE = 4  # bands of the inverse that is tried beside the search where no bound of the class is known


@on_one_thread
def toeplitz(
    workload: Workload,
    *,
    participation: Participation = SINGLE,
    loss: LossNorm = "rms",
    progress: Progress | None = None,
) -> Optimized:
    """Return the Toeplitz strategy of smallest loss.

    For prefix sums, max loss and one participation that is the square root (Theorem 2.5), from which the
    optimisation starts; for others it takes some ten evaluations of O(n log n). With one participation the
    result comes with a dual bound for all lower-triangular Toeplitz strategies.

    With several participations, or learning rates, it is what `banded_toeplitz` gives for n bands, or up to
    2048 steps `banded_inverse` for 4 (`blt`, with rates), if better: never worse than independent noise.
    Largest errors differ between processors, by 1e-6 for Nesterov's momentum and 64 steps.

    Args:
        workload: a Toeplitz workload, n steps, with learning rates as in `banded_toeplitz`, or
            `workloads.restart_differences` of one (loss "rms").
        participation: Single (default), Cyclic, MinSep or FullBatch.
        loss: "rms", "max" or "last", or weights of the steps.
        progress: called with the number of evaluations so far and the present loss.

    Returns:
        The strategy, scaled to ||c|| = 1, its loss, and a lower bound where one is known.

    Raises:
        ValueError: for bad arguments.
        UnsupportedError: for a workload without Toeplitz factor, or schemas without a known worst pattern.

    Example:
        >>> from anechoic import workloads
        >>> best = toeplitz(workloads.prefix_sum(1024))
        >>> round(best.loss, 3), best.gap < 1e-6
        (3.057, True)

    References:
        Monograph, Theorem 2.5 and Table 2.3.
    """
    started = time.perf_counter()
    plain, _ = quadratic_form(workload, loss)
    n = workload.n
    objective = ToeplitzObjective(workload, periodic_pattern(participation, n), loss, progress)
    column, bound = best_column(objective, plain, workload, participation, loss, n)
    column = np.pad(column, (0, n - len(column)))
    others = []
    if bound is None and n <= LONGER_UP_TO:  # the search is over a part of the class, or over a likeness
        made = [banded_inverse(workload, bands=min(INVERSE, n), participation=participation, loss=loss)]
        if workload.rates is not None:
            made.append(blt(workload, participation=participation, loss=loss))
        others = [Toeplitz(n, found.strategy.multiply(np.eye(1, n)[0])) for found in made]
    best, asked = Toeplitz(n, column / np.sqrt(np.square(column).sum())), (workload, participation, loss)
    return finish(best, asked, started, objective.evaluations, bound=bound, others=others)
