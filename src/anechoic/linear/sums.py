"""Sums of clipped gradients of a linear model, as integers on the mechanism's grid.

The gradient of row x with residuals r, one an output, is the matrix r x^T, whose 2-norm is |r| |x|. So it is
clipped in closed form, from its two factors. Both are integers here: p = (r times what clips it), rounded
towards zero, and q, the row. The squares of p q^T add up to (sum of p^2) (sum of q^2), one product of two
integers below 2**63, which is compared with the limit of the grid: no rounding can take a row beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array
from anechoic.linear.integer_rows import BLOCK, EXACT, IntegerRows, blocks
from anechoic.noise.grid import SPARE, Integers, largest_square, to_grid
from anechoic.units.batch import Indices, UnitBatch

#: residuals(scores, places) of rows at some places of the data, shape (outputs, k), from scores of that shape.
Residuals = Callable[[Array, Indices], Array]
#: Bits below which a residual of a unit is not rounded, and above which it is cut: units are clipped as sums.
_UNIT_BITS = 24


@dataclass(frozen=True)
class RankOneSums:
    """Sums over rows or units, each of 2-norm at most the clip norm.

    Guarantee: one row, or one unit, moves a sum by a matrix of integers whose squares add up to at most
    `noise.grid.largest_square(grid_bits)`, and what it adds depends on its own rows and on the weights alone.

    Args:
        rows: of all the data, on grids of grid_bits // 2 bits.
        residuals: derivative of the loss by the score, of the rows at some places.
        clip_norm: > 0.
        grid_bits: of the mechanism.
    """

    rows: IntegerRows
    residuals: Residuals
    clip_norm: float
    grid_bits: int

    def of_rows(self, weights: Array, places: Indices | None = None) -> Integers:
        """The sum over the rows at `places`; None for all of them.

        Args:
            weights: shape (outputs, m).

        Returns:
            Shape (outputs, m).
        """
        total = np.zeros(weights.shape, np.int64)
        count = self.rows.count if places is None else len(places)
        for part in blocks(count):
            at = np.arange(part.start, part.stop) if places is None else places[part]
            block = self.rows.block(part if places is None else at)
            left = self.factors(block, self.residuals(block.scores(weights), at))
            # below 2048 * 2**30, so that float64 holds every partial sum
            total += (left @ block.integers.astype(np.float64)).astype(np.int64)
        return total

    def factors(self, block: IntegerRows, residuals: Array) -> Array:
        """p of each row, shape (outputs, k): clipped, whole numbers. Zeros where something is not finite."""
        with np.errstate(all="ignore"):
            scaled = np.ldexp(residuals, block.exponents) * (2.0**self.grid_bits / self.clip_norm)
            norms = np.sqrt(_squares(scaled)) * np.sqrt(block.squares.astype(np.float64))
            limit = 2.0**self.grid_bits * (1.0 - 2.0 * SPARE)
            found = np.trunc(scaled * np.where(norms > limit, limit / norms, 1.0))
        found[:, ~np.isfinite(norms) | (block.squares == 0)] = 0.0
        # float64 is far better than SPARE; and where it were not, the row counts as zero
        squares = np.square(found.astype(np.int64)).sum(axis=0)
        most = largest_square(self.grid_bits) // np.maximum(block.squares, 1)
        found[:, squares > most] = 0.0
        return np.asarray(found)

    def of_units(self, weights: Array, batch: UnitBatch) -> Integers:
        """The sum over the items of a batch, each the sum of the gradients of its rows, clipped as a whole.

        Args:
            weights: shape (outputs, m).
            batch: rows, the item of each, and what part of the clip norm each may use.
        """
        total = np.zeros(weights.shape, np.int64)
        order = np.argsort(batch.items, kind="stable")
        starts = np.searchsorted(batch.items[order], np.arange(batch.count + 1))
        for item in range(batch.count):
            places = batch.examples[order[starts[item] : starts[item + 1]]]
            found = self._gradient(weights, np.sort(places)) * float(batch.scales[item])
            total += to_grid(found, self.clip_norm, self.grid_bits, limit=float(batch.limits[item]))
        return total

    def _gradient(self, weights: Array, places: Indices) -> Array:
        """The sum of the gradients of a few rows, those of one unit: in clip norms times 2**grid_bits."""
        total = np.zeros(weights.shape)
        for part in blocks(len(places), BLOCK):
            block = self.rows.block(places[part])
            residuals = self.residuals(block.scores(weights), places[part])
            scaled = np.nan_to_num(np.ldexp(residuals, block.exponents), posinf=0.0, neginf=0.0)
            total += scaled @ block.integers.astype(np.float64)
        return total


def _squares(values: Array) -> Array:
    """Sum of squares over the first axis, one after another: of each column as of that column alone."""
    total = np.square(values[0])
    for row in values[1:]:
        total += np.square(row)
    return np.asarray(total)
