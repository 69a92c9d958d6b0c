"""Fit a model: from checked arrays to weights and the mechanism that they were released under."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import exp2, expit

from anechoic._validate import Array
from anechoic.linear.descent import MOMENTUM, Descent, DescentPlan, FitRequest, batches_for, descend, planned
from anechoic.linear.integer_rows import MOST_BITS, IntegerRows
from anechoic.linear.keys import FitKeys
from anechoic.linear.scaling import FeatureScale
from anechoic.linear.sums import RankOneSums, Residuals
from anechoic.mechanism.mechanism import Mechanism
from anechoic.noise.grid import MOST
from anechoic.units.batch import Indices
from anechoic.units.ownership import Units


@dataclass(frozen=True, eq=False)
class FitProblem:
    """Data of a fit and a loss on them.

    Attributes:
        features: shape (N, d), finite.
        targets: classes by number, or numbers, shape (N,).
        residuals: derivative of the loss, by the places of rows.
        scale: from features to rows.
        penalty: lambda of the mean loss plus lambda / 2 times the squared weights, without the intercept.
    """

    features: Any
    targets: Any
    residuals: Residuals
    scale: FeatureScale
    penalty: float


@dataclass(frozen=True)
class FitResult:
    """Result of a fit.

    Attributes:
        weights: on the scale of rows, shape (outputs, m).
        planned: its mechanism, plan and rates.
        keys: of it.
    """

    weights: Array
    planned: DescentPlan
    keys: FitKeys


def class_residuals(codes: Indices, outputs: int) -> Residuals:
    """Derivative of the logistic loss by the scores of a row, which is a function of that row alone.

    Classes by number, shape (N,), become 1 for the output of the class and 0 for the others.
    """
    kinds = (np.arange(outputs) if outputs > 1 else np.array([1])).astype(np.int32)
    small, squash = codes.astype(np.int32), expit if outputs == 1 else softmax

    def residuals(scores: Array, places: Indices | slice) -> Array:
        return np.asarray(squash(scores) - (small[places] == kinds[:, None]).astype(np.float64))

    return residuals


def number_residuals(targets: Array) -> Residuals:
    """Derivative of half the squared error of numbers, shape (N,)."""
    return lambda scores, places: scores - targets[places][None, :]


def softmax(scores: Array) -> Array:
    """Over the first axis, shape (outputs, k), added up in a fixed order: a row's bits are its own."""
    powers = exp2((scores - scores.max(axis=0)) * math.log2(math.e))
    total = powers[0].copy()
    for one in powers[1:]:
        total += one
    return np.asarray(powers / total)


def probabilities(scores: Array) -> Array:
    """Of the classes, shape (rows, classes), from scores as `decision_function` has them."""
    if scores.ndim == 1:
        scores = np.stack([np.zeros_like(scores), scores], axis=1)
    return np.ascontiguousarray(softmax(scores.T).T)


def row_bits(grid_bits: int) -> int:
    """Bits of the rows' own grids, where their products with residuals are multiples of the mechanism's."""
    return min(grid_bits // 2, MOST_BITS)


def sums_of(mechanism: Mechanism, problem: FitProblem) -> RankOneSums:
    """Exact sums over the rows of a problem."""
    bits = mechanism.grid_bits or MOST
    rows = IntegerRows.of(problem.features, row_bits(bits), problem.scale.rows)
    return RankOneSums(rows, problem.residuals, mechanism.clip_norm, bits)


def fit_by_descent(
    asked: FitRequest,
    problem: FitProblem,
    outputs: int,
    units: Units | None,
    keys_for: Callable[[FitProblem, Units | None, DescentPlan], FitKeys],
    book: Callable[[Mechanism], None],
    warn: Callable[[DescentPlan, int], None],
) -> FitResult:
    """Plan, warn before the data are read, charge the book before there is any noise, and descend."""
    found = planned(asked)
    warn(found, asked.dimension)
    keys = keys_for(problem, units, found)
    sums = sums_of(found.mechanism, problem)
    batches = batches_for(found.mechanism, units, keys.sampling)
    book(found.mechanism)
    penalty = np.full(problem.scale.dimension, float(problem.penalty))
    penalty[problem.scale.features :] = 0.0
    descent = Descent(
        found.mechanism,
        found.rates(),
        (outputs, problem.scale.dimension),
        momentum=MOMENTUM,
        penalty=penalty,
        key=keys.noise,
    )
    return FitResult(descend(descent, sums, batches, found.mechanism.steps, units), found, keys)
