"""Banded Toeplitz strategies with normalised columns, optimised as what they are (Definition 2.10)."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import scipy

from anechoic._validate import Array, one_of
from anechoic.algebra import banded as algebra
from anechoic.algebra.threads import on_one_thread
from anechoic.errors import UnsupportedError
from anechoic.losses.norms import KINDS, LossNorm, row_weights
from anechoic.optimize.columns.objective import DENSE, Mean, Objective, objective_of
from anechoic.optimize.columns.search import SmoothSearch, weighted
from anechoic.optimize.periodic_pattern import periodic_pattern
from anechoic.optimize.result import Optimized, finish
from anechoic.optimize.series.banded_toeplitz import banded_toeplitz
from anechoic.participation.base import Participation
from anechoic.participation.single import SINGLE
from anechoic.strategies import BandedToeplitz, ColumnNormalized
from anechoic.strategies.base import Strategy
from anechoic.workloads.base import Workload, checked_workload

OPTIONS = {"maxiter": 300, "maxfun": 600, "gtol": 1e-7, "ftol": 1e-12, "maxcor": 20}
# Of the smooth maxima that stand for the largest error, one after the other.
SHARPNESS = (30.0, 300.0, 3000.0)


@on_one_thread
def column_normalized(
    workload: Workload,
    *,
    bands: int,
    participation: Participation = SINGLE,
    loss: LossNorm = "rms",
    progress: Callable[[int, float], None] | None = None,
) -> Optimized:
    """Return the banded Toeplitz strategy of smallest loss after its columns are normalised.

    `strategies.ColumnNormalized` of the optimum of `banded_toeplitz` is where the search begins: the
    last columns, which n cuts short, are made longer, and coefficients that were best before need not be best
    then. L-BFGS on exact gradients, O(n bands^2) for an evaluation where A^-1 has few bands, else O(n^3).
    Deterministic.

    Guarantee: the loss is that of the returned strategy, and never above that of the normalised optimum of
    the plain class. It is a local minimum; no bound of the class is known.

    Args:
        workload: A, n steps; Toeplitz.
        bands: 1 <= bands <= n, and at most the separation of participations of one unit.
        participation: Single (default), Cyclic, MinSep or FullBatch.
        loss: "rms", "max" or "last", or weights of the steps, >= 0, shape (n,).
        progress: called with the evaluations so far and the present loss.

    Returns:
        `ColumnNormalized` of a BandedToeplitz, its loss, and a lower bound where one is known.

    Raises:
        ValueError: for bad arguments.
        UnsupportedError: for a workload without Toeplitz factor, schemas without a known worst pattern, bands
            above the separation, or too many steps (it is a ValueError too).

    Example:
        >>> from anechoic import workloads
        >>> round(column_normalized(workloads.prefix_sum(64), bands=8).loss, 4)
        2.6532

    References:
        Monograph, Definition 2.10 and Section 4.3.
    """
    started = time.perf_counter()
    checked_workload(workload)
    if isinstance(loss, str):
        one_of("loss", loss, KINDS)
    found, evaluations = _bands(workload, bands, participation, loss, progress)
    # the first is the plain optimum: it is kept unless another one is better
    asked = workload, participation, loss
    others = [*found[1:], ColumnNormalized(BandedToeplitz(workload.n, [1.0]))]
    return finish(found[0], asked, started, evaluations, others=others)


def _bands(
    workload: Workload,
    bands: int,
    participation: Participation,
    loss: LossNorm,
    progress: Callable[[int, float], None] | None,
) -> tuple[list[Strategy], int]:
    """The normalised plain optimum, and what the search made of it; evaluations."""
    plain = banded_toeplitz(workload, bands=bands, participation=participation, loss=loss)
    n = workload.n
    separation, count = periodic_pattern(participation, n)
    if count > 1 and bands > separation:
        raise UnsupportedError(
            f"bands={bands} exceeds the {separation} steps between participations of one unit: columns that"
            f" it touches would interact. Use bands <= {separation}, or ColumnNormalized of banded_toeplitz."
        )
    objective = objective_of(workload, bands)
    if objective is None:
        raise UnsupportedError(
            f"workload={type(workload).__name__} is no recursion of few bands, and n={n} steps exceed"
            f" {DENSE}: use ColumnNormalized of banded_toeplitz."
        )
    errors = NormalizedErrors(objective, n, progress)
    column = np.zeros(bands)
    given = np.asarray(plain.strategy.coefficients)[:bands]
    column[: len(given)] = given
    found: list[Strategy] = [ColumnNormalized(plain.strategy)]
    for sharpness in SHARPNESS if isinstance(loss, str) and loss == "max" else (None,):
        if sharpness is None:
            mean = weighted(row_weights(loss, n))
        else:
            largest = float(objective.squares(normalized(column, n)).max())
            mean = SmoothSearch(np.full(n, 1.0 / n), sharpness / largest, 0.0)
        result = scipy.optimize.minimize(
            lambda c, mean=mean: errors(c, mean), column, jac=True, method="L-BFGS-B", options=OPTIONS
        )
        column = np.asarray(result.x / np.sqrt(np.square(result.x).sum()))
        found.append(ColumnNormalized(BandedToeplitz(n, column * np.sign(column[0]))))
    return found, plain.evaluations + errors.evaluations


class NormalizedErrors:
    """log(error) of a first column c of any length, the columns of its Toeplitz matrix normalised.

    Args:
        objective: squared errors of banded C by columns.
        n: steps.
        progress: called with the evaluations so far and the error.
    """

    def __init__(
        self, objective: Objective, n: int, progress: Callable[[int, float], None] | None = None
    ) -> None:
        self._objective, self._n, self._progress = objective, n, progress
        self.evaluations = 0

    def __call__(self, column: Array, mean: Mean) -> tuple[float, Array]:
        """The logarithm, and its derivatives by c."""
        self.evaluations += 1
        with np.errstate(all="ignore"):
            columns = normalized(column, self._n)
            found = self._objective(columns, mean)
            if not (found.value > 0.0 and np.isfinite(found.value) and np.isfinite(found.gradient).all()):
                return 1e10, np.zeros_like(column)
        along = np.einsum("ji,ji->j", found.gradient, columns)
        by_free = found.gradient - along[:, None] * columns
        lengths = np.sqrt(_norms(column, self._n))
        if self._progress is not None:
            self._progress(self.evaluations, float(np.sqrt(found.value)))
        return 0.5 * float(np.log(found.value)), (by_free / lengths[:, None]).sum(axis=0) / (
            2.0 * found.value
        )


def normalized(column: Array, n: int) -> Array:
    """The columns, shape (n, bands), of the Toeplitz matrix of `column`, each of norm 1."""
    return np.asarray(algebra.of_toeplitz(column, n) / np.sqrt(_norms(column, n))[:, None])


def _norms(column: Array, n: int) -> Array:
    """Squared norms of the n columns: n cuts the last ones short."""
    sums = np.cumsum(np.square(column))
    return np.asarray(sums[np.minimum(len(column), n - np.arange(n)) - 1])
