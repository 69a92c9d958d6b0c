"""Full-batch participation: one pattern, every step."""

from __future__ import annotations

import numpy as np

from anechoic.algebra.semidefinite import LARGEST, largest_correlated_sum
from anechoic.participation import FullBatch
from anechoic.sensitivity import single, theorems
from anechoic.sensitivity.dispatch import sensitivity_of
from anechoic.sensitivity.gram import ENTRIES, ROUNDING, gram_of
from anechoic.sensitivity.limits import TIGHT
from anechoic.sensitivity.result import Sensitivity
from anechoic.strategies.base import Strategy

EIGEN = 2048  # steps up to which the largest eigenvalue is computed
EIGENVALUE = 1e-10  # by which the largest one may be off, relative: LAPACK errs by some n 2^-53


def full_batch(strategy: Strategy) -> Sensitivity:
    """sens^2 = max <C^T C, R> over n x n correlation matrices R.

    Exact where C^T C >= 0 (then ||C 1||^2), where it is tridiagonal (any signs), and up to 512 steps by
    semidefinite duality; otherwise the least of sum |C^T C| (Lemma 3.15 a), n times the largest
    eigenvalue of C^T C (tr R = n), and the triangle inequality.
    """
    n, structure = strategy.n, strategy.structure
    if structure.nonnegative:
        squared = strategy.comb_norm_squared(1, n)
        return Sensitivity.of_squared(
            squared, True, "Lemma 3.15(b) (every step, C >= 0)", theorems.NONNEGATIVE_PRODUCTS
        )
    gram = gram_of(strategy)
    if gram is None or n * gram.bandwidth > 10 * ENTRIES:
        return _triangle(strategy)
    smallest, largest, total = 0.0, float(gram.diagonal(0).max()), 0.0
    for lag in range(min(gram.bandwidth, n)):
        entries = gram.diagonal(lag)
        smallest = min(smallest, float(entries.min()))
        total += (1 if lag == 0 else 2) * float(np.abs(entries).sum())
    if smallest >= -ROUNDING * largest:
        return Sensitivity.of_squared(
            total, True, "Lemma 3.15(b) (every step, C^T C >= 0)", theorems.NONNEGATIVE_PRODUCTS
        )
    if gram.bandwidth <= 2 or n <= 2:
        return Sensitivity.of_squared(
            total, True, "every step (only neighbouring steps interact)", theorems.NEIGHBOURS
        )
    if n <= LARGEST:
        lower, upper = largest_correlated_sum(gram.block(range(n)))
        if lower >= (1 - TIGHT) * upper:
            return Sensitivity.of_squared(
                upper, True, "every step (mixed signs, semidefinite duality)", theorems.SEMIDEFINITE
            )
        return Sensitivity.of_squared(
            upper, False, "every step (mixed signs, semidefinite dual bound)", theorems.SEMIDEFINITE
        )
    bounds = [
        Sensitivity.of_squared(
            total, False, "Lemma 3.15(a) (every step, mixed signs)", theorems.ABSOLUTE_SUMS
        ),
        _triangle(strategy),
    ]
    if n <= EIGEN:
        from scipy.linalg import eigvalsh

        top = float(eigvalsh(gram.block(range(n)), subset_by_index=[n - 1, n - 1])[0])
        top *= 1 + EIGENVALUE
        bounds.append(
            Sensitivity.of_squared(
                n * top, False, "n times the largest eigenvalue of C^T C", theorems.EIGENVALUE
            )
        )
    return min(bounds, key=float)


def _triangle(strategy: Strategy) -> Sensitivity:
    if strategy.n <= ENTRIES:
        value = float(np.sqrt(strategy.column_norms_squared()).sum())
    else:
        value = strategy.n * strategy.largest_column_norm()
    return Sensitivity(value, False, "triangle inequality over every step", theorems.TRIANGLE)


@sensitivity_of.register
def _(participation: FullBatch, strategy: Strategy) -> Sensitivity:
    return single.single(strategy) if strategy.n == 1 else full_batch(strategy)
