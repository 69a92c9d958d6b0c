"""Strategies of smaller classes that a dense one must not lose to, where its optimum is not known.

Under minimum separation and one step an epoch the dense search is over a part of all strategies only. What is
quick to find in structured classes is compared with it, and mixed with it: the squared sensitivity and
tr(H M^-1) are convex in M = C^T C, so that between two good M there may be a better one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import singledispatch

import numpy as np
from scipy.linalg import LinAlgError, cholesky

from anechoic._validate import Array
from anechoic.errors import PerformanceWarning, UnsupportedError
from anechoic.losses.dispatch import loss as loss_of
from anechoic.losses.kinds import LossKind, row_weights
from anechoic.lower_bounds.result import Bound
from anechoic.optimize.columns.banded import banded
from anechoic.optimize.full.generated import SOLVED_UP_TO, generated_strategy
from anechoic.optimize.full.quick import quick
from anechoic.optimize.result import Optimized
from anechoic.optimize.series.banded_inverse import banded_inverse
from anechoic.optimize.series.banded_toeplitz import banded_toeplitz
from anechoic.optimize.series.toeplitz import toeplitz
from anechoic.participation import MinSep, OncePerEpoch
from anechoic.participation.base import Participation
from anechoic.strategies import ColumnNormalized, Dense
from anechoic.strategies.base import Strategy
from anechoic.workloads.base import Workload

BANDS, INVERSE = 8, 4  # of the banded strategies and the banded inverses that are tried
FREE_UP_TO = 20_000  # steps times bands^2 up to which columns are optimised one by one
MIXED_UP_TO = 256  # steps up to which mixtures are tried
MIXTURES = (0.03, 0.1, 0.25, 0.5, 0.75, 0.9)
GAIN = 1e-9  # relative, that another strategy has to gain
# Of the squared sensitivity for one step alone, what makes C regular; entries of its row that count as none.
SHARE, NEGLIGIBLE = 1e-4, 1e-9


def or_contained(
    found: Optimized, workload: Workload, participation: Participation, loss: LossKind
) -> Optimized:
    """`found`, or what is better among smaller classes and mixtures with the best of them; same bound."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PerformanceWarning)  # n x n arrays are what was asked for
        tried = [
            (loss_of(workload, c, participation, loss), c) for c in _contained(workload, participation, loss)
        ]
        value, best = min(tried, key=lambda pair: pair[0])
        if workload.n <= MIXED_UP_TO and value < found.loss * (1 + 0.2):
            mixed = _mixtures(found.strategy.to_dense(), best.to_dense())
            tried = [(value, best), *((loss_of(workload, c, participation, loss), c) for c in mixed)]
            value, best = min(tried, key=lambda pair: pair[0])
    if value >= found.loss * (1 - GAIN):
        return found
    bound = None
    if found.lower_bound is not None and found.bound_name is not None and found.bound_covers is not None:
        bound = Bound(found.lower_bound, found.bound_name, found.bound_covers)
    bare = replace(found, strategy=best, loss=value, lower_bound=None, gap=None)
    return bare.against(bound)


def for_one_step(workload: Workload, loss: LossKind) -> Dense | None:
    """For the error of one step alone the infimum, but for `SHARE`; None where other steps have weight.

    C^T C = D (1 1^T + share I) D with the row of A on the diagonal D has an error of at most 1 there, and the
    squared sensitivity (sum of |A[t, j]| over a pattern)^2 + share times the sum of squares: by the
    inequality of Cauchy and Schwarz no factorisation has less than the first. Errors of other steps are
    large.
    """
    n = workload.n
    if isinstance(loss, str) and loss == "max":
        return None
    steps = np.flatnonzero(row_weights(loss, n))
    if len(steps) > 1:
        return None
    unit = np.zeros(n)
    unit[steps] = 1.0
    row = workload.adjoint_multiply(unit)
    sizes = np.abs(row)
    used = sizes > NEGLIGIBLE * sizes.max()
    gram = np.outer(used, used) + np.diag(np.where(used, SHARE, 1.0))
    factor = cholesky(gram[::-1, ::-1], lower=True)[::-1, ::-1].T
    # the rest is let in with next to no weight, so that it costs neither error nor sensitivity
    scales = np.where(used, row, NEGLIGIBLE**0.5 * sizes.max())
    # the signs of rows of C change nothing: the diagonal is to be positive
    return Dense(np.sign(scales)[:, None] * factor * scales)


def _contained(workload: Workload, participation: Participation, loss: LossKind) -> Iterator[Strategy]:
    """Strategies of the smaller classes, each as good as its optimiser makes it."""
    n = workload.n
    yield from quick(workload)
    one = for_one_step(workload, loss)
    if one is not None:
        yield one
    if n <= SOLVED_UP_TO:
        weights = None if isinstance(loss, str) and loss == "max" else row_weights(loss, n)
        solved = generated_strategy(workload.to_dense(), weights, participation, SHARE)
        if solved is not None:
            yield Dense(solved)
    for schema in _designs(participation, n):
        yield from _made(lambda schema=schema: toeplitz(workload, participation=schema, loss=loss))  # type: ignore[misc]
        yield from _made(
            lambda schema=schema: banded_inverse(  # type: ignore[misc]
                workload, bands=min(INVERSE, n), participation=schema, loss=loss
            )
        )
    bands = min(_least_lag(participation, n), BANDS)
    if bands > 1:
        for strategy in _made(lambda: banded_toeplitz(workload, bands=bands, loss=loss)):
            yield strategy
            yield ColumnNormalized(strategy)
    if n * bands**2 <= FREE_UP_TO and not (isinstance(loss, str) and loss == "max"):
        yield from _made(lambda: banded(workload, bands=bands, participation=participation, loss=loss))


@singledispatch
def _designs(participation: Participation, n: int) -> list[Participation]:
    """Schemas that Toeplitz optimisers know, to design for in the place of this one."""
    return [participation]


@_designs.register
def _(participation: OncePerEpoch, n: int) -> list[Participation]:
    # two participations may be one step apart; cycles of the same period are among the patterns
    return [MinSep(1, participation.max_participations_in(n)), MinSep(participation.period)]


def _least_lag(participation: Participation, n: int) -> int:
    """Steps between the two nearest ones that a unit may touch both of; n where there are none."""
    together = participation.together(n)
    return next((lag for lag in range(1, n) if together.diagonal(lag).any()), n)


def _made(optimise: Callable[[], Optimized]) -> Iterator[Strategy]:
    """What an optimiser finds, unless its class does not know the workload or the loss."""
    try:
        yield optimise().strategy
    except UnsupportedError:
        return


def _mixtures(first: Array, second: Array) -> Iterator[Dense]:
    """C with C^T C between those of two strategies, each scaled to a largest column norm of 1."""
    grams = []
    for c in (first, second):
        gram = c.T @ c
        grams.append(gram / gram.diagonal().max())
    for share in MIXTURES:
        mixed = (1.0 - share) * grams[0] + share * grams[1]
        try:
            factor = cholesky(mixed[::-1, ::-1], lower=True)
        except LinAlgError:
            continue
        yield Dense(np.ascontiguousarray(factor[::-1, ::-1].T))
