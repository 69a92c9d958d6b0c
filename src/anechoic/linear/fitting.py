"""One fit: from checked arrays to weights and the mechanism that they were released under."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from anechoic._validate import Array
from anechoic.linear.descent import Asked, Descent, Planned, batches_for, descend, planned
from anechoic.linear.integer_rows import IntegerRows
from anechoic.linear.keys import Keys
from anechoic.linear.losses import Derivative
from anechoic.linear.scaling import FeatureScale
from anechoic.linear.sums import RankOneSums, Residuals
from anechoic.noise.grid import MOST
from anechoic.units.batch import Indices
from anechoic.units.ownership import Units


@dataclass(frozen=True)
class Fitted:
    """What one fit gave.

    Attributes:
        weights: on the scale of rows, shape (outputs, m).
        planned: its mechanism, plan and rates.
    """

    weights: Array
    planned: Planned


def class_residuals(derivative: Derivative, codes: Indices, outputs: int) -> Residuals:
    """Of classes: their numbers, shape (N,), become 1 for the output of the class and 0 for others."""
    kinds = np.arange(outputs) if outputs > 1 else np.array([1])

    def residuals(scores: Array, places: Indices) -> Array:
        return derivative(scores, (codes[places] == kinds[:, None]).astype(np.float64))

    return residuals


def number_residuals(derivative: Derivative, targets: Array) -> Residuals:
    """Of numbers, shape (N,)."""
    return lambda scores, places: derivative(scores, targets[places][None, :])


def row_bits(grid_bits: int) -> int:
    """Bits of the rows' own grids, where their products with residuals have `grid_bits`."""
    return min(grid_bits, MOST) // 2


def fit_by_descent(
    asked: Asked,
    features: Any,
    residuals: Residuals,
    scale: FeatureScale,
    outputs: int,
    *,
    units: Units | None,
    penalty: float,
    keys: Keys,
    found: Planned | None = None,
) -> Fitted:
    """Plan, and descend.

    Args:
        asked: of the plan.
        features: shape (N, d), finite.
        residuals: derivative of the loss, by the places of rows.
        scale: from features to rows.
        outputs: of the model.
        units: who owns what, or None.
        penalty: lambda of the mean loss plus lambda / 2 times the squared weights, without the intercept.
        keys: of this fit.
        found: planned before, or None.
    """
    found = planned(asked) if found is None else found
    mechanism = found.mechanism
    bits = row_bits(mechanism.grid_bits or MOST)
    rows = IntegerRows.of(features, bits, scale.rows)
    sums = RankOneSums(rows, residuals, mechanism.clip_norm, mechanism.grid_bits or MOST)
    weighed = np.full(scale.dimension, float(penalty))
    weighed[scale.features :] = 0.0
    descent = Descent(
        mechanism,
        found.rates(),
        (outputs, scale.dimension),
        momentum=asked.momentum,
        penalty=weighed,
        key=keys.noise,
    )
    batches = batches_for(asked, mechanism, units, keys.sampling)
    return Fitted(descend(descent, sums, batches, mechanism.steps, units), found)
