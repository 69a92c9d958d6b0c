"""Public bounds of features and targets, and the scales that follow from them. Nothing is read from data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from anechoic._validate import Array

#: Of the constant that an intercept is the coefficient of, beside rows of norm 1. Small, so that it takes up
#: little of the clip norm; measured: 'Linear models for tables'.
INTERCEPT = 0.15


def checked_bounds(name: str, bounds: Any, length: int) -> tuple[Array, Array]:
    """(lowest, highest), each of shape (length,).

    Args:
        name: of the argument.
        bounds: a pair of numbers, or of arrays of that length.
        length: entries of a row.
    """
    try:
        low, high = bounds
        found = [np.broadcast_to(np.asarray(one, dtype=np.float64), (length,)) for one in (low, high)]
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name}={bounds!r} must be a pair (lowest, highest) of numbers, or of arrays of length {length}:"
            " public bounds, which do not come from the data."
        ) from error
    if not all(np.isfinite(one).all() for one in found) or not (found[0] < found[1]).all():
        raise ValueError(
            f"{name}={bounds!r} must be finite, and each lower bound below its upper one. A feature that is"
            " constant can be left out."
        )
    with np.errstate(all="ignore"):
        width, centre = found[1] - found[0], (found[0] + found[1]) / 2.0
        usable = np.isfinite(width) & np.isfinite(centre) & np.isfinite(2.0 / width)
    if not usable.all():
        raise ValueError(
            f"{name}={bounds!r} must be so far apart that one can divide by their difference, and not so far"
            " that it is infinite: give values in other units."
        )
    return found[0], found[1]


@dataclass(frozen=True, eq=False)
class FeatureScale:
    """From features to rows: (x - centre) * factor within the bounds, and a constant for the intercept.

    With bounds a feature becomes a number in [-1, 1] over the root of their count, so that a row has 2-norm
    at most 1. Without them features are divided by that root alone, and nothing but the clip norm bounds
    what a row does.

    Args:
        features: d, >= 1.
        bounds: (lowest, highest) of each, or None.
        intercept: whether a constant follows the features.
    """

    features: int
    bounds: tuple[Array, Array] | None
    intercept: bool

    @property
    def centre(self) -> Array:
        """Of each feature."""
        return np.zeros(self.features) if self.bounds is None else (self.bounds[0] + self.bounds[1]) / 2.0

    @property
    def factor(self) -> Array:
        """Of each feature."""
        root = 1.0 / math.sqrt(self.features)
        if self.bounds is None:
            return np.full(self.features, root)
        return 2.0 * root / (self.bounds[1] - self.bounds[0])

    @property
    def dimension(self) -> int:
        """m, entries of a row."""
        return self.features + self.intercept

    def rows(self, features: Array) -> Array:
        """Of features, shape (k, d): shape (k, m). Entry by entry."""
        inside = features if self.bounds is None else np.clip(features, *self.bounds)
        found = np.empty((len(features), self.dimension))
        np.multiply(inside - self.centre, self.factor, out=found[:, : self.features])
        if self.intercept:
            found[:, -1] = INTERCEPT
        return found

    def coefficients(self, weights: Array) -> tuple[Array, Array]:
        """(coefficients, intercepts) for features as they were given, of weights of shape (outputs, m)."""
        found = weights[:, : self.features] * self.factor
        constant = INTERCEPT * weights[:, -1] if self.intercept else np.zeros(len(weights))
        return found, constant - found @ self.centre


@dataclass(frozen=True)
class TargetScale:
    """From targets to numbers in [-1, 1], where bounds are given; else as they are.

    Attributes:
        low, high: bounds.
        centre: what becomes 0.
        unit: how far from the centre what becomes 1 lies.
    """

    low: float = -math.inf
    high: float = math.inf
    centre: float = 0.0
    unit: float = 1.0

    @classmethod
    def of(cls, bounds: Any) -> TargetScale:
        """Of a pair of numbers, or None."""
        if bounds is None:
            return cls()
        low, high = (float(one[0]) for one in checked_bounds("target_bounds", bounds, 1))
        return cls(low, high, (low + high) / 2.0, (high - low) / 2.0)

    def scaled(self, targets: Array) -> Array:
        """Entry by entry, shape as given."""
        return np.asarray((np.clip(targets, self.low, self.high) - self.centre) / self.unit)
