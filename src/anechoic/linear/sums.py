"""Sums of clipped gradients of a linear model, as integers on the mechanism's grid.

The gradient of row x with residuals r, one an output, is the matrix r x^T, whose 2-norm is |r| |x|. So it is
clipped in closed form, from its two factors. Both are integers here: p = (r times what clips it), rounded
towards zero, and q, the row. The squares of p q^T add up to (sum of p^2) (sum of q^2), a product of two
integers, which is held to the limit of the grid: no rounding can take a row beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array
from anechoic.linear.integer_rows import IntegerRows, blocks, exact_norms
from anechoic.noise.grid import SPARE, Integers, is_short, largest_square
from anechoic.units.batch import Indices, UnitBatch

#: Entries of gradients of single rows that are made at once.
_ENTRIES = 2**20
#: Part of the limit within which a sum of squares is counted in integers.
_NEAR = 2.0**-30
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
        total = np.zeros(weights.size, np.int64)
        scores = self.rows.scores(weights)
        order = np.lexsort((batch.examples, batch.items))  # within an item in the order of the data
        places, items = batch.examples[order], batch.items[order]
        starts = np.searchsorted(items, np.arange(batch.count + 1))
        most = max(1, _ENTRIES // weights.size)
        first = 0
        while first < batch.count:  # as many whole items as fit, at least one
            stop = max(first + 1, int(np.searchsorted(starts, starts[first] + most, side="right")) - 1)
            part = places[starts[first] : starts[stop]]
            gradients = np.add.reduceat(self._gradients(scores, part), starts[first:stop] - starts[first])
            scaled = gradients * batch.scales[first:stop, None]
            total += self._on_grid(scaled, batch.limits[first:stop]).sum(axis=0)
            first = stop
        return total.reshape(weights.shape)

    def _gradients(self, scores: Callable[[Array, Array], Array], places: Indices) -> Array:
        integers, units = self.rows.integers[places].astype(np.float64), self.rows.units[places]
        with np.errstate(all="ignore"):
            scaled = self.residuals(scores(integers, units), places) * units
        kept = np.where(np.isfinite(scaled), scaled, 0.0)
        return np.asarray((kept.T[:, :, None] * integers[:, None, :]).reshape(len(places), -1))

    def _on_grid(self, gradients: Array, limits: Array) -> Integers:
        """Each clipped to its part of the clip norm, as integers: `noise.grid.to_grid` for many at once."""
        good, exponents, norms = exact_norms(gradients)
        spare = 1.0 - math.sqrt(gradients.shape[1]) * 2.0**-19 - 2.0 * SPARE
        with np.errstate(all="ignore"):
            shrunk = limits * spare / np.ldexp(norms, exponents)
            whole = 1.0 / self.clip_norm
            factors = 2.0**self.grid_bits * np.where(shrunk < whole, shrunk, whole)
            found = np.trunc(gradients * np.where(good, factors, 0.0)[:, None])
        found[~np.isfinite(found).all(axis=1)] = 0.0
        integers = found.astype(np.int64)
        near = np.einsum("ij,ij->i", found, found) > largest_square(self.grid_bits) * (1.0 - _NEAR)
        for i in np.flatnonzero(near):
            if not is_short(integers[i], self.grid_bits):
                integers[i] = 0
        return integers


def _squares(values: Array) -> Array:
    """Sum of squares over the first axis, one after another: of each column as of that column alone."""
    total = np.square(values[0])
    for row in values[1:]:
        total += np.square(row)
    return np.asarray(total)
