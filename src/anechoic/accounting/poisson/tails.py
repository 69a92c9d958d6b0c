"""How large <v, y> can be: the tails of a Bernoulli sum plus Gaussian noise, bounded from above.

With y = sum_j x_j u_j + s z, x_j ~ Bern(rate) independent and z standard normal, <v, y> has the law of
sum_j x_j a_j + s |v| z', a_j = <v, u_j> >= 0. `Tails` finds t with Pr[<v, y> > t] <= failure, for many v.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr

from anechoic._validate import Array
from anechoic.accounting.search import smallest

_GRID = 1024  # points to which the sum of all a_j is cut
_MOST_TERMS = 256  # overlaps of one v, and of all together, up to which the law of the sum is computed
_MOST_ENTRIES = 120_000
_TILTS = np.geomspace(0.12, 1.05, 9)
_ROUNDING = 1e-9  # relative excess of t over what was computed


class Tails:
    """Thresholds t of `count` linear statistics.

    Args:
        overlaps: at least a_j >= 0 of each statistic, shape (count, terms), padded with zeros.
        least: at most |v|^2 of each, > 0, shape (count,).
        largest: at least |v|^2 of each, shape (count,).
        rate: in (0, 1).
    """

    def __init__(self, overlaps: Array, least: Array, largest: Array, rate: float) -> None:
        self._overlaps, self._rate = overlaps, rate
        self._least, self._largest = np.sqrt(least), np.sqrt(largest)
        self._laws: list[tuple[Array, Array]] | None = None
        if overlaps.shape[1] <= _MOST_TERMS and overlaps.size <= _MOST_ENTRIES:
            self._laws = [_bernoulli_sum(row[row > 0], rate) for row in overlaps]

    def thresholds(self, std: float, failure: float) -> Array:
        """t with Pr[sum_j x_j a_j + std |v| z > t] <= failure for each v, shape (count,)."""
        if self._laws is None:
            return self._chernoff(std, failure)
        found = [
            quantile(points, mass, std * float(low), std * float(high), failure)
            for (points, mass), low, high in zip(self._laws, self._least, self._largest, strict=True)
        ]
        return np.array(found) * (1 + _ROUNDING)

    def _chernoff(self, std: float, failure: float) -> Array:
        """min over theta of (log E exp(theta <v, y>) + log(1 / failure)) / theta; every theta is valid."""
        cost = -math.log(failure)
        noise = std * self._largest
        best = np.full(len(noise), math.inf)
        stay, join = math.log1p(-self._rate), math.log(self._rate)
        for tilt in _TILTS:
            theta = tilt * math.sqrt(2 * cost) / noise
            logs = np.logaddexp(stay, join + theta[:, None] * self._overlaps)
            total = np.maximum(logs, 0.0).sum(axis=1) + (theta * noise) ** 2 / 2
            best = np.minimum(best, (total + cost) / theta)
        return best * (1 + _ROUNDING)


def _bernoulli_sum(values: Array, rate: float) -> tuple[Array, Array]:
    """Atoms and masses of sum_j x_j values[j], each value rounded up to a grid."""
    step = float(values.sum()) / _GRID
    moves = np.ceil(values / step * (1 - 1e-12)).astype(int)
    mass = np.zeros(int(moves.sum()) + 1)
    mass[0], top = 1.0, 0
    for move in moves.tolist():
        joined = rate * mass[: top + 1]
        mass[: top + 1] -= joined
        mass[move : move + top + 1] += joined
        top += move
    kept = mass > 0
    points: Array = step * np.flatnonzero(kept).astype(np.float64)
    return points, mass[kept]


def quantile(points: Array, mass: Array, least: float, largest: float, failure: float) -> float:
    """About the least t with Pr[point + noise z > t] <= failure for every noise from `least` to `largest`."""

    def exceeds(t: float) -> bool:
        # more noise makes t easier to exceed from below, less noise from above
        noise = np.where(points < t, largest, least)
        return bool(mass @ ndtr((points - t) / noise) > failure)

    step = max(largest, 1e-12 * float(points[-1]))  # next to no noise would leave the sum as it is
    low, high = 0.0, float(points[-1]) + step
    while exceeds(high):
        low, high, step = high, high + 2 * step, 2 * step
    return smallest(lambda t: not exceeds(t), low, high, 1e-7)
