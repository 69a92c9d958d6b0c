"""Many bands of a long run from the columns of a coarse one.

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
from anechoic.participation import MinSep
from anechoic.participation.base import Participation
from anechoic.strategies.toeplitz import square_root_coefficients
from anechoic.workloads.base import Workload

WORK = 1e7  # steps times bands^2 from which a search over all columns takes minutes
BANDS = 40  # of the coarse run
ROUNDS = 300  # of L-BFGS over norms
LEAST = 25.0  # logarithm of the largest ratio of two weights: sums of windows keep some digits of each

#: Workload, bands, participation and weights to the best columns, shape (n, bands).
Optimise = Callable[[Workload, int, Participation, Array], Array]


def grain(workload: Workload, bands: int, participation: Participation) -> int:
    """Steps that are one of the coarse run; 1 where there is none."""
    n = workload.n
    several = isinstance(participation, MinSep) and participation.max_participations_in(n) > 1
    if not (several and workload.is_prefix_sum and n <= DENSE and n * bands**2 >= WORK):
        return 1
    return -(-bands // BANDS)


def refined(
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
    windows = Windows(n, participation)
    inverse = solve_triangular(banded.dense(unit), np.eye(n), lower=True)
    after = np.cumsum(weights[::-1])[::-1]  # H[s, t] = the weight of the errors from both on
    form = np.minimum.outer(after, after) * (inverse @ inverse.T)

    def value(logs: Array) -> tuple[float, Array]:
        shares = windows.shares(logs)
        d = windows.diagonal(shares)
        image = form @ (1.0 / np.sqrt(d))
        total = float(image @ (1.0 / np.sqrt(d)))
        return 0.5 * float(np.log(total)), windows.gradient(shares, -image * d**-1.5) / (2 * total)

    options = {"maxiter": ROUNDS, "maxcor": 20}
    found = scipy.optimize.minimize(value, windows.begin(), jac=True, method="L-BFGS-B", options=options)
    d = windows.diagonal(windows.shares(found.x))
    return np.sqrt(d)[:, None] * unit, int(found.nfev)


class Windows:
    """The squared norms d of sensitivity at most 1 under minimum separation, as `columns.scales` has them.

    Logarithms of the weights of the windows, named by where they begin, and, where the participations are
    fewer than fit, of the constant.
    """

    def __init__(self, n: int, participation: MinSep) -> None:
        self._n, self._width = n, participation.separation
        count = participation.max_participations_in(n)
        self._count = count if count < -(-n // self._width) else None
        self._from = np.maximum(np.arange(n) - self._width + 1, 0)

    def begin(self) -> Array:
        """Equal weights on windows that follow one another; nearly all on the constant where there is one."""
        logs = np.full(self._n + 1, -6.0 if self._count is None else -9.0)
        logs[: self._n : self._width] = 0.0 if self._count is None else -3.0
        logs[self._n] = 0.0
        return logs if self._count is not None else logs[: self._n]

    def shares(self, logs: Array) -> Array:
        """The weights, of sum 1."""
        weights = np.exp(np.maximum(logs - logs.max(), -LEAST))  # no column vanishes
        return np.asarray(weights / weights.sum())

    def diagonal(self, shares: Array) -> Array:
        """d, shape (n,)."""
        sums = np.concatenate([[0.0], np.cumsum(shares[: self._n])])
        d = sums[1:] - sums[self._from]
        return np.asarray(d if self._count is None else d + shares[self._n] / self._count)

    def gradient(self, shares: Array, by_d: Array) -> Array:
        """By the logarithms, from that by d."""
        changes = np.bincount(self._from, by_d, self._n)
        by_share = np.cumsum(changes - np.append(0.0, by_d[:-1]))
        if self._count is not None:
            by_share = np.append(by_share, by_d.sum() / self._count)
        return np.asarray(shares * (by_share - shares @ by_share))
