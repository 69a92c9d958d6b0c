"""Sensitivity of two streams at once: of clipped vectors and of their squares."""

from __future__ import annotations

import math

import numpy as np

from anechoic._validate import Array, one_of, positive_float
from anechoic.errors import MismatchError
from anechoic.participation.base import Participation
from anechoic.sensitivity import theorems
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.sensitivity.result import Sensitivity
from anechoic.strategies import Dense
from anechoic.strategies.base import Strategy

#: Why a promised participation has no other adjacency.
MOVES_OTHERS = "Adding or removing a record may move others to other steps, which no promise excludes."

DENSE = 512  # steps up to which the two Gram matrices are added as arrays


def joint_sensitivity(
    first: Strategy,
    second: Strategy | None,
    participation: Participation,
    *,
    weight: float,
    adjacency: str = "zero_out",
) -> Sensitivity:
    """Of C1 X and weight^1/2 C2 Q, where Q holds the squares of the rows of X, in units of the clip norm.

    Rows of X have norm <= 1. A row q of Q is x * x by entries, or x x^T: both have norm <= ||x||^2, and the
    bound is the same.

    Guarantee: never below the largest (||C1 (X - X')||_F^2 + weight ||C2 (Q - Q')||_F^2)^1/2 over patterns,
    contributions and dimensions >= 2, up to rounding. Unlike `sensitivity`, replace-one is counted here:
    where C1 = C2, squares of weight at most 1/2 change nothing then; under zero-out they cost a factor of
    (1 + weight)^1/2.

    Args:
        first, second: C1 and C2 of as many steps; None for C2 = C1.
        participation: Pi.
        weight: > 0.
        adjacency: "zero_out" or "replace_one".

    Raises:
        ValueError: for an argument out of range.
        MismatchError: where the strategies have different steps.
        UnsupportedError: if no theorem covers the schema.

    References:
        Kalinin, Upadhyay and Lampert: Continual Release Moment Estimation with Differential Privacy
        (arXiv 2502.06597), for one participation and replace-one; docs/proofs/joint-moments.md.
    """
    weight = positive_float("weight", weight)
    one_of("adjacency", adjacency, ("zero_out", "replace_one"), remedy=MOVES_OTHERS)
    if second is not None and second.n != first.n:
        raise MismatchError(f"second.n={second.n} must be the {first.n} steps of the first strategy.")
    one = sensitivity(first, participation)
    replaced = adjacency == "replace_one"
    if second is None:
        squared = replaced_pair(weight) if replaced else 1 + weight
        # attained by equal contributions, which only products C^T C >= 0 make worst
        exact = one.exact and first.structure.nonnegative
        return _found(math.sqrt(squared) * one.value, exact, "one strategy for both moments")
    two = sensitivity(second, participation)
    if replaced:
        best = math.sqrt(4 * one.value**2 + 2 * weight * two.value**2)
        ratio = weight * _largest_ratio(first, second)
        best = min(best, math.sqrt(replaced_pair(ratio)) * one.value if ratio < math.inf else best)
        return _found(best, False, "products of the second moments within those of the first")
    best = math.hypot(one.value, math.sqrt(weight) * two.value)
    if not _small_and_nonnegative(first, second):
        return _found(best, False, "sum of squares of the two sensitivities")
    together = sensitivity(_stacked(first, second, weight), participation)
    if together.value > best:
        return _found(best, False, "sum of squares of the two sensitivities")
    return _found(together.value, together.exact, f"products added: {together.method}")


def replaced_pair(weight: float) -> float:
    """max ||x - y||^2 + weight ||x x^T - y y^T||^2 over the unit ball: 4 up to weight 1/2."""
    return 4.0 if weight <= 0.5 else (2 * weight + 1) ** 2 / (2 * weight)


def _found(value: float, exact: bool, method: str) -> Sensitivity:
    return Sensitivity(value, exact, method, theorems.JOINT_MOMENTS)


def _small_and_nonnegative(first: Strategy, second: Strategy) -> bool:
    return first.n <= DENSE and first.structure.nonnegative and second.structure.nonnegative


def _gram(strategy: Strategy) -> Array:
    dense = strategy.to_dense()
    return np.asarray(dense.T @ dense)


def _stacked(first: Strategy, second: Strategy, weight: float) -> Dense:
    """Lower-triangular L with L^T L = C1^T C1 + weight C2^T C2."""
    added = _gram(first) + weight * _gram(second)
    return Dense(np.linalg.cholesky(added[::-1, ::-1])[::-1, ::-1].T)


def _largest_ratio(first: Strategy, second: Strategy) -> float:
    """Least k with C2^T C2 <= k C1^T C1 by entries; infinite where none is known."""
    if not _small_and_nonnegative(first, second):
        return math.inf
    one, two = _gram(first), _gram(second)
    if ((one == 0) & (two > 0)).any():
        return math.inf
    return float((two[one > 0] / one[one > 0]).max())
