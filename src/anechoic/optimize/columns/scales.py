"""How long the columns of a banded C may be: sensitivity 1 under a participation schema, and its price.

The columns that one unit can touch are orthogonal where they are at least `bands` apart, so the squared
sensitivity is the largest sum of squared column norms over a pattern (monograph, Lemma 3.16 b). Every class
here maps free variables to columns of sensitivity at most 1, which the best reach.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from anechoic._validate import Array
from anechoic.errors import UnsupportedError
from anechoic.optimize.periodic_pattern import periodic_pattern
from anechoic.participation import Cyclic, FullBatch
from anechoic.participation.base import Participation

# Steps up to which norms are free in every window; beyond, that takes minutes for a per cent.
WINDOWS_UP_TO = 512
SHARINGS = 2000  # rounds in which multipliers are shared out among windows
LEAST = 1e-7  # of the weights of windows, shared out among all: no column vanishes


class Scales(Protocol):
    """Free variables for columns of sensitivity at most 1.

    Attributes:
        units: sizes of the variables of each column, shape (n, 1).
        bounded: how many variables at the end must be >= 0.
    """

    units: Array
    bounded: int

    def variables(self, columns: Array) -> Array:
        """Variables, shape (anything,), whose columns have the directions of `columns`, shape (n, bands)."""

    def columns(self, variables: Array) -> Array:
        """C by columns, shape (n, bands)."""

    def pull_back(self, variables: Array, gradient: Array) -> tuple[Array, float]:
        """From derivatives by C, at these variables, to those by the variables; and the projected gradient.

        The latter is ||C||_F times the norm of what is left of `gradient` where the sensitivity is fixed.
        """

    def price(self, multipliers: Array) -> float:
        """The smallest V >= sum_t multipliers_t ||C_t||^2 for every C of sensitivity 1; they are >= 0."""

    def multipliers(self, rewards: Array) -> Array:
        """v of price about 1 for which sum_t rewards_t log v_t is about largest; rewards are >= 0."""


def scales_of(participation: Participation, weight: Array, bands: int) -> Scales:
    """The scales of a schema. `weight`, shape (n, 1), is about the size of second derivatives, > 0.

    Raises:
        UnsupportedError: if columns that one unit can touch would not be orthogonal.
    """
    n = len(weight)
    separation, count = periodic_pattern(participation, n)
    if bands > separation and count > 1:
        raise UnsupportedError(
            f"bands={bands} exceeds the {separation} steps between participations of one unit: columns that"
            f" it touches would interact. Use bands <= {separation}; under MinSep the"
            f" largest error of not too many steps knows up to {2 * separation}."
        )
    units = np.sqrt(weight)
    match participation:
        case _ if count == 1:
            return CycleScales(units, bands, n)
        case Cyclic() | FullBatch():
            return CycleScales(units, bands, separation)
    if n <= WINDOWS_UP_TO:
        return WindowScales(units, bands, separation, count)
    return FallingScales(units, bands, separation, count)


class CycleScales:
    """The squared norms over every cycle l, l + period, … sum to 1; a period of n is one participation.

    Args:
        units: sizes of the variables of each column, shape (n, 1).
        bands: of C.
        period: >= 1.
    """

    bounded = 0

    def __init__(self, units: Array, bands: int, period: int) -> None:
        self.units, self._bands, self._period = units, bands, period
        self._n = len(units)

    def variables(self, columns: Array) -> Array:
        return (columns * self.units).reshape(-1)

    def columns(self, variables: Array) -> Array:
        free = self._free(variables)
        return np.asarray(free / self._lengths(free))

    def pull_back(self, variables: Array, gradient: Array) -> tuple[Array, float]:
        free = self._free(variables)
        lengths = self._lengths(free)
        columns = free / lengths
        along = self._over_cycles(np.einsum("ji,ji->j", gradient, columns))
        projected = gradient - columns * along
        size = float(np.sqrt(np.square(columns).sum() * np.square(projected).sum()))
        return (projected / (lengths * self.units)).reshape(-1), size

    def price(self, multipliers: Array) -> float:
        return float(self._by_cycle(multipliers).max(axis=0).sum())

    def multipliers(self, rewards: Array) -> Array:
        return np.asarray(self._over_cycles(rewards)[:, 0])

    def _free(self, variables: Array) -> Array:
        return np.asarray(variables.reshape(self._n, self._bands) / self.units)

    def _lengths(self, free: Array) -> Array:
        return np.sqrt(self._over_cycles(np.einsum("ji,ji->j", free, free)))

    def _by_cycle(self, values: Array) -> Array:
        times = -(-self._n // self._period)
        return np.pad(values, (0, times * self._period - self._n)).reshape(times, self._period)

    def _over_cycles(self, values: Array) -> Array:
        """The sum over its cycle for every step, shape (n, 1)."""
        cycles = self._by_cycle(values)
        return np.tile(cycles.sum(axis=0), len(cycles))[: self._n, None]


class _MinSepScales:
    """Scales where participations of one unit are `separation` steps apart, at most `count` of them.

    The hull of the patterns is {w >= 0: every window of `separation` steps holds at most 1, all steps
    `count`}, as the matrix of these inequalities has consecutive ones and is totally unimodular.
    """

    def __init__(self, units: Array, bands: int, separation: int, count: int) -> None:
        self.units, self._bands = units, bands
        self._n, self._count = len(units), count
        self._width = min(separation, self._n)

    def _parts(self, variables: Array) -> tuple[Array, Array, Array]:
        """The free columns, shape (n, bands), the norms that they get, shape (n, 1), and their shares."""
        raise NotImplementedError

    def columns(self, variables: Array) -> Array:
        free, norms, _ = self._parts(variables)
        return np.asarray(free * norms / np.sqrt(np.einsum("ji,ji->j", free, free))[:, None])

    def _pulled(self, variables: Array, gradient: Array) -> tuple[Array, Array, Array, float]:
        """Derivatives by the free columns, and by the logarithms of squared norms; shares; squared size."""
        free, norms, shares = self._parts(variables)
        lengths = np.sqrt(np.einsum("ji,ji->j", free, free))[:, None]
        columns = free * norms / lengths
        along, squares = np.einsum("ji,ji->j", gradient, columns), np.square(norms[:, 0])
        projected = gradient - columns * (along / squares)[:, None]
        size = float(np.square(columns).sum() * np.square(projected).sum())
        return (projected * norms / (lengths * self.units)).reshape(-1), 0.5 * along, shares, size

    def price(self, multipliers: Array) -> float:
        sums = np.concatenate([[0.0], np.cumsum(multipliers)])
        return float(max(self._windows(sums).max(), sums[-1] / self._count))

    def multipliers(self, rewards: Array) -> Array:
        # by linear duality v = rewards / d for the d = z + sum of y over the windows that hold the step,
        # sum y + count z = 1, for which sum_t rewards_t log d_t is largest: shares of a mixture, by
        # expectation maximisation
        y = np.full(self._n - self._width + 1, 0.5 / (self._n - self._width + 1))
        z, used = 0.5, rewards > 0
        v = np.zeros(self._n)
        for _ in range(SHARINGS):
            sums = np.concatenate([[0.0], np.cumsum(np.pad(y, (0, self._width - 1)))])
            d = sums[1:] - sums[np.maximum(np.arange(self._n) - self._width + 1, 0)] + z / self._count
            v[used] = rewards[used] / d[used]
            totals = np.concatenate([[0.0], np.cumsum(v)])
            y *= self._windows(totals)
            z *= totals[-1] / self._count
        return v

    def _windows(self, sums: Array) -> Array:
        """Sums over the windows, from running ones."""
        return np.asarray(sums[self._width :] - sums[: -self._width])


class FallingScales(_MinSepScales):
    """Squared norms d that are constant on blocks of `separation` steps and do not rise from block to block.

    Two participations are never in one block, so that the first `count` blocks are the worst pattern: their
    d sum to 1. Among norms that do not rise, constant ones are the best: all larger ones cost nothing.

    Args:
        units: sizes of the variables of each column, shape (n, 1).
        bands: of C.
        separation, count: of the min-sep schema; count >= 2.
    """

    def __init__(self, units: Array, bands: int, separation: int, count: int) -> None:
        super().__init__(units, bands, separation, count)
        self._separation = separation
        self._block = np.minimum(np.arange(self._n) // separation, count - 1)
        self.bounded = count - 1

    def variables(self, columns: Array) -> Array:
        levels = np.square(columns[:: self._separation]).sum(axis=1)[: self._count]
        drops = np.maximum(-np.diff(np.log(levels)), 0.0)
        return np.concatenate([(columns * self.units).reshape(-1), drops])

    def pull_back(self, variables: Array, gradient: Array) -> tuple[Array, float]:
        by_variable, along, shares, size = self._pulled(variables, gradient)
        by_logarithm = np.bincount(self._block, along, self._count)
        by_level = by_logarithm - shares * by_logarithm.sum()
        by_drop = -np.cumsum(by_level[::-1])[::-1][1:]
        drops = variables[len(variables) - self.bounded :]
        held = (drops <= 0) & (by_drop > 0)
        rest = float(np.square(by_drop[~held]).sum())
        return np.concatenate([by_variable, by_drop]), float(np.sqrt(size + rest))

    def _parts(self, variables: Array) -> tuple[Array, Array, Array]:
        size = self._n * self._bands
        free = variables[:size].reshape(self._n, self._bands) / self.units
        levels = np.exp(-np.concatenate([[0.0], np.cumsum(np.maximum(variables[size:], 0.0))]))
        levels /= levels.sum()
        return free, np.sqrt(levels)[self._block][:, None], levels


class WindowScales(_MinSepScales):
    """Squared norms d of sensitivity 1 under minimum separation: sums of weights of windows, plus a constant.

    By linear duality d has sensitivity at most 1 exactly where it is no more than z plus the sum of y over
    the windows that hold the step, y, z >= 0, sum y + count z = 1: larger ones cost nothing.

    Args:
        units: sizes of the variables of each column, shape (n, 1).
        bands: of C.
        separation, count: of the min-sep schema; count >= 2.
    """

    def __init__(self, units: Array, bands: int, separation: int, count: int) -> None:
        super().__init__(units, bands, separation, count)
        self._blocks = -(-self._n // self._width)
        # where as many participations as fit are allowed, z is a sum of windows already
        self.bounded = self._n + (count < self._blocks)

    def variables(self, columns: Array) -> Array:
        d = np.square(columns).sum(axis=1)
        d /= max(1.0, self._total(d))
        rises = np.pad(np.diff(d, prepend=0.0), (0, self._blocks * self._width - self._n))
        y = np.cumsum(rises.reshape(self._blocks, self._width), axis=0).reshape(-1)[: self._n]
        if self.bounded > self._n:
            # every window that begins a block loses z
            z = (y.sum() - 1.0) / (self._blocks - self._count)
            z = min(max(z, 0.0), float(d.min()))
            y[:: self._width] -= z
            y = np.append(y, self._count * z)
        y = np.maximum(y, 0.0)
        shares = y / y.sum() * (1.0 + LEAST) - LEAST / len(y)
        return np.concatenate([(columns * self.units).reshape(-1), self._count * np.maximum(shares, 0.0)])

    def pull_back(self, variables: Array, gradient: Array) -> tuple[Array, float]:
        by_variable, along, shares, size = self._pulled(variables, gradient)
        sums = np.concatenate([[0.0], np.cumsum(along / self._diagonal(shares))])
        by_share = sums[np.minimum(np.arange(self._n) + self._width, self._n)] - sums[:-1]
        if self.bounded > self._n:
            by_share = np.append(by_share, sums[-1] / self._count)
        by_share -= shares @ by_share
        drops = variables[len(variables) - self.bounded :]
        held = (drops <= 1e-9) & (by_share > 0)
        rest = np.where(held, 0.0, by_share * np.maximum(shares, 1.0 / len(shares)))
        total = np.maximum(drops, 0.0).sum() + self._count * LEAST
        return np.concatenate([by_variable, by_share / total]), float(np.sqrt(size + np.square(rest).sum()))

    def _total(self, d: Array) -> float:
        """At most the squared sensitivity of d, and about that: the blocks of largest sum."""
        means = np.add.reduceat(d, np.arange(0, self._n, self._width))
        return float(np.sort(means)[-self._count :].sum() / self._width)

    def _parts(self, variables: Array) -> tuple[Array, Array, Array]:
        size = self._n * self._bands
        free = variables[:size].reshape(self._n, self._bands) / self.units
        shares = np.maximum(variables[size:], 0.0) + self._count * LEAST / self.bounded
        shares /= shares.sum()
        return free, np.sqrt(self._diagonal(shares))[:, None], shares

    def _diagonal(self, shares: Array) -> Array:
        sums = np.concatenate([[0.0], np.cumsum(shares[: self._n])])
        d = sums[1:] - sums[np.maximum(np.arange(self._n) - self._width + 1, 0)]
        return np.asarray(d + shares[-1] / self._count if self.bounded > self._n else d)
