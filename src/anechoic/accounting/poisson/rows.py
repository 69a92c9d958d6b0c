"""One row of a chain: N(S, s^2) for a random S >= 0 against N(0, s^2), as the law of its likelihood ratio.

S is a sum of independent Bernoulli variables with weights. Its law is rounded up to a grid: for S <= S' the
pair of S' is the easier to tell apart in both directions, since the likelihood ratio grows in y, so that
the sets to be compared are half-lines y > t, and Pr[S + s z > t] grows in S.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtr

from anechoic._validate import Array
from anechoic.accounting.laws.likelihood import REACH, Ratio, normal_cells

LOST = 1e-20  # probability of the largest sums, which is moved to infinity (relative to 1)
_POINTS = 600  # of the grid of S, at least
_MOST_POINTS = 500
_EXCESS = 2e-3  # relative growth of E S that rounding up may cost
_TABLE = 600  # points from which the search of the cells begins
_CHUNK = 1 << 20
_INEXACT = 1e-13  # of a loss, by rounding


@dataclass(frozen=True, eq=False)
class RowLaw:
    """S: atoms `points` >= 0 of probability `mass`, and `lost` at infinity; against noise of std `std`."""

    points: Array
    mass: Array
    lost: float
    std: float

    def losses(self, y: Array) -> tuple[Array, Array]:
        """log dP/dQ at each y, and its derivative."""
        constant = np.log(self.mass) - self.points**2 / (2 * self.std**2)
        values, slopes = np.empty(len(y)), np.empty(len(y))
        rows = max(1, _CHUNK // len(self.points))
        for start in range(0, len(y), rows):
            x = np.outer(y[start : start + rows], self.points / self.std**2) + constant
            top = x.max(axis=1)
            np.exp(x - top[:, None], out=x)
            total = x.sum(axis=1)
            values[start : start + rows] = top + np.log(total)
            slopes[start : start + rows] = x @ self.points / (total * self.std**2)
        return values, slopes

    @cached_property
    def _table(self) -> tuple[Array, Array]:
        y = np.linspace(-REACH * self.std, self._highest, _TABLE)
        return y, self.losses(y)[0]

    @property
    def _highest(self) -> float:
        # where next to nothing is left of the P-mass
        above = np.cumsum(self.mass[::-1])[::-1]
        place = int(np.flatnonzero(above > 1e-18)[-1])
        return float(self.points[place]) + REACH * self.std

    @cached_property
    def second_moment(self) -> float:
        """About log E_Q (dP/dQ)^2; it chooses grids, and enters no bound."""
        groups = np.array_split(np.arange(len(self.points)), min(len(self.points), 256))
        mass = np.array([self.mass[g].sum() for g in groups])
        points = np.array([self.points[g] @ self.mass[g] for g in groups]) / mass
        shifts = np.minimum(np.outer(points, points) / self.std**2, 600.0)
        return float(np.log1p(mass @ np.expm1(shifts) @ mass))

    @property
    def reach(self) -> float:
        """Length of the interval of privacy losses that is kept."""
        return float(self._table[1][-1] - self._table[1][0])

    def ratio(self, width: float, direction: str) -> tuple[Ratio, float]:
        """The ratio R on a grid of this width, and by how much its cells may miss the grid.

        With this miss m, e^m times what is returned has no smaller calls than R for "remove", e^-m times it
        no smaller puts for "add": the P-mass of each cell is e^m, or e^-m, times what it is.
        """
        table_y, table_loss = self._table
        first = math.floor(table_loss[0] / width)
        last = max(first + 2, math.ceil(table_loss[-1] / width))
        edges = width * np.arange(first, last + 1, dtype=np.float64)
        inner, off = self._inverse(edges[1:], table_y, table_loss)
        y = np.append(table_y[0], inner)  # the first cell is cut: what is below it follows
        q = normal_cells(y / self.std)
        p = np.zeros(len(q))
        rows = max(1, _CHUNK // len(y))
        for start in range(0, len(self.points), rows):
            shifted = (y[None, :] - self.points[start : start + rows, None]) / self.std
            p += self.mass[start : start + rows] @ normal_cells(shifted)
        miss = off + _INEXACT
        factor = math.exp(miss if direction == "remove" else -miss)
        p *= factor
        up = np.clip((p * np.exp(-edges[:-1]) - q) / math.expm1(width), 0.0, q)
        mass = np.append(q - up, 0.0) + np.append(0.0, up)
        low, high = y[0] / self.std, y[-1] / self.std
        p_low = factor * float(self.mass @ ndtr(low - self.points / self.std))
        lowest = min(float(ndtr(low)), p_low * math.exp(-edges[0]))
        p_high = factor * float(self.mass @ ndtr(self.points / self.std - high))
        mass[0] += lowest
        mass[-1] += float(ndtr(-high))
        infinite = max(0.0, p_high - float(ndtr(-high)) * math.exp(edges[-1])) + self.lost
        return Ratio(width, first, mass, max(0.0, float(ndtr(low)) - lowest), infinite), miss

    def _inverse(self, targets: Array, table_y: Array, table_loss: Array) -> tuple[Array, float]:
        """The y at which the loss has the values `targets`, which rise, and the largest error in the loss."""
        y = np.interp(targets, table_loss, table_y)
        for _ in range(12):
            values, slopes = self.losses(y)
            miss = targets - values
            if np.abs(miss).max() < 1e-12 * max(1.0, abs(float(targets[-1]))):
                break
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                step = np.where(slopes > 0, miss / slopes, 0.0)  # where the loss is flat y stays: a miss
            y = y + np.clip(step, -self.std, self.std)
        y = np.maximum.accumulate(y)
        return y, float(np.abs(self.losses(y)[0] - targets).max())


def bernoulli_row(values: Array, probabilities: Array, std: float) -> RowLaw:
    """S = sum_j Bern(probabilities[j]) values[j], rounded up to a grid.

    Args:
        values: >= 0, shape (terms,).
        probabilities: in (0, 1], shape (terms,).
        std: of the noise, > 0.
    """
    used = values > 0
    values, probabilities = values[used], probabilities[used]
    order = np.argsort(-values)
    values, probabilities = values[order], probabilities[order]
    if len(values) == 1:  # nothing to round
        mass = np.array([1.0 - probabilities[0], probabilities[0]])
        return RowLaw(np.array([0.0, values[0]])[mass > 0], mass[mass > 0], 0.0, std)
    mean, points = float(values @ probabilities), _POINTS
    while True:
        step = float(values.sum()) / points
        moves = np.ceil(values / step * (1 - 1e-12))
        if step * float(moves @ probabilities) <= mean * (1 + _EXCESS) or points >= 64 * _POINTS:
            break
        points *= 2
    mass, lost = np.array([1.0]), 0.0
    for move, probability in zip(moves.astype(int).tolist(), probabilities.tolist(), strict=True):
        joined = np.zeros(len(mass) + move)
        joined[: len(mass)] = (1.0 - probability) * mass
        joined[move:] += probability * mass
        above = np.cumsum(joined[::-1])[::-1]
        kept = int(np.flatnonzero(above > LOST / len(values))[-1]) + 1
        lost += float(joined[kept:].sum())
        mass = joined[:kept]
    atoms: Array = step * np.arange(len(mass), dtype=np.float64)
    atoms, mass = merged(atoms[mass > 0], mass[mass > 0])
    return RowLaw(atoms, mass, lost, std)


def merged(points: Array, mass: Array) -> tuple[Array, Array]:
    """At most `_MOST_POINTS` atoms: those that raise E S the least are moved up to their neighbours."""
    while len(points) > _MOST_POINTS:
        lower = np.arange(0, len(points) - 1, 2)
        cost = mass[lower] * (points[lower + 1] - points[lower])
        moved = lower[np.argsort(cost)[: min(len(points) - _MOST_POINTS, len(lower) // 2)]]
        mass[moved + 1] += mass[moved]
        kept = np.ones(len(points), bool)
        kept[moved] = False
        points, mass = points[kept], mass[kept]
    return points, mass
