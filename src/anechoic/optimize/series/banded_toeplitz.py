"""The best banded Toeplitz strategy for Toeplitz workloads, with learning rates or not (Section 4.3.1)."""

from __future__ import annotations

import time

import numpy as np

from anechoic._validate import Array, positive_int
from anechoic.algebra.threads import on_one_thread
from anechoic.losses.dispatch import loss as loss_of
from anechoic.losses.norms import LossNorm, tail_weights
from anechoic.lower_bounds.result import Bound
from anechoic.optimize.periodic_pattern import periodic_pattern
from anechoic.optimize.result import Optimized, finish
from anechoic.optimize.series.toeplitz_bound import form_bound, toeplitz_bound
from anechoic.optimize.series.toeplitz_objective import Progress, ToeplitzObjective, quadratic_form
from anechoic.optimize.series.toeplitz_search import free_column, root_of, several_columns
from anechoic.participation.base import Participation
from anechoic.participation.single import SINGLE
from anechoic.strategies import BandedToeplitz
from anechoic.workloads.base import Workload

FEWER = (2, 8)  # bands that are tried beside those asked for where learning rates vary


@on_one_thread
def banded_toeplitz(
    workload: Workload,
    *,
    bands: int,
    participation: Participation = SINGLE,
    loss: LossNorm = "rms",
    progress: Progress | None = None,
) -> Optimized:
    """Return the Toeplitz strategy with at most `bands` bands of smallest loss, by L-BFGS on exact gradients.

    One evaluation costs O(n min(bands, log n)) time and O(n) memory; 10 to 30 are needed. Deterministic.

    For one participation, or `bands` at most the separation, coefficients are free: columns that one unit
    can touch are orthogonal, and the sensitivity is exact whatever the signs (Lemma 3.16 b). The result then
    comes with a dual bound for the whole class. It meets the loss, to about 1e-7, where the search ends in
    the global optimum and the norm in the bound can be computed; elsewhere `gap` says how far it is
    (`optimize.series.toeplitz_bound`). For more bands than the separation the best of three searches is
    returned: non-negative and non-increasing coefficients, for which Lemma 3.16 (c) gives the sensitivity; up
    to 2048 steps non-negative ones, whose sensitivity is exact for `Cyclic`; and free ones with as many bands
    as the separation. No bound of the class is known there. No result is worse than independent noise:
    searches begin at the identity too where a zero of the workload lies inside the unit disc, and with
    learning rates it is compared at the end.

    Guarantee: the loss is that of the returned strategy, with exact sensitivity. Without a bound of the class
    it is a local minimum.

    Args:
        workload: a Toeplitz workload, n steps, with any learning rates, or
            `workloads.restart_differences` of one (loss "rms"). With learning rates the
            search takes them to be constant within the memory of C^-1, and no bound of the class is known;
            the loss is exact.
        bands: 1 <= bands <= n; n bands give the optimal Toeplitz strategy.
        participation: Single (default), Cyclic, MinSep or FullBatch.
        loss: "rms", "max" (not with learning rates) or "last", or weights of the steps.
        progress: called with the number of evaluations so far and the present loss.

    Returns:
        The strategy, scaled to ||c|| = 1 (its noise std is then the noise multiplier of one participation),
        its loss, and a lower bound where one is known.

    Raises:
        ValueError: for bad arguments, or bands > n.
        UnsupportedError: for a workload without Toeplitz factor, or schemas without a known worst pattern
            (it is a ValueError too).

    Example:
        >>> from anechoic import workloads
        >>> best = banded_toeplitz(workloads.prefix_sum(1024), bands=32)
        >>> round(best.loss, 4), best.gap < 1e-8
        (4.9556, True)

    References:
        Monograph, Section 4.3.1 and Eq. (4.11).
    """
    started = time.perf_counter()
    plain, _ = quadratic_form(workload, loss)
    n = workload.n
    bands = positive_int("bands", bands)
    if bands > n:
        raise ValueError(f"bands={bands} must be at most n={n}: bands=n gives the optimal Toeplitz strategy.")
    objective = ToeplitzObjective(workload, periodic_pattern(participation, n), loss, progress)
    column, bound = best_column(objective, plain, workload, participation, loss, bands)
    strategy = BandedToeplitz(n, column / np.sqrt(np.square(column).sum()))
    return finish(strategy, (workload, participation, loss), started, objective.evaluations, bound=bound)


def design(workload: Workload, bands: int, loss: LossNorm) -> BandedToeplitz:
    """The strategy of `banded_toeplitz` for one participation, without its loss and its bound: for plans."""
    plain, _ = quadratic_form(workload, loss)
    objective = ToeplitzObjective(workload, periodic_pattern(SINGLE, workload.n), loss)
    column, _ = best_column(objective, plain, workload, SINGLE, loss, bands, certified=False)
    return BandedToeplitz(workload.n, column / np.sqrt(np.square(column).sum()))


def best_column(
    objective: ToeplitzObjective,
    plain: Workload,
    workload: Workload,
    participation: Participation,
    loss: LossNorm,
    bands: int,
    *,
    certified: bool = True,
) -> tuple[Array, Bound | None]:
    """The first column of smallest loss that was found, with at most `bands` bands, and its class's bound.

    Not `certified`, no bound of the class is computed, which takes most of the time where bands are many: a
    second start is tried where one might have said that none is needed.
    """
    root = root_of(plain, bands)

    def bound_at(column: Array) -> Bound | None:
        return class_bound(objective, workload, loss, column) if certified else None

    if bands <= objective.separation:
        column, bound = free_column(objective, root, bands, bound_at)
        if workload.rates is None:
            return column, bound
        # the search takes learning rates to be constant within the memory of C^-1, where less may be more
        found = [column]
        found += [free_column(objective, root, b, lambda column: None)[0] for b in FEWER if b < bands]
    else:
        found, bound = several_columns(objective, root, bands), None
    found.append(np.ones(1))
    losses = [loss_of(workload, BandedToeplitz(workload.n, c), participation, loss) for c in found]
    return found[int(np.argmin(losses))], bound


def class_bound(
    objective: ToeplitzObjective, workload: Workload, loss: LossNorm, column: Array
) -> Bound | None:
    """The dual bound at `column` of at most `separation` bands; None where it would take too long, or where
    learning rates vary.
    """
    if workload.rates is not None:
        return None
    columns = objective.column_weights(len(column))
    if workload.restarts is not None:
        return form_bound(objective.a, column, columns, objective.form)
    return toeplitz_bound(objective.a, column, columns, tail_weights(loss, workload.n))
