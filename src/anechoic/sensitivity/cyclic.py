"""Cyclic participation: b patterns, one for each place in the cycle, so the maximum is by enumeration."""

from __future__ import annotations

import numpy as np

from anechoic._validate import Array
from anechoic.algebra.semidefinite import LARGEST, largest_correlated_sum
from anechoic.participation import Cyclic
from anechoic.sensitivity import comb, full_batch, single, theorems
from anechoic.sensitivity.dispatch import sensitivity_of
from anechoic.sensitivity.gram import ROUNDING, Gram, gram_of
from anechoic.sensitivity.limits import CUBES, TIGHT
from anechoic.sensitivity.result import Sensitivity
from anechoic.strategies.base import Strategy

CHUNK = 8_000_000  # numbers in one chunk of columns
TRIED = 512  # mixed-sign patterns whose semidefinite programme is solved, or fewer of many steps


def cyclic(strategy: Strategy, period: int, gram: Gram | None = None) -> Sensitivity:
    """sens^2 = max over l < period of the supremum on the pattern l, l + period, ….

    Exact where C^T C is non-negative on the patterns (Lemma 3.15 b), where at most neighbouring
    participations interact (any signs), and where semidefinite duality closes the gap; otherwise a bound.
    `gram` is that of the strategy, where the caller has it already.
    """
    n, structure = strategy.n, strategy.structure
    count = -(-n // period)
    if structure.nonincreasing:
        return comb.early_and_often(strategy, period, count)
    if structure.toeplitz and structure.nonnegative:
        return comb.first_offset(strategy, period, count)
    if structure.gram_bands <= period:
        sums = over_offsets(strategy.column_norms_squared(), period)
        return Sensitivity.of_squared(
            float(sums.max()),
            True,
            "enumeration of cycles (participations do not interact)",
            theorems.NO_INTERACTION,
        )
    gram = gram_of(strategy) if gram is None else gram
    if gram is not None:
        return _from_gram(gram, period, offsets=1 if structure.toeplitz else min(period, n))
    if structure.nonnegative:
        squared = _largest_column_sum(strategy, period)
        return Sensitivity.of_squared(
            squared, True, "Lemma 3.15(b) (enumeration of cycles)", theorems.NONNEGATIVE_PRODUCTS
        )
    if n <= CHUNK:
        norms = np.sqrt(strategy.column_norms_squared())
        value = float(over_offsets(norms, period).max())
    else:
        value = count * strategy.largest_column_norm()
    return Sensitivity(value, False, "triangle inequality over one cycle", theorems.TRIANGLE)


def over_offsets(values: Array, period: int) -> Array:
    """sum_j values[l + j period] for every l < period, shape (period,)."""
    rows = -(-len(values) // period)
    return np.asarray(np.pad(values, (0, rows * period - len(values))).reshape(rows, period).sum(axis=0))


def _from_gram(gram: Gram, period: int, *, offsets: int) -> Sensitivity:
    # Toeplitz: offset l is offset 0 cut at n - l, so the first offset is the worst whatever the signs
    sums = np.zeros(period)
    smallest, largest = 0.0, float(gram.diagonal(0).max())
    for lag in range(0, min(gram.bandwidth, gram.n), period):
        entries = gram.diagonal(lag)
        smallest = min(smallest, float(entries.min()))
        sums += (1 if lag == 0 else 2) * over_offsets(np.abs(entries), period)
    sums = sums[:offsets]
    if smallest >= -ROUNDING * largest:
        return Sensitivity.of_squared(
            float(sums.max()), True, "Lemma 3.15(b) (enumeration of cycles)", theorems.NONNEGATIVE_PRODUCTS
        )
    if gram.bandwidth <= 2 * period or gram.n <= 2 * period:
        return Sensitivity.of_squared(
            float(sums.max()),
            True,
            "enumeration of cycles (only neighbouring participations interact)",
            theorems.NEIGHBOURS,
        )
    return _mixed_signs(gram, period, sums)


def _mixed_signs(gram: Gram, period: int, sums: Array) -> Sensitivity:
    """Solve the patterns in the order of their bound Lemma 3.15(a), until no other can be larger."""
    lower, upper, bound = 0.0, 0.0, float(sums.max())
    count = -(-gram.n // period)
    if count <= LARGEST:
        tries = min(TRIED, max(1, CUBES // count**3))
        for tried, offset in enumerate(np.argsort(-sums)):
            bound = float(sums[offset])
            if bound <= upper or tried == tries:
                break
            block = gram.block(range(int(offset), gram.n, period))
            low, high = largest_correlated_sum(block, floor=lower)
            lower, upper, bound = max(lower, low), max(upper, high), 0.0
    squared = max(upper, bound)
    if lower >= (1 - TIGHT) * squared:
        return Sensitivity.of_squared(
            squared, True, "enumeration of cycles (mixed signs, semidefinite duality)", theorems.SEMIDEFINITE
        )
    return Sensitivity.of_squared(
        squared, False, "bound over cycles (mixed signs, Lemma 3.15 a)", theorems.ABSOLUTE_SUMS
    )


def _largest_column_sum(strategy: Strategy, period: int) -> float:
    n, largest = strategy.n, 0.0
    width = max(1, CHUNK // n)
    for first in range(0, min(period, n), width):
        offsets = np.arange(first, min(first + width, period, n))
        teeth = (np.arange(n)[:, None] % period == offsets).astype(np.float64)
        largest = max(largest, float(np.square(strategy.multiply(teeth)).sum(axis=0).max()))
    return largest


@sensitivity_of.register
def _(participation: Cyclic, strategy: Strategy) -> Sensitivity:
    if participation.max_participations_in(strategy.n) == 1:
        return single.single(strategy)
    if participation.period == 1:
        return full_batch.full_batch(strategy)
    return cyclic(strategy, participation.period)
