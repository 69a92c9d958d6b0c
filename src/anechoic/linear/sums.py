"""Sums of clipped gradients of a linear model, as integers on the mechanism's grid.

The gradient of row x with residuals r, one an output, is the matrix r x^T, whose 2-norm is |r| |x|. So it is
clipped in closed form, from its two factors. Both are integers here: p = (r times what clips it), rounded
towards zero, and q, the row. The squares of p q^T add up to (sum of p^2) (sum of q^2), a product of two
integers, which is held to the limit of the grid: no rounding can take a row beyond it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array
from anechoic.linear.integer_rows import IntegerRows, blocks
from anechoic.noise.grid import SPARE, Integers, largest_square, to_grid
from anechoic.units.batch import Indices, UnitBatch

#: residuals(scores, places): of rows at some places of the data, from scores, both of shape (outputs, rows).
Residuals = Callable[[Array, Indices | slice], Array]


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

    @cached_property
    def _most(self) -> NDArray[np.int64]:
        """What the squares of p may add up to, of each row; 0 where its features are all 0."""
        squares = self.rows.squares
        return np.where(squares > 0, largest_square(self.grid_bits) // np.maximum(squares, 1), 0)

    @cached_property
    def _longest(self) -> Array:
        """The largest whole number whose square is at most that."""
        found = np.floor(np.sqrt(self._most.astype(np.float64)))
        return np.asarray(found - (np.square(found.astype(np.int64)) > self._most))

    def of_rows(self, weights: Array, places: Indices | None = None) -> Integers:
        """The sum over the rows at `places`; None for all of them.

        Args:
            weights: shape (outputs, m).

        Returns:
            Shape (outputs, m).
        """
        total = np.zeros(weights.shape, np.int64)
        scores = self.rows.scores(weights)
        for part in blocks(self.rows.count if places is None else len(places)):
            at = part if places is None else places[part]
            integers, units = self.rows.integers[at].astype(np.float64), self.rows.units[at]
            with np.errstate(all="ignore"):
                factors = self.factors(self.residuals(scores(integers, units), at), at)
            # float64 holds every partial sum: a block has 2**12 rows, and no product is above 2**30
            total += (factors @ integers).astype(np.int64)
        return total

    def factors(self, residuals: Array, at: Indices | slice) -> Array:
        """p of the rows at some places, shape (outputs, rows): whole numbers; 0 for what is no number."""
        scaled = residuals * (self.rows.units[at] * (2.0**self.grid_bits / self.clip_norm))
        longest = self._longest[at]
        if len(scaled) == 1:
            found = np.trunc(np.clip(scaled, -longest, longest))
            found[np.isnan(found)] = 0.0
            return np.asarray(found)
        norms = np.sqrt(_squares(scaled))
        shrunk = longest * (1.0 - 2.0 * SPARE) / norms
        found = np.trunc(scaled * np.where(shrunk < 1.0, shrunk, 1.0))
        found[:, ~np.isfinite(norms)] = 0.0
        # float64 is far better than SPARE; and where it were not, the row counts as zero
        found[:, np.square(found.astype(np.int64)).sum(axis=0) > self._most[at]] = 0.0
        return np.asarray(found)

    def of_units(self, weights: Array, batch: UnitBatch) -> Integers:
        """The sum over the items of a batch, each the sum of the gradients of its rows, clipped as a whole.

        Args:
            weights: shape (outputs, m).
            batch: rows, the item of each, and what part of the clip norm each may use.
        """
        total = np.zeros(weights.shape, np.int64)
        scores = self.rows.scores(weights)
        order = np.lexsort((batch.examples, batch.items))
        starts = np.searchsorted(batch.items[order], np.arange(batch.count + 1))
        for item in range(batch.count):
            places = batch.examples[order[starts[item] : starts[item + 1]]]
            found = self._gradient(scores, places) * float(batch.scales[item])
            total += to_grid(found, self.clip_norm, self.grid_bits, limit=float(batch.limits[item]))
        return total

    def _gradient(self, scores: Callable[[Array, Array], Array], places: Indices) -> Array:
        """The sum of the gradients of the rows of one unit, in the order of the data."""
        integers, units = self.rows.integers[places].astype(np.float64), self.rows.units[places]
        with np.errstate(all="ignore"):
            scaled = self.residuals(scores(integers, units), places) * units
            return np.asarray(np.where(np.isfinite(scaled), scaled, 0.0) @ integers)


def _squares(values: Array) -> Array:
    """Sum of squares over the first axis, one after another: of each column as of that column alone."""
    total = np.square(values[0])
    for row in values[1:]:
        total += np.square(row)
    return np.asarray(total)
