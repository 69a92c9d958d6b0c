"""Candidates that take no search, for optimisers of larger classes: none may return worse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from anechoic.optimize.result import Optimized
from anechoic.optimize.series.toeplitz_search import root_of
from anechoic.participation.base import Participation
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.strategies import ColumnNormalized, Dense, Identity, Toeplitz
from anechoic.strategies.base import Strategy
from anechoic.workloads import prefix_sum
from anechoic.workloads.base import Workload


def cheap_candidates(workload: Workload) -> Iterator[Strategy]:
    """Independent noise, and the root of the Toeplitz factor, or of prefix sums, with norms and without."""
    n = workload.n
    yield Identity(n)
    coefficients = root_of(workload if workload.is_toeplitz else prefix_sum(n), n)
    if coefficients is not None and np.abs(coefficients).max() <= 1e6:
        root = Toeplitz(n, coefficients)
        yield root
        yield ColumnNormalized(root)


def of_sensitivity_one(found: Optimized, participation: Participation) -> Optimized:
    """The same as a matrix of sensitivity 1, as all that a dense search finds."""
    if isinstance(found.strategy, Dense):
        return found
    scale = sensitivity(found.strategy, participation).value
    return replace(found, strategy=Dense(found.strategy.to_dense() / scale))
