"""Fit a model: its loss on checked arrays, and exact sums of gradients over batches of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import exp2, expit

from anechoic._validate import Array
from anechoic.batches.base import batches_of
from anechoic.batches.of_units import UnitBatches
from anechoic.linear.integer_rows import MOST_BITS, IntegerRows
from anechoic.linear.scaling import FeatureScale
from anechoic.linear.sums import RankOneSums, Residuals
from anechoic.mechanism.mechanism import Mechanism
from anechoic.noise.grid import MOST, Integers
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


def batch_sums(
    mechanism: Mechanism, problem: FitProblem, units: Units | None, key: bytes
) -> Callable[[int, Array], Integers]:
    """Exact sums over batches of rows, or of units with their rows, by a step and the weights."""
    bits, inner = mechanism.grid_bits or MOST, batches_of(mechanism.sampling, key)
    # rows have grids of their own, where products with residuals are multiples of the mechanism's
    rows = IntegerRows.of(problem.features, min(bits // 2, MOST_BITS), problem.scale.rows)
    sums = RankOneSums(rows, problem.residuals, mechanism.clip_norm, bits)
    if units is not None:
        batches = UnitBatches(units, inner, key, secret=mechanism.amplified)
        return lambda t, weights: sums.of_units(weights, batches.unit_batch(t))

    def of_rows(t: int, weights: Array) -> Integers:
        places = inner.batch(t)
        whole = len(places) == rows.count  # of distinct rows: the order of a sum is all the same
        return sums.of_rows(weights, None if whole else places)

    return of_rows
