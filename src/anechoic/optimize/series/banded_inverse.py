"""The best banded inverse: few coefficients of C^-1, any workload, one participation or several."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import scipy
from scipy.linalg import cholesky, solve_triangular

from anechoic._validate import Array, one_of, positive_int
from anechoic.algebra.threads import on_one_thread
from anechoic.errors import UnsupportedError
from anechoic.losses.dispatch import loss as loss_of
from anechoic.losses.norms import KINDS, LossNorm
from anechoic.optimize.periodic_pattern import periodic_pattern
from anechoic.optimize.result import Optimized, finish, small_enough
from anechoic.optimize.series.banded_inverse_objective import BandedInverseObjective
from anechoic.participation import MinSep
from anechoic.participation.base import Participation
from anechoic.participation.single import SINGLE
from anechoic.strategies import BandedInverse
from anechoic.strategies.toeplitz import power_coefficients
from anechoic.workloads import prefix_sum
from anechoic.workloads.base import Workload

OPTIONS = {"maxiter": 400, "maxfun": 400, "gtol": 1e-8, "ftol": 1e-13, "maxcor": 60}
MUCH = 10**6  # steps times bands from which one start has to do; the other has not been seen to gain
ATTAINED = 1e-9  # relative difference up to which the objective counts as the loss
SMALLEST = 1e-9  # running sums of a start are kept above this
LARGEST_LOG = 50.0
RIDGE = 1e-13


@on_one_thread
def banded_inverse(
    workload: Workload,
    *,
    bands: int,
    participation: Participation = SINGLE,
    loss: LossNorm = "rms",
    progress: Callable[[int, float], None] | None = None,
) -> Optimized:
    """Return the strategy with Toeplitz inverse of `bands` bands of least loss, by L-BFGS on exact gradients.

    The noise stream of the result needs the last `bands` fresh rows, or none where it makes them again
    (`NoiseStream(memory="regenerate")`). One evaluation costs O(n bands) time; 50 to 150 are needed, more
    with hundreds of bands. Deterministic. Two bands give the best one-parameter mechanism.

    Guarantee: the loss is that of the returned strategy with its own sensitivity, exact or a bound; it is a
    local minimum of what is minimised. For one participation signs are free. For several, that is the comb
    under |C|; where it is not the sensitivity of what comes out, the smallest non-increasing sequence above
    |C| is tried too, and the better result returned.

    Args:
        workload: A, n steps; a Toeplitz one for loss "max".
        bands: 1 <= bands <= n.
        participation: Single (default), Cyclic, MinSep or FullBatch.
        loss: "rms", "max" or "last" over the steps, or weights, shape (n,).
        progress: called with the number of evaluations and the loss.

    Returns:
        The strategy, scaled to inverse_coefficients[0] = 1, its loss, and a lower bound where one is known.

    Raises:
        ValueError: for bad arguments, or bands > n.
        UnsupportedError: for "max" with a workload that is not Toeplitz, and for schemas without a known
            worst pattern (it is a ValueError too).

    Example:
        >>> from anechoic import workloads
        >>> round(banded_inverse(workloads.prefix_sum(1024), bands=4).loss, 4)
        3.9774

    References:
        arXiv 2505.12128 (BandInvMF), 2601.22334, 2605.18379.
    """
    started = time.perf_counter()
    small_enough(workload)
    n = workload.n
    bands = positive_int("bands", bands)
    if bands > n:
        raise ValueError(f"bands={bands} must be at most n={n}: C^-1 has no more coefficients.")
    if isinstance(loss, str) and one_of("loss", loss, KINDS) == "max" and not workload.is_toeplitz:
        raise UnsupportedError(
            f"loss='max' of {type(workload).__name__}, which is not Toeplitz, is no quadratic form: choose"
            " 'rms', 'last' or weights, or design for its Toeplitz factor."
        )
    separation, count = periodic_pattern(participation, n)
    objective = BandedInverseObjective(workload, bands, (separation, count), loss, progress)
    design = workload if workload.is_toeplitz else prefix_sum(n)
    best = _best_power(objective, design, bands)
    if bands > 1:
        starts = [best, _best_decay(objective, bands)] if n * bands < MUCH else [best]
        best = _free(objective, starts)
        if count > 1 and isinstance(participation, MinSep):
            best = _proven(objective, best, starts[0], workload, participation, loss)
    strategy, asked = BandedInverse(n, best / best[0]), (workload, participation, loss)
    return finish(strategy, asked, started, objective.evaluations, others=[BandedInverse(n, [1.0])])


def _best_power(objective: BandedInverseObjective, design: Workload, bands: int) -> Array:
    """The leading coefficients of the power in (0, 1) for which they are best."""

    def value(power: float) -> float:
        return objective(power_coefficients(design, -power, bands))[0]

    if bands == 1:
        return np.ones(1)
    found = scipy.optimize.minimize_scalar(
        value, bounds=(1e-6, 1.0 - 1e-9), method="bounded", options={"xatol": 1e-3}
    )
    return power_coefficients(design, -float(found.x), bands)


def _best_decay(objective: BandedInverseObjective, bands: int) -> Array:
    """The best 1 - decay x, with zeros after it."""

    def padded(decay: float) -> Array:
        return np.pad([1.0, -decay], (0, bands - 2))

    def value(decay: float) -> float:
        return objective(padded(decay))[0]

    found = scipy.optimize.minimize_scalar(
        value, bounds=(0.0, 1.0), method="bounded", options={"xatol": 1e-3}
    )
    return padded(float(found.x))


def _free(objective: BandedInverseObjective, starts: list[Array]) -> Array:
    """The best coefficients that are reached from the starts, the first one 1."""
    independent = np.eye(1, len(starts[0]))[0]  # the best for every step at once, at a kink of |C|
    starts = [start for start in starts if _known(objective, start)]
    reached = [independent, *starts, *(_by_sums(objective, start / start[0]) for start in starts)]
    reached.append(_by_error(objective, min(reached, key=lambda q: objective(q)[0])))
    return min(reached, key=lambda q: objective(q)[0])


def _known(objective: BandedInverseObjective, inverse: Array) -> bool:
    """Whether C is known to the accuracy that a sensitivity needs: without it the objective is rounding."""
    try:
        BandedInverse(objective.n, inverse).largest_column_norm()
    except UnsupportedError:
        return False
    return True


def _minimum(
    objective: BandedInverseObjective,
    function: Callable[[Array], tuple[float, Array]],
    begin: Array,
    coefficients: Callable[[Array], Array],
    bounds: list[tuple[float, float]] | None = None,
) -> Array:
    """Coefficients where L-BFGS ends; where C is not known there, its last point before that.

    `begin` has a known C. Whether a search leaves these is a matter of the last digits, so of the processor.
    """

    def search(callback: Callable[[Array], None] | None = None) -> Array:
        found = scipy.optimize.minimize(
            function, begin, jac=True, method="L-BFGS-B", bounds=bounds, options=OPTIONS, callback=callback
        )
        return coefficients(np.asarray(found.x))

    reached = search()
    if _known(objective, reached):
        return reached
    last = coefficients(begin)

    def stop_outside(x: Array) -> None:
        nonlocal last
        if not _known(objective, coefficients(x)):
            raise StopIteration
        last = coefficients(x)

    search(stop_outside)
    return last


def _by_sums(objective: BandedInverseObjective, start: Array) -> Array:
    """A minimum over the logarithms of the running sums, which are > 0 for good ones, and well scaled."""

    def coefficients(logs: Array) -> Array:
        return np.diff(np.exp(logs), prepend=[0.0, 1.0])

    def by_logarithm(logs: Array) -> tuple[float, Array]:
        value, gradient = objective(coefficients(logs))
        with np.errstate(invalid="ignore"):  # both are infinite where the search turns back
            return value, (gradient[1:] - np.append(gradient[2:], 0.0)) * np.exp(logs)

    logs = np.log(np.maximum(np.cumsum(start)[1:], SMALLEST))
    bounds = [(-LARGEST_LOG, LARGEST_LOG)] * len(logs)
    return _minimum(objective, by_logarithm, logs, coefficients, bounds)


def _by_error(objective: BandedInverseObjective, start: Array) -> Array:
    """A minimum over coefficients of any signs, in coordinates in which the error is a sum of squares."""
    form = objective.form[1:, 1:] / np.trace(objective.form)
    # weights of the steps may leave coefficients free
    factor = cholesky(form + RIDGE * np.eye(len(form)), lower=True)

    def coefficients(x: Array) -> Array:
        return np.append(1.0, solve_triangular(factor.T, x))

    def by_error(x: Array) -> tuple[float, Array]:
        value, gradient = objective(coefficients(x))
        return value, solve_triangular(factor, gradient[1:], lower=True)

    return _minimum(objective, by_error, factor.T @ start[1:], coefficients)


def _proven(
    objective: BandedInverseObjective,
    best: Array,
    start: Array,
    workload: Workload,
    schema: Participation,
    kind: LossNorm,
) -> Array:
    """`best` if the objective is its loss; else that or the best falling sequence, whose loss is less."""

    def true_loss(inverse: Array) -> float:
        return loss_of(workload, BandedInverse(workload.n, inverse), schema, kind)

    reached = true_loss(best)
    if reached <= np.exp(objective(best)[0]) * (1.0 + ATTAINED):
        return best
    objective.falling = True
    return min([best, _free(objective, [start])], key=true_loss)
