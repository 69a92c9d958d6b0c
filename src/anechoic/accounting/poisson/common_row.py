"""Poisson sampling with overlapping bands: one row that all participations share, and one of each by itself.

For C >= 0 only the inner products G_ij of the columns of one group matter, and larger ones are never harder
to tell apart. With e_j^2 = max G_il over i < l, l >= j, which falls in j, the matrix E of the rows

    e = (e_1, e_2, …),    and then, for each j,    f_j at column j,    f_j^2 = max(G_jj - e_j^2, 0),

has products e_i e_j >= e_max(i, j)^2 >= G_ij. The first row is sum_j e_j x_j plus noise: all x_j are fresh.
Where it is at most t the odds of each x_j are at most p / (1 - p) exp((2 t e_j - e_j^2) / (2 s^2)), whatever
the others, and the rows that follow are Poisson-sampled Gaussians. Conditional composition
(`accounting.poisson.conditional`) has a threshold for every pair of rows; here there is one for all of them,
which is what counts where bands overlap for long and an example takes part a few times at most. Proof:
docs/proofs/conditional-composition.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy
from scipy.special import expit, ndtri

from anechoic._validate import Array
from anechoic.accounting.poisson.conditional import Composed, composed_rows, worse_epsilon
from anechoic.accounting.poisson.reduction import MOST_DENSE, held
from anechoic.accounting.poisson.rows import LOST, RowLaw, bernoulli_row, merged
from anechoic.accounting.poisson.tails import quantile
from anechoic.strategies.base import Strategy

#: Part of delta for the probability that the threshold is exceeded.
SHARE = 0.03
_LEVELS = 32  # different e_j
_KINDS = 12  # of rows of single participations
_MOST_COUNTS = 2**16  # of participations that are told apart
_DROPPED = 1e-2  # part of the same probability that the largest sums may have
_ROUNDING = 1e-10


@dataclass(frozen=True, eq=False)
class CommonRow:
    """E for one group: its first row, and the diagonal below.

    Attributes:
        unit: e_j is a multiple of it, > 0.
        levels: e_j / unit, falling, shape (m,).
        own: f_j >= 0, shape (m,).
        rate: p in (0, 1).
    """

    unit: float
    levels: Array
    own: Array
    rate: float

    def _sum(self, dropped: float) -> tuple[Array, Array, float]:
        """Atoms and masses of sum_j e_j x_j, or of something larger, and about `dropped` lost above."""
        mass, lost, lowest = np.ones(1), 0.0, 0
        for level, count in zip(*np.unique(self.levels, return_counts=True), strict=True):
            k = np.arange(
                int(scipy.stats.binom.ppf(LOST / (2 * _LEVELS), count, self.rate)),
                int(scipy.stats.binom.isf(LOST / (2 * _LEVELS), count, self.rate)) + 1,
            )
            chance = scipy.stats.binom.pmf(k, count, self.rate)
            chance[0] += scipy.stats.binom.cdf(k[0] - 1, count, self.rate)  # fewer count as k[0]
            lost += float(scipy.stats.binom.sf(k[-1], count, self.rate))
            step, before = int(level), mass
            lowest += int(k[0]) * step
            mass = np.zeros(len(before) + step * (len(k) - 1))
            for place, share in enumerate(chance.tolist()):
                mass[place * step : place * step + len(before)] += share * before
        above = np.cumsum(mass[::-1])[::-1]
        last = int(np.flatnonzero(above > dropped)[-1])
        lost += float(mass[last + 1 :].sum())
        kept = np.flatnonzero(mass[: last + 1] > 0)
        points = self.unit * (lowest + kept.astype(np.float64))
        return *merged(points, mass[kept]), lost * (1 + 1e-6)

    def composed(self, std: float, exceeded: float, direction: str) -> Composed | None:
        """All rows, where the threshold fails with probability at most `exceeded`."""
        points, mass, lost = self._sum(_DROPPED * exceeded)
        if direction == "remove":
            threshold = quantile(points, mass, std, std, exceeded) * (1 + 1e-9)
        else:
            threshold = -float(ndtri(exceeded)) * std * (1 + 1e-9)
        common = self.unit * self.levels
        odds = math.log(self.rate) - math.log1p(-self.rate)
        found = expit(odds + (2 * threshold * common - common**2) / (2 * std**2)) * (1 + 1e-12)
        # no participation is likely enough to be looked at: the row is that of Q, but for what is lost
        laws = [(1, RowLaw(points, mass, lost, std))] if points[-1] > 0 else []
        for kind in np.array_split(np.arange(len(self.own)), min(_KINDS, len(self.own))):
            largest = float(self.own[kind].max())
            if largest > 0:
                chance = min(1.0, float(found[kind].max()))
                laws.append((len(kind), bernoulli_row(np.array([largest]), np.array([chance]), std)))
        ratio = composed_rows(laws, direction) if laws else None
        return None if ratio is None else Composed(*ratio, exceeded + lost, direction)

    def epsilon(self, delta: float, std: float, high: float) -> float:
        """An upper bound on epsilon in both directions; `high`, which is known, where none is below it."""
        return worse_epsilon(lambda *at: self.composed(std, *at), (SHARE,), delta, high)


def common_row(strategy: Strategy, groups: int, rate: float) -> CommonRow | None:
    """The matrix that dominates every group; None where there would be too many sums to hold.

    Args:
        strategy: square, entrywise non-negative, with more bands than groups.
        groups: g >= 1.
        rate: p in (0, 1).

    Raises:
        UnsupportedError: for a strategy that is not Toeplitz and too large to be held.
    """
    across, squares = _products(strategy, groups)
    if across[0] == 0.0:
        return None
    unit = math.sqrt(across[0]) / _LEVELS * (1 + _ROUNDING)
    levels = np.ceil(np.sqrt(across) / unit * (1 - 1e-12)).clip(1)
    if np.ptp(levels) > 0 and len(levels) * rate * _LEVELS > _MOST_COUNTS:
        levels = np.full(len(levels), levels.max())
    own = np.sqrt(np.maximum(squares * (1 + _ROUNDING) - np.square(unit * levels), 0.0))
    return CommonRow(unit, levels, own, rate)


def _products(strategy: Strategy, groups: int) -> tuple[Array, Array]:
    """(max G_il over i < l, l >= j, of each j; G_jj), shape (m,) each, the largest of all groups, or more."""
    n = strategy.n
    size = -(-n // groups)
    latest = np.zeros(size)  # the largest product of column l with one before
    if not strategy.structure.toeplitz:
        dense, squares = held(strategy), np.zeros(size)
        for first in range(min(groups, n)):
            columns = dense[:, first::groups]
            gram = columns.T @ columns
            here = slice(0, len(gram))
            squares[here] = np.maximum(squares[here], gram.diagonal())
            latest[here] = np.maximum(latest[here], np.tril(gram, -1).max(axis=1))
    else:
        # the columns of another group are those of group 0 in fewer rows
        c = np.abs(strategy.coefficients[: min(n, strategy.structure.bands)])
        if n > MOST_DENSE:
            products = scipy.signal.correlate(c, c, method="fft")[len(c) - 1 :: groups]
            top = float(products[1:].max(initial=0.0)) + 1e-12 * float(c @ c)
            return np.full(size, top * (1 + _ROUNDING)), np.full(size, float(c @ c))
        rows = n - groups * np.arange(size)  # that column l has
        squares = np.cumsum(c**2)[np.minimum(rows, len(c)) - 1]
        for lag in range(1, size):
            product = np.cumsum(c[: -lag * groups] * c[lag * groups :])
            if not len(product):
                break
            here = product[np.minimum(rows[lag:], len(product)) - 1]
            latest[lag:] = np.maximum(latest[lag:], here)
    across = np.maximum.accumulate(latest[::-1])[::-1]
    return across * (1 + _ROUNDING), squares
