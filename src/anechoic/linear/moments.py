"""Ridge regression from its sufficient statistics: one release of X^T X and X^T y, and a closed form.

A row (x, y) adds the upper half of x x^T, off-diagonal entries times 41/29, and x y. As (41/29)^2 < 2, that
has 2-norm at most |x| sqrt(|x|^2 + y^2). All of it are integers, 29 or 41 times products of rounded entries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from anechoic._validate import Array
from anechoic.linear.descent import FitRequest
from anechoic.linear.integer_rows import blocks
from anechoic.linear.scaling import INTERCEPT, FeatureScale
from anechoic.mechanism.calibrate import calibrate
from anechoic.mechanism.mechanism import Mechanism
from anechoic.noise.grid import MOST, Integers, largest_square
from anechoic.sampling import FixedOrder
from anechoic.strategies import Identity
from anechoic.units.ownership import Units

#: Factors of diagonal and off-diagonal entries: 41^2 = 1681 is just below 2 * 29^2 = 1682.
DIAGONAL, BESIDE = 29, 41
#: Of what a row may add that is used, so that rounded entries stay within it.
_USED = 1.0 - 2.0**-6
#: Of the standard deviation of the noise in an entry, times the root of m, that eigenvalues are raised by.
RIDGE = 0.5


@dataclass(frozen=True)
class MomentSums:
    """Exact sums of products of rows and targets.

    Args:
        scale: of features, with bounds, so that a row has a bounded norm.
        bits: of the grid.
    """

    scale: FeatureScale
    bits: int = MOST

    @property
    def norm(self) -> float:
        """Largest 2-norm of a row."""
        return math.hypot(1.0, INTERCEPT if self.scale.intercept else 0.0)

    @property
    def unit(self) -> float:
        """What an entry of a row is multiplied with before it is rounded."""
        most = DIAGONAL * self.norm * math.hypot(self.norm, 1.0)
        return math.sqrt(2.0**self.bits * _USED / most)

    @cached_property
    def half(self) -> tuple[Any, Any]:
        """Places of the upper half of the matrix."""
        return np.triu_indices(self.scale.dimension)

    @property
    def dimension(self) -> int:
        """Entries of a release."""
        return len(self.half[0]) + self.scale.dimension

    def rounded(self, features: Any, targets: Array) -> tuple[Array, Array]:
        """(rows, targets) as whole numbers, of which no row adds more than the grid allows.

        Args:
            features: shape (k, d).
            targets: in [-1, 1], shape (k,).
        """
        with np.errstate(all="ignore"):
            rows = np.rint(self.scale.rows(np.asarray(features, dtype=np.float64)) * self.unit)
            numbers = np.rint(np.asarray(targets, dtype=np.float64) * self.unit)
            squares = np.einsum("ij,ij->i", rows, rows)
            # exact up to 2**53; the limit is below 2**51, and what is no number is not below it
            added = squares * (squares + np.square(numbers))
        long = ~(added <= largest_square(self.bits) // DIAGONAL**2)
        rows[long], numbers[long] = 0.0, 0.0
        return rows, numbers

    def of_rows(self, features: Any, targets: Array) -> Integers:
        """The sum over all rows, shape (dimension,)."""
        m = self.scale.dimension
        matrix, vector = np.zeros((m, m), np.int64), np.zeros(m, np.int64)
        for part in blocks(len(targets)):
            rows, numbers = self.rounded(features[part], targets[part])
            # products are below 2**26, and 2**12 of them are added up: float64 holds every partial sum
            matrix += (rows.T @ rows).astype(np.int64)
            vector += (rows.T @ numbers).astype(np.int64)
        return self._packed(matrix, vector)

    def of_units(self, features: Any, targets: Array, units: Units) -> Integers:
        """The sum over units of the mean over the rows of each, rounded towards zero."""
        total = np.zeros(self.dimension, np.int64)
        for unit in range(units.count):
            places = units.of(unit)
            found = self.of_rows(features[places], targets[places])
            total += np.sign(found) * (np.abs(found) // len(places))
        return total

    def _packed(self, matrix: Integers, vector: Integers) -> Integers:
        half = matrix[self.half] * np.where(self.half[0] == self.half[1], DIAGONAL, BESIDE)
        return np.concatenate([half, DIAGONAL * vector])

    def unpacked(self, release: Array) -> tuple[Array, Array]:
        """(X^T X, X^T y) over their count, of a release in clip norms."""
        values = release * (2.0**self.bits / self.unit**2)
        m, size = self.scale.dimension, len(self.half[0])
        matrix = np.zeros((m, m))
        matrix[self.half] = values[:size] / np.where(self.half[0] == self.half[1], DIAGONAL, BESIDE)
        return matrix + np.triu(matrix, 1).T, values[size:] / DIAGONAL


def moments_mechanism(asked: FitRequest) -> Mechanism:
    """One release of all units: the Gaussian mechanism, in clip norms of 1."""
    return calibrate(
        Identity(1),
        sampling=FixedOrder(asked.units, asked.units, epochs=1),
        epsilon=asked.epsilon,
        delta=asked.delta,
        adjacency=asked.adjacency,
        unit=asked.unit,
        grid_bits=MOST,
    )


def are_means(units: Units | None) -> bool:
    """Whether each unit counts by the mean of its own rows, all of them: what moments can take."""
    return units is None or (not units.shared and units.combine == "mean" and units.max_examples is None)


def fit_by_moments(
    sums: MomentSums,
    mechanism: Mechanism,
    features: Any,
    targets: Array,
    units: Units | None,
    penalty: float,
    key: bytes,
) -> Array:
    """Release the moments of targets in [-1, 1] and solve; returns weights, shape (1, m)."""
    total = sums.of_rows(features, targets) if units is None else sums.of_units(features, targets, units)
    stream = mechanism.stream(sums.dimension, key=key)
    row, _ = stream.next(stream.init())
    matrix, vector = sums.unpacked(mechanism.grid.release(total, row))
    if sums.scale.intercept:
        matrix[-1, -1] = INTERCEPT**2  # of every row, so that it needs no noise
    return solved(matrix, vector, entry_noise(sums, mechanism), penalty, sums.scale.features)[None, :]


def entry_noise(sums: MomentSums, mechanism: Mechanism) -> float:
    """Standard deviation of the noise in a diagonal entry of the mean of x x^T."""
    of_sum = mechanism.noise_std * 2.0**sums.bits / (DIAGONAL * sums.unit**2)
    return float(of_sum / mechanism.expected_batch_size)


def solved(matrix: Array, vector: Array, noise: float, penalty: float, features: int) -> Array:
    """Coefficients of a noisy symmetric system: eigenvalues are raised by the size of the noise."""
    m = len(vector)
    matrix = matrix + np.diag(np.where(np.arange(m) < features, penalty, 0.0))
    eigenvalues, vectors = np.linalg.eigh(matrix)
    raised = np.maximum(eigenvalues, 0.0) + RIDGE * noise * math.sqrt(m)
    return np.asarray(vectors @ ((vectors.T @ vector) / np.maximum(raised, np.finfo(np.float64).tiny)))
