"""The best BLT: 2 d parameters, closed forms, exact gradients (monograph, Section 4.3.2).

With decays lambda = exp(-mu) of C and exp(-nu) of C^-1, the interlacing 0 < mu_1 < nu_1 < mu_2 < … < nu_d
(Lemma 4.14) is a sequence of 2 d positive gaps, and their logarithms are free parameters. The scales of C
and, for prefix sums, the weights of B = A C^-1 are then products of differences of these points (Lemma 4.13),
all positive, and every norm is a double sum of geometric series without cancellation
(`algebra.exponentials`). The errors of other workloads are in `blt_errors`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import NamedTuple

import numpy as np
import scipy

from anechoic._validate import Array, fraction, one_of, positive_int
from anechoic.algebra.threads import on_one_thread
from anechoic.errors import UnsupportedError
from anechoic.losses.norms import KINDS, LossNorm, weight_of_the_last
from anechoic.optimize.periodic_pattern import periodic_pattern
from anechoic.optimize.result import Optimized, finish
from anechoic.optimize.series.blt_errors import MaterialisedError, RecurrentError, SquaredError
from anechoic.optimize.series.blt_objective import BLTObjective, parameters
from anechoic.optimize.series.toeplitz_objective import quadratic_form
from anechoic.participation.base import Participation
from anechoic.participation.single import SINGLE
from anechoic.strategies import BLT
from anechoic.workloads.base import Workload, checked_workload

# Gaps between neighbouring -log decays: the smallest keeps decays near 1 distinct as float64.
SMALLEST, LARGEST = 4e-16, 40.0
# Relative change of the loss that is not worth a buffer, and the buffers beyond which none was worth one.
NEGLIGIBLE = 1e-9
# of a search: of each start, of the best one; rougher starts hide the best minimum (1e-4 of a loss)
ROUGH, FINE = 1e-9, 1e-13
INDEPENDENT = 1e-12  # the scale of a BLT that is independent noise
MOST = 16
# Workloads with a short recursion need none of their n coefficients; others are made up to this many steps.
SHORT, MATERIALISED = 9, 2 * 10**6


@on_one_thread
def blt(
    workload: Workload,
    *,
    buffers: int | None = None,
    gain: float = 1e-4,
    participation: Participation = SINGLE,
    loss: LossNorm = "rms",
    progress: Callable[[int, float], None] | None = None,
) -> Optimized:
    """Return the BLT with at most `buffers` buffers that has the smallest loss.

    The class grows one buffer at a time, each added at the place that lowers the loss most, started from
    the smaller optimum; a buffer that gains less than 1e-9 is left out, so that fewer than asked for may come
    back. Deterministic. One evaluation costs

    - for prefix sums O(k d^2), k participations, whatever n is;
    - for other workloads with a short recursion (momentum, weight decay, Nesterov, exponential decay)
      O(k d^2 + d^4 log n);
    - for any other Toeplitz workload, restarts of one, and weights of the steps O(n d), up to 2 * 10**6
      steps; weights that are alike but for the last step's cost no more than "rms".

    Guarantee: scales are positive with a sum of at most 1, so that the coefficients of C are positive and do
    not increase, and Lemma 3.16 (c) gives the sensitivity exactly. The loss is a local minimum among
    the BLTs whose inverse has positive decays too (Lemma 4.14); a negative one can gain a few parts in
    10^5 where the steps, or those between participations, are few. Decays of C are >= 0:
    where the coefficients of A alternate (steps that overshoot) take `banded_inverse`.

    Args:
        workload: A, Toeplitz, or `workloads.restart_differences` of a Toeplitz one (loss "rms").
        buffers: d, >= 1, at most; None for as many as pay: growth ends with the first buffer that lowers the
            loss by less than the part `gain` (that buffer is left out), at 16 at the latest.
        gain: in (0, 1); used where buffers is None.
        participation: Single (default), Cyclic, MinSep or FullBatch.
        loss: "rms" (default), "max" (the last step has it), "last", or weights >= 0 of the steps, shape (n,).
        progress: called after every evaluation with their number and the loss there.

    Returns:
        The strategy (c_0 = 1), its loss, and a lower bound where one is known.

    Raises:
        ValueError: for bad arguments.
        UnsupportedError: for workloads without Toeplitz factor, too many steps of one without a short
            recursion, and other schemas (it is a ValueError too).

    Example:
        >>> from anechoic import workloads
        >>> round(blt(workloads.prefix_sum(1024), buffers=2, loss="max").loss, 4)
        3.3298

    References:
        Monograph, Sections 2.5, 2.10 and 4.3.2, Lemmas 4.13 and 4.14; arXiv 2408.08868.
    """
    started = time.perf_counter()
    if isinstance(loss, str):
        one_of("loss", loss, KINDS)
    if buffers is not None:
        buffers = positive_int("buffers", buffers, remedy="Use strategies.Identity for none.")
    gain = fraction("gain", gain)
    checked_workload(workload)
    objective = _objective_of(workload, participation, loss, progress)
    # values are logarithms of the loss
    worth = -math.log1p(-gain) if buffers is None else NEGLIGIBLE
    *_, best = islice(_growing(objective, worth), MOST if buffers is None else buffers)
    strategy = BLT(workload.n, *parameters(best.gaps))
    asked = workload, participation, loss
    others = [BLT(workload.n, [INDEPENDENT], [0.5])]
    return finish(strategy, asked, started, objective.evaluations, others=others)


def designs(workload: Workload, participation: Participation, loss: LossNorm) -> Iterator[BLT]:
    """The strategies of `blt` with 1, 2, … buffers, as long as another one is of use: for plans."""
    for best in _growing(_objective_of(workload, participation, loss, None), NEGLIGIBLE):
        yield BLT(workload.n, *parameters(best.gaps))


def _objective_of(
    workload: Workload,
    participation: Participation,
    loss: LossNorm,
    progress: Callable[[int, float], None] | None,
) -> BLTObjective:
    pattern = periodic_pattern(participation, workload.n)
    return BLTObjective(workload.n, *pattern, *_error_of(workload, loss), progress)


def _growing(objective: BLTObjective, worth: float) -> Iterator[_Point]:
    """The best with 1, 2, … buffers, until one gains less than `worth`."""
    best = None
    for order in count(1):
        found = _grow(objective, best, order)
        if best is not None and found.value > best.value - worth:
            return
        best = found
        yield best


def _error_of(workload: Workload, loss: LossNorm) -> tuple[float, SquaredError | None]:
    """Weight of the last error beside the mean, for prefix sums, and the error of anything else."""
    share = weight_of_the_last(loss, workload.n)
    last = 1.0 if share is None else share
    if workload.is_prefix_sum and share is not None:
        return last, None
    if workload.restarts is not None and workload.restarts[0].is_toeplitz:
        _check_materialised(workload, "restarts have no closed form")
        return last, MaterialisedError(workload.restarts[0].coefficients, quadratic_form(workload, loss)[1])
    if share is not None and workload.is_toeplitz:
        short = RecurrentError.of(workload, SHORT, last=share)
        if short is not None:
            return last, short
    short_of = f"workload={type(workload).__name__} has no short recursion"
    what = "loss has weights" if share is None else short_of
    if workload.rates is not None:
        what = "learning rates vary"
    _check_materialised(workload, what)
    _, form = quadratic_form(workload, loss)  # refuses what has no coefficients
    return last, MaterialisedError(workload.coefficients, form)


def _check_materialised(workload: Workload, what: str) -> None:
    if workload.n > MATERIALISED:
        raise UnsupportedError(
            f"{what}, so that all n={workload.n} coefficients would be needed: at most {MATERIALISED} are"
            " made. Design for fewer steps, or for a workload with a short recursion and a named loss."
        )


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
    reached = [_minimise(objective, gaps, ROUGH) for gaps in starts]
    return _prune(objective, _minimise(objective, min(reached, key=lambda point: point.value).gaps, FINE))


def _spread(smallest: float, order: int) -> Array:
    """Gaps between points spaced evenly in logarithm, as those of the best rational functions nearly are."""
    return np.diff(np.geomspace(smallest, 1.5, 2 * order), prepend=0.0)


def _with_one_more(objective: BLTObjective, gaps: Array) -> list[Array]:
    """The two best ways, on a coarse grid, to add a pole and a zero; close together they change little."""
    trials = []
    for place in np.geomspace(0.03 / objective.n, 20.0, 24):
        for ratio in (1.2, 2.0):
            candidate = _inserted(_inserted(gaps, place), ratio * place)
            if candidate.min() >= SMALLEST:
                trials.append(_Point(objective(candidate)[0], candidate))
    trials.sort(key=lambda point: point.value)
    return [point.gaps for point in trials[:2]]


def _inserted(gaps: Array, place: float) -> Array:
    """The gaps with one more point; the gaps elsewhere keep all their digits."""
    points = np.cumsum(gaps)
    m = int(np.searchsorted(points, place))
    before = place - (points[m - 1] if m else 0.0)
    if m == len(gaps):
        return np.append(gaps, before)
    return np.concatenate([gaps[:m], [before, gaps[m] - before], gaps[m + 1 :]])


def _minimise(objective: BLTObjective, gaps: Array, tolerance: float) -> _Point:
    """A local minimum over the logarithms of the gaps, its value to about this tolerance (relative)."""

    def by_logarithm(logs: Array) -> tuple[float, Array]:
        value, gradient = objective(gaps := np.exp(logs))
        return value, gradient * gaps

    bounds = [(np.log(SMALLEST), np.log(LARGEST))] * len(gaps)
    # the value is off by about the square of the gradient
    options = {"maxiter": 2000, "maxfun": 2000, "gtol": tolerance**0.5, "ftol": tolerance, "maxcor": 30}
    start = np.log(np.clip(gaps, SMALLEST, LARGEST))
    found = scipy.optimize.minimize(
        by_logarithm, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options
    )
    return _Point(float(found.fun), np.exp(found.x))


def _prune(objective: BLTObjective, point: _Point) -> _Point:
    """Remove pole-zero pairs as long as that costs nothing: they cancel, or have faded after one step."""
    while len(point.gaps) > 2:
        trials = []
        for m in range(len(point.gaps) - 1):  # without points m and m + 1 three gaps are one
            gaps = np.concatenate([point.gaps[:m], [point.gaps[m : m + 3].sum()], point.gaps[m + 3 :]])
            gaps = gaps[: len(point.gaps) - 2]
            trials.append(_Point(objective(gaps)[0], gaps))
        lightest = min(trials, key=lambda trial: trial.value)
        if lightest.value > point.value + NEGLIGIBLE / 10:
            break
        point = lightest
    return point
