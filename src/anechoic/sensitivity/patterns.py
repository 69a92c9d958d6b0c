"""Listed patterns: the maximum over an explicit list, by enumeration."""

from __future__ import annotations

from functools import lru_cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array
from anechoic.algebra.semidefinite import LARGEST, largest_correlated_sum
from anechoic.participation import Patterns
from anechoic.participation.base import Participation
from anechoic.sensitivity import theorems
from anechoic.sensitivity.dispatch import sensitivity_of
from anechoic.sensitivity.gram import ENTRIES, ROUNDING
from anechoic.sensitivity.limits import CUBES, TIGHT
from anechoic.sensitivity.result import Sensitivity
from anechoic.strategies.base import Strategy

STEPS, PATTERNS = 64, 2000  # up to which all patterns of a schema are listed


def listed(strategy: Strategy, participation: Patterns) -> Sensitivity:
    """sens^2 = max over the listed patterns of the supremum on each.

    Exact where C^T C >= 0 on the patterns (Lemma 3.15 b), where they have at most two steps, and where
    semidefinite duality closes the gap; otherwise Lemma 3.15 (a), or the triangle inequality where the
    columns of all listed steps are too many to hold.
    """
    n = strategy.n
    patterns = [np.array(pattern) for pattern in participation.patterns(n)]
    if not patterns:
        # nobody takes part in these steps; the least column norm keeps the value positive and safe
        return Sensitivity(
            strategy.largest_column_norm(), False, "largest column norm (no listed step)", theorems.TRIANGLE
        )
    steps = np.unique(np.concatenate(patterns))
    if len(steps) * max(n, len(steps)) > ENTRIES:
        norms = np.sqrt(strategy.column_norms_squared())
        value = max(float(norms[pattern].sum()) for pattern in patterns)
        return Sensitivity(value, False, "triangle inequality over each listed pattern", theorems.TRIANGLE)
    gram = _gram(strategy, steps)
    blocks = [np.searchsorted(steps, pattern) for pattern in patterns]
    sums = np.array([np.abs(gram[np.ix_(block, block)]).sum() for block in blocks])
    tiny = -ROUNDING * float(gram.diagonal().max())
    if all(len(b) <= 2 or gram[np.ix_(b, b)].min() >= tiny for b in blocks):
        return Sensitivity.of_squared(
            float(sums.max()), True, "Lemma 3.15(b) (enumeration of patterns)", theorems.NONNEGATIVE_PRODUCTS
        )
    return _mixed_signs(gram, blocks, sums)


def or_listed(found: Sensitivity, strategy: Strategy, participation: Participation) -> Sensitivity:
    """A bound, or what is less: that of all patterns of the schema, where they are few."""
    few = None if found.exact else few_patterns(participation, strategy.n, PATTERNS)
    if few is None:
        return found
    every = listed(strategy, Patterns(few))
    return every if every.exact else min(found, every, key=float)


@lru_cache(maxsize=256)
def few_patterns(participation: Participation, n: int, most: int) -> list[tuple[int, ...]] | None:
    """All patterns of a schema; None for more than so many, or many steps."""
    if n > STEPS:
        return None
    found = list(islice(participation.patterns(n), most + 1))
    return found if len(found) <= most else None


def _gram(strategy: Strategy, steps: NDArray[np.intp]) -> Array:
    """C^T C at the given steps."""
    indicator = np.zeros((strategy.n, len(steps)))
    indicator[steps, np.arange(len(steps))] = 1.0
    columns = strategy.multiply(indicator)
    return np.asarray(columns.T @ columns)


def _mixed_signs(gram: Array, blocks: list[NDArray[np.intp]], sums: Array) -> Sensitivity:
    """Solve the patterns in the order of their bound Lemma 3.15 (a), until no other can be larger."""
    lower = upper = bound = 0.0
    work = 0
    for index in np.argsort(-sums):
        bound = float(sums[index])
        size = len(blocks[index])
        work += size**3
        if bound <= upper or size > LARGEST or work > CUBES:
            break
        low, high = largest_correlated_sum(gram[np.ix_(blocks[index], blocks[index])], floor=lower)
        lower, upper, bound = max(lower, low), max(upper, high), 0.0
    squared = max(upper, bound)
    if lower >= (1 - TIGHT) * squared:
        return Sensitivity.of_squared(
            squared, True, "enumeration of patterns (semidefinite duality)", theorems.SEMIDEFINITE
        )
    return Sensitivity.of_squared(
        squared, False, "bound over listed patterns (Lemma 3.15 a)", theorems.ABSOLUTE_SUMS
    )


@sensitivity_of.register
def _(participation: Patterns, strategy: Strategy) -> Sensitivity:
    return listed(strategy, participation)
