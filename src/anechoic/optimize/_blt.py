"""The best BLT for prefix sums: 2 d parameters, closed forms, exact gradients (monograph, Section 4.3.2).

With decays lambda = exp(-mu) of C and exp(-nu) of C^-1, the interlacing 0 < mu_1 < nu_1 < mu_2 < … < nu_d
(Lemma 4.14) is a sequence of 2 d positive gaps, and their logarithms are free parameters. The scales of C
and the weights of B = A C^-1 are then products of differences of these points (Lemma 4.13), all positive,
and every norm is a double sum of geometric series without cancellation (`strategies.blt_sums`).
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from anechoic._validate import Array, one_of, positive_int
from anechoic.errors import UnsupportedError
from anechoic.optimize._blt_objective import BLTObjective, parameters
from anechoic.optimize.result import Optimized, finish
from anechoic.optimize.schema import SINGLE, comb_of
from anechoic.participation import Participation
from anechoic.strategies import BLT
from anechoic.workloads import Workload

# Gaps between neighbouring -log decays: the smallest keeps decays near 1 distinct as float64.
SMALLEST, LARGEST = 4e-16, 40.0
# Relative change of the loss that is not worth a buffer.
NEGLIGIBLE = 1e-9


def blt(
    workload: Workload, *, buffers: int, participation: Participation = SINGLE, loss: str = "max"
) -> Optimized:
    """The BLT with at most `buffers` buffers that has the smallest loss for prefix sums.

    Time does not depend on n; each evaluation costs O(k d^2) for k participations. The class grows one
    buffer at a time, each added at the place that lowers the loss most; a buffer that gains less than
    1e-9 is left out, so that fewer than asked for may come back. Deterministic.

    Guarantee: scales are positive with a sum below 1, so that the coefficients of C are positive and do
    not increase, and Lemma 3.16 (c) gives the sensitivity exactly. The loss is a local minimum among
    the BLTs whose inverse has positive decays too (Lemma 4.14); a negative one can gain a few parts in
    10^5 where the steps, or those between participations, are few.

    Args:
        workload: prefix sums, n steps; 10**9 costs what 10**3 costs.
        buffers: d >= 1, rows of memory that the noise stream needs.
        participation: Single (default), Cyclic, MinSep or FullBatch.
        loss: "max" or "rms" over the steps.

    Returns:
        The strategy (c_0 = 1), its loss, and for one participation a lower bound for all strategies.

    Raises:
        ValueError: for bad arguments.
        UnsupportedError: for other workloads and schemas (it is a ValueError too).

    Example:
        >>> from anechoic import workloads
        >>> round(blt(workloads.prefix_sum(1024), buffers=2).loss, 4)
        3.3298

    References:
        Monograph, Sections 2.5, 2.10 and 4.3.2, Lemmas 4.13 and 4.14; arXiv 2408.08868.
    """
    started = time.perf_counter()
    kind = one_of("loss", loss, ("max", "rms"))
    buffers = positive_int("buffers", buffers, remedy="Use strategies.Identity for none.")
    if not isinstance(workload, Workload):
        raise ValueError(f"workload={workload!r} must be a Workload, such as workloads.prefix_sum(n).")
    if not workload.is_prefix_sum:
        raise UnsupportedError(
            f"workload={type(workload).__name__} is not prefix_sum: BLTs are optimised in closed form for"
            " prefix sums. Design for prefix_sum(n), or use optimize.banded_toeplitz."
        )
    separation, count = comb_of(participation, workload.n)
    objective = BLTObjective(workload.n, separation, count, kind)
    best = _grow(objective, None, 1)
    for order in range(2, buffers + 1):
        found = _grow(objective, best, order)
        if found.value > best.value - NEGLIGIBLE:
            break
        best = found
    strategy = BLT(workload.n, *parameters(best.gaps))
    return finish(strategy, workload, participation, kind, evaluations=objective.evaluations, started=started)


class _Point(NamedTuple):
    value: float
    gaps: Array


def _grow(objective: BLTObjective, smaller: _Point | None, order: int) -> _Point:
    """The best of the local minima with `order` buffers that are reached from a few starts."""
    starts = [_spread(1.0 / objective.n, order)]
    if objective.count > 1:
        starts.append(_spread(1.0 / objective.separation, order))
    if smaller is not None:
        starts += _with_one_more(objective, smaller.gaps)
    reached = [_minimise(objective, gaps) for gaps in starts]
    return _prune(objective, min(reached, key=lambda point: point.value))


def _spread(smallest: float, order: int) -> Array:
    """Gaps between points spaced evenly in logarithm, as those of the best rational functions nearly are."""
    return np.diff(np.geomspace(smallest, 1.5, 2 * order), prepend=0.0)


def _with_one_more(objective: BLTObjective, gaps: Array) -> list[Array]:
    """The two best ways, on a coarse grid, to add a pole and a zero; close together they change little."""
    points = np.cumsum(gaps)
    trials = []
    for place in np.geomspace(0.03 / objective.n, 20.0, 24):
        for ratio in (1.2, 2.0):
            candidate = np.diff(np.sort([*points, place, ratio * place]), prepend=0.0)
            if candidate.min() >= SMALLEST:
                trials.append(_Point(objective(candidate)[0], candidate))
    trials.sort(key=lambda point: point.value)
    return [point.gaps for point in trials[:2]]


def _minimise(objective: BLTObjective, gaps: Array) -> _Point:
    """A local minimum over the logarithms of the gaps."""

    def by_logarithm(logs: Array) -> tuple[float, Array]:
        gaps = np.exp(logs)
        value, gradient = objective(gaps)
        return value, gradient * gaps

    bounds = [(np.log(SMALLEST), np.log(LARGEST))] * len(gaps)
    options = {"maxiter": 2000, "maxfun": 2000, "gtol": 1e-8, "ftol": 1e-14, "maxcor": 30}
    start = np.log(np.clip(gaps, SMALLEST, LARGEST))
    found = minimize(by_logarithm, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return _Point(float(found.fun), np.exp(found.x))


def _prune(objective: BLTObjective, point: _Point) -> _Point:
    """Remove pole-zero pairs as long as that costs nothing: they cancel, or have faded after one step."""
    while len(point.gaps) > 2:
        points = np.cumsum(point.gaps)
        trials = []
        for m in range(len(points) - 1):
            gaps = np.diff(np.delete(points, [m, m + 1]), prepend=0.0)
            trials.append(_Point(objective(gaps)[0], gaps))
        lightest = min(trials, key=lambda trial: trial.value)
        if lightest.value > point.value + NEGLIGIBLE / 10:
            break
        point = lightest
    return point
