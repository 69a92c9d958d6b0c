"""Refinement of many bands of a long run from the columns of a coarse one.

A banded C for prefix sums under minimum separation has n bands numbers, and each evaluation takes n bands^2.
But its columns, over those of the square root of A, hardly change with the grain: they are those of a run of
fewer steps, interpolated. What the grain decides are their norms. For C = D diag(d)^½ with columns of D of
norm 1 and K = (D^T D)^-1 the mean of the squared errors is sum_st H_st K_st (d_s d_t)^-½, H = A^T W A: n^2
for an evaluation, over all d that the schema allows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy
from scipy.linalg import solve_triangular

from anechoic._validate import Array
from anechoic.algebra import banded
from anechoic.optimize.columns.objective import DENSE
from anechoic.optimize.columns.scales import WindowScales
from anechoic.participation import MinSep
from anechoic.participation.base import Participation
from anechoic.strategies.toeplitz import square_root_coefficients
from anechoic.workloads.base import Workload

WORK = 1e7  # steps times bands^2 from which a search over all columns takes minutes
BANDS = 40  # of the coarse run
ROUNDS = 300  # of L-BFGS over norms

#: Workload, bands, participation and weights to the best columns, shape (n, bands).
Optimise = Callable[[Workload, int, Participation, Array], Array]


def grain(workload: Workload, bands: int, participation: Participation) -> int:
    """Steps that are one of the coarse run; 1 where there is none."""
    n = workload.n
    several = isinstance(participation, MinSep) and participation.max_participations_in(n) > 1
    if not (several and workload.is_prefix_sum and n <= DENSE and n * bands**2 >= WORK):
        return 1
    return -(-bands // BANDS)


def refine_coarse_run(
    workload: Workload, weights: Array, bands: int, participation: MinSep, optimise: Optimise
) -> tuple[Array, int]:
    """Columns, shape (n, bands), and the evaluations that their norms took.

    Args:
        workload: prefix sums, n steps.
        weights: of the squared errors, of sum 1.
        bands: of C, at most the separation.
        participation: with more than one participation.
        optimise: finds the columns of the coarse run.
    """
    n, size = workload.n, grain(workload, bands, participation)
    coarse = MinSep(-(-participation.separation // size), participation.max_participations_in(n))
    cells = np.add.reduceat(weights, np.arange(0, n, size))
    found = optimise(workload.truncate(len(cells)), -(-bands // size), coarse, cells)
    columns = interpolated(found, workload, bands, size)
    return _with_norms(columns / np.sqrt(np.square(columns).sum(axis=1))[:, None], weights, participation)


def interpolated(coarse: Array, workload: Workload, bands: int, size: int) -> Array:
    """Columns over those of the root, linear in both directions; zero beyond the last row."""
    steps, few = coarse.shape
    shapes = coarse / square_root_coefficients(workload, few)
    for t in range(max(0, steps - few + 1), steps):  # what n cuts off goes on as it was
        shapes[t, steps - t :] = shapes[t, steps - t - 1]
    n = workload.n
    places = np.clip((np.arange(n) + 0.5) / size - 0.5, 0, steps - 1)
    lags = np.minimum(np.arange(bands) / size, few - 1)
    at = np.meshgrid(places, lags, indexing="ij")
    fine = scipy.ndimage.map_coordinates(shapes, at, order=1) * square_root_coefficients(workload, bands)
    return np.where(np.arange(n)[:, None] + np.arange(bands) < n, fine, 0.0)


def _with_norms(unit: Array, weights: Array, participation: MinSep) -> tuple[Array, int]:
    """The columns with the best norms of sensitivity at most 1, and evaluations."""
    n = len(unit)
    ones = np.ones((n, 1))
    scales = WindowScales(ones, 1, participation.separation, participation.max_participations_in(n))
    inverse = solve_triangular(banded.dense(unit), np.eye(n), lower=True)
    after = np.cumsum(weights[::-1])[::-1]  # H[s, t] = the weight of the errors from both on
    form = np.minimum.outer(after, after) * (inverse @ inverse.T)

    def value(shares: Array) -> tuple[float, Array]:
        variables = np.append(ones, shares)
        norms = scales.columns(variables)
        image = form @ (1.0 / norms)
        total = float((image / norms).sum())
        gradient = scales.pull_back(variables, -image / np.square(norms) / total)[0]
        return 0.5 * float(np.log(total)), gradient[n:]

    begin = scales.variables(ones)[n:]
    bounds, options = [(0.0, None)] * len(begin), {"maxiter": ROUNDS, "maxcor": 20}
    found = scipy.optimize.minimize(value, begin, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return scales.columns(np.append(ones, found.x)) * unit, int(found.nfev)
