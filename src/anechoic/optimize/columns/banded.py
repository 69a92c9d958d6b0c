"""The best banded strategy with free columns, for any workload (monograph, Section 4.3 and Problem 4.6)."""

from __future__ import annotations

import time

import numpy as np

from anechoic._validate import Array, one_of, positive_int
from anechoic.algebra import banded as algebra
from anechoic.algebra import toeplitz
from anechoic.algebra.threads import on_one_thread
from anechoic.errors import UnsupportedError
from anechoic.losses.norms import KINDS, LossNorm, row_weights
from anechoic.optimize.columns.coarse_run import grain, refine_coarse_run
from anechoic.optimize.columns.objective import DENSE, BlockObjective, Objective, objective_of
from anechoic.optimize.columns.overlapping_columns import overlapping_columns, serves
from anechoic.optimize.columns.scales import scales_of
from anechoic.optimize.columns.search import Progress, Search
from anechoic.optimize.result import NUMBERS, Optimized, finish, small_enough
from anechoic.optimize.series.banded_toeplitz import banded_toeplitz
from anechoic.participation import MinSep
from anechoic.participation.base import Participation
from anechoic.participation.single import SINGLE
from anechoic.strategies import Banded
from anechoic.strategies.banded import columns_of
from anechoic.strategies.base import Strategy
from anechoic.workloads.base import Workload

# Weight that every step has at least, over the mean weight: without any, its error may grow for ever.
NEGLIGIBLE = 1e-7
# Projected gradient from which a search has failed, and begins again at the best strategy of a band less.
FAR = 1e-3
# Iterations of `refine_columns`: n bands of all of them together, least and most; one of O(n^3) takes about
# as long as one of n bands = n^3 / DENSE_WORK.
FREED_WORK, LEAST_FREED, MOST_FREED, DENSE_WORK = 1_200_000, 6, 40, 2700


@on_one_thread
def banded(
    workload: Workload,
    *,
    bands: int,
    participation: Participation = SINGLE,
    loss: LossNorm = "rms",
    progress: Progress | None = None,
) -> Optimized:
    """Return the strategy of `bands` bands, its columns free, of smallest loss, and a bound for all of them.

    In M = C^T C the problem is convex, and M has as many bands as C, so that the minimum found by L-BFGS over
    the columns is a global one; `gap` says how closely. An evaluation takes O(n bands^2) where A is a
    recursion of few bands (prefix sums, momentum and Nesterov's, decay, learning rates, windows of up to 64
    steps, and restart differences of prefix sums), else O(n^3). Far from both ends of a run columns hardly
    change, and near them they oscillate: the ends are optimised on their own, the rest fixed, between passes
    over all. A search that stalls begins again at the optimum of one band less. Deterministic.

    Guarantee: the loss is that of the returned strategy, with exact sensitivity. Columns that one unit can
    touch are orthogonal; their norms are all equal for one participation, free on each cycle for `Cyclic`,
    and for `MinSep` free among all of this sensitivity (linear duality over the patterns) up to 512 steps,
    beyond constant on blocks of the separation and falling, where the optimum may be some 1e-2 lower. Under
    `MinSep`, except for "max", and for prefix sums of up to 4096 steps and so many bands that a search takes
    minutes (n bands^2 >= 1e7), columns are interpolated from those of a coarser run, and their norms
    optimised: 1e-4 to 1e-2 above the optimum. A weight below 1e-7 of the mean one counts as that, since the
    errors of steps without weight could grow for ever. "max" is solved by multipliers, to a gap of about
    1e-4 where that is reached in 12 turns, each with an RMS search: two to six seconds for Nesterov's
    momentum, 512 steps and 8 bands, ten to twenty for 1024, and far longer for thousands of steps with
    hundreds of bands. Its loss differs between processors, by 1e-6 for 64 steps.

    Under `MinSep` "max" takes up to twice as many bands as the separation, for up to 200 steps, or 4096 of
    prefix sums with a separation of a 25th of them or more. Columns that neighbouring participations touch
    interact then, which gains 2 to 3 per cent. The bound is that of every factorisation: the gap is 2 per
    cent at n = 2000, MinSep(400, 4), where the search takes some ten seconds.

    Args:
        workload: A, n steps.
        bands: 1 <= bands <= n, and at most the separation of participations of one unit (twice of it, see
            above).
        participation: Single (default), Cyclic, MinSep, or FullBatch with one band.
        loss: "rms", "max" or "last", or weights of the squared errors of the steps, >= 0, shape (n,).
        progress: called with the evaluations so far and the current loss, after every iteration.

    Returns:
        The strategy, its largest column norm 1; `gradient` is ||C||_F times the Frobenius norm of the
        projected gradient of log(loss) by C, None for "max".

    Raises:
        ValueError: for bad arguments, or bands > n.
        UnsupportedError: if bands exceed the separation, for schemas without a known worst pattern, and for
            more than 4096 steps of a workload that is no such recursion (it is a ValueError too).

    Example:
        >>> from anechoic import workloads
        >>> round(banded(workloads.prefix_sum(64), bands=8).loss, 4)
        2.6205

    References:
        Monograph, Section 4.3, Problems 4.6 and 4.8, Table 4.1; arXiv 2306.08153.
    """
    started = time.perf_counter()
    n = small_enough(workload).n
    if isinstance(loss, str):
        one_of("loss", loss, KINDS)
    largest = isinstance(loss, str) and loss == "max"
    weights = row_weights("rms" if largest else loss, n)
    bands = positive_int("bands", bands)
    if bands > n:
        raise ValueError(f"bands={bands} must be at most n={n}: bands=n gives the optimal strategy.")
    small_enough(workload, NUMBERS // bands)
    objective, asked = objective_of(workload, bands), (workload, participation, loss)
    if objective is None:
        raise UnsupportedError(
            f"workload={type(workload).__name__} is no recursion of few bands, and n={n} steps exceed"
            f" {DENSE}: leave out what makes it long (a window of many steps), or use"
            " optimize.banded_toeplitz."
        )
    found: tuple[Array, int] | None = None  # columns and evaluations, where a coarser run comes first
    if isinstance(participation, MinSep):
        long = grain(workload, bands, participation) > 1
        if long and not largest:
            found = refine_coarse_run(workload, weights, bands, participation, _columns)
        elif (
            largest and (long or bands > participation.separation) and serves(workload, bands, participation)
        ):
            found = overlapping_columns(workload, bands, participation, progress)
    if found is not None:
        columns, evaluations = found
        others = [Banded(n, np.ones((n, 1)))]
        return finish(Banded(n, presentable(columns)), asked, started, evaluations, others=others)
    search, columns = start_search(objective, workload, weights, bands, participation, progress)
    even = columns / np.sqrt(np.square(columns).sum(axis=1))[:, None]  # the start, with norms that are equal
    gradient, spent = None, 0
    if largest:
        columns, bound = search.minimax(columns, workload)
    else:
        floored = np.maximum(weights, NEGLIGIBLE / n)
        floored /= floored.sum()
        columns = search.minimise(columns, floored)
        gradient = search.projected(columns, floored)
        if bands > 1 and gradient > FAR:
            # where some steps hardly count the last band may do next to nothing
            fewer = banded(
                workload, bands=bands - 1, participation=participation, loss=loss, progress=progress
            )
            spent, narrow = fewer.evaluations, columns_of(fewer.strategy)
            wide = np.pad(narrow, ((0, 0), (0, bands - narrow.shape[1])))
            again = search.minimise(search.scales.columns(search.scales.variables(wide)), floored)
            columns = min(again, columns, key=lambda found: float(floored @ objective.squares(found)))
            gradient = search.projected(columns, floored)
        bound = search.bound(columns, weights)
    strategy = Banded(n, presentable(columns))
    others = [Banded(n, presentable(even)), Banded(n, np.ones((n, 1)))]
    return finish(
        strategy, asked, started, spent + search.evaluations, bound=bound, gradient=gradient, others=others
    )


def _columns(workload: Workload, bands: int, participation: Participation, weights: Array) -> Array:
    found = banded(workload, bands=bands, participation=participation, loss=weights / weights.sum())
    return columns_of(found.strategy)


@on_one_thread
def refine_columns(
    workload: Workload, strategy: Strategy, participation: Participation, loss: LossNorm
) -> Banded | None:
    """A banded strategy after some seconds of L-BFGS over its columns; not yet the optimum of `banded`.

    As many iterations as `FREED_WORK` pays for, or None if too few: ten find about half of the gain.
    """
    columns = columns_of(strategy)
    n, bands = columns.shape
    objective = objective_of(workload, bands)
    work = n * bands if isinstance(objective, BlockObjective) else 1 + n**3 // DENSE_WORK
    iterations = min(MOST_FREED, FREED_WORK // work)
    if objective is None or iterations < LEAST_FREED:
        return None
    weights = row_weights(loss, n)
    search, _ = start_search(objective, workload, weights, bands, participation, None)
    floored = np.maximum(weights, NEGLIGIBLE / n)
    columns = search.scales.columns(search.scales.variables(columns))
    columns = search.descend(columns, floored / floored.sum(), iterations)
    return Banded(n, presentable(columns))


def start_search(
    objective: Objective,
    workload: Workload,
    weights: Array,
    bands: int,
    participation: Participation,
    progress: Progress | None,
) -> tuple[Search, Array]:
    """A search, and the columns to begin with, shape (n, bands)."""
    scales = scales_of(participation, _sizes(workload, weights, bands), bands)
    columns = scales.columns(scales.variables(_start(workload, bands)))
    return Search(objective, scales, progress), columns


def _start(workload: Workload, bands: int) -> Array:
    """Columns of the best banded Toeplitz matrix, the root of the Toeplitz factor, or the identity."""
    n = workload.n
    column = np.zeros(bands)
    column[0] = 1.0
    if workload.is_toeplitz:
        column[:] = banded_toeplitz(workload, bands=bands).strategy.coefficients[:bands]
    elif workload.has_toeplitz_factor:
        column[:] = toeplitz.sqrt(workload.truncate(bands).coefficients, bands)
    columns = algebra.of_toeplitz(column, n)
    return np.asarray(columns / np.sqrt(np.square(columns).sum(axis=1))[:, None])


def _sizes(workload: Workload, weights: Array, bands: int) -> Array:
    """About how much a column of C weighs in the loss, relative to the first; shape (n, 1)."""
    n = workload.n
    sizes = np.cumsum(weights[::-1])[::-1]
    if workload.has_toeplitz_factor:
        squares = np.square(workload.coefficients)
        sizes = toeplitz.multiply(squares, weights[::-1].copy())[::-1]
        if workload.rates is not None:
            sizes = sizes * np.square(workload.rates)
    sizes = np.maximum(sizes, 0.0)
    return np.asarray(sizes / sizes.max() + min(1.0, bands**2 / n))[:, None]


def presentable(columns: Array) -> Array:
    """The same C^T C with a positive diagonal of C, exact zeros under the last row, largest column norm 1."""
    n, bands = columns.shape
    signs = np.pad(np.where(columns[:, 0] < 0, -1.0, 1.0), (0, bands), constant_values=0.0)
    columns = columns * np.lib.stride_tricks.sliding_window_view(signs, bands)[:n]
    return np.asarray(columns / np.sqrt(np.square(columns).sum(axis=1).max()))
