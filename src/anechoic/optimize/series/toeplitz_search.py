"""Searches for the first column of a Toeplitz strategy, from more than one start.

The square root of a(x) is where the optimum lies for prefix sums. Where a(x) has a zero inside the unit disc
it is no start at all: its coefficients grow, it is stationary, and a saddle. There the search begins at the
identity, whose loss is finite for every workload; L-BFGS never ends above where it began.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy

from anechoic._validate import Array
from anechoic.lower_bounds.result import Bound
from anechoic.optimize.series.toeplitz_objective import ToeplitzObjective
from anechoic.strategies.toeplitz import square_root_coefficients
from anechoic.workloads.base import Workload

OPTIONS = {"maxiter": 1000, "maxfun": 1500, "gtol": 1e-7, "ftol": 1e-12, "maxcor": 20}
PROVEN = 1e-6  # gap to the bound of the class up to which no other start is tried
GAIN = 1e-9  # relative, that another start has to gain
OUTSIDE = 100.0  # logarithm of a loss beyond which a column is none
LARGEST = 1e6  # coefficient of a root from which a search for falling ones may begin
SECOND_UP_TO = 2**14  # steps up to which a second start is tried where no bound says whether it could gain
OFTEN_UP_TO = 512  # the same where coefficients fall or are non-negative, which takes hundreds of evaluations
LONGER_UP_TO, LONGER = 2048, 300  # steps up to which the latter may rise, and the evaluations for that

Certify = Callable[[Array], Bound | None]
Found = tuple[float, Array]  # logarithm of a loss, and the first column that has it


def root_of(plain: Workload, bands: int) -> Array | None:
    """The first coefficients of the square root of a(x), or None where float64 has lost them."""
    with np.errstate(all="ignore"):
        root = square_root_coefficients(plain, bands)
    return root if np.isfinite(root).all() and root[0] > 0.0 else None


def free_column(
    objective: ToeplitzObjective, root: Array | None, bands: int, certify: Certify
) -> tuple[Array, Bound | None]:
    """Coefficients of any sign, at most `separation` of them, of the smallest loss found, and their bound."""
    identity = np.eye(1, bands)[0]
    found: list[Found] = []
    bound = None
    if root is not None:
        found.append(_minimised(objective, root[:bands]))
        value, column = found[0]
        bound = certify(column) if value < OUTSIDE else None
        if bound is not None and value <= np.log(bound.value) + PROVEN:
            return column, bound
        if bound is None and len(objective.a) > SECOND_UP_TO and value <= objective(identity)[0]:
            return column, bound
    found.append(_minimised(objective, identity))
    best = _best(found)
    return best, bound if best is found[0][1] and bound is not None else certify(best)


def several_columns(objective: ToeplitzObjective, root: Array | None, bands: int) -> list[Array]:
    """For more bands than the separation: free ones with fewer bands, falling ones, and non-negative ones.

    The objective is the loss of the first two; of the third under Cyclic and FullBatch, and not always under
    MinSep, so that it is for the caller to compare.
    """
    n = len(objective.a)
    fewer, _ = free_column(objective, root, objective.separation, lambda column: None)
    found: list[Found] = []
    if root is not None and np.abs(root).max() < LARGEST:
        found.append(_falling(objective, np.concatenate([fewer / fewer[0], root[len(fewer) :]])))
    if not found or n <= OFTEN_UP_TO:
        found.append(_falling(objective, np.pad(fewer / fewer[0], (0, bands - len(fewer)))))
    columns = [fewer, _best(found)]
    if n <= LONGER_UP_TO:
        begin = min(columns, key=lambda column: objective(column)[0])
        begin = np.maximum(np.pad(begin, (0, bands - len(begin))), 0.0)
        columns.append(_nonnegative(objective, begin))
    return columns


def _best(found: list[Found]) -> Array:
    """The first column that none of the others beats by more than `GAIN`."""
    least = min(value for value, _ in found)
    return next(column for value, column in found if value <= least + GAIN)


def _minimised(objective: ToeplitzObjective, start: Array) -> Found:
    found = scipy.optimize.minimize(objective, start, jac=True, method="L-BFGS-B", options=OPTIONS)
    return float(found.fun), np.asarray(found.x)


def _nonnegative(objective: ToeplitzObjective, start: Array) -> Array:
    """Coefficients >= 0, which may rise."""
    bounds = [(0.0, None)] * len(start)
    options = {**OPTIONS, "maxfun": LONGER}
    found = scipy.optimize.minimize(
        objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options
    )
    return np.asarray(found.x)


def _falling(objective: ToeplitzObjective, start: Array) -> Found:
    """Coefficients that do not increase and are >= 0: running sums, from the end, of drops >= 0."""
    lowered = np.maximum(np.minimum.accumulate(start), 0.0)
    drops = np.maximum(-np.diff(lowered, append=0.0), 1e-9)
    units = np.sqrt(drops)  # they differ by orders of magnitude

    def by_drops(scaled: Array) -> tuple[float, Array]:
        value, gradient = objective(_from_drops(units * scaled))
        return value, units * np.cumsum(gradient)

    bounds = [(0.0, None)] * len(drops)
    found = scipy.optimize.minimize(
        by_drops, drops / units, jac=True, method="L-BFGS-B", bounds=bounds, options=OPTIONS
    )
    return float(found.fun), _from_drops(units * found.x)


def _from_drops(drops: Array) -> Array:
    return np.cumsum(drops[::-1])[::-1]
