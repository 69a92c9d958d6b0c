"""b-min-sep sampling of a banded strategy: the likelihood ratio by a recursion over steps.

Patterns of participation are at least b steps apart, and C has at most b bands, so that the columns c_t of
one pattern do not overlap: |m|^2 of a pattern is the sum of its |c_t|^2. With e_t = exp(<c_t, y> / s^2 -
|c_t|^2 / (2 s^2)) and an example that is eligible at step t,

    f_t = (1 - p) f_{t+1} + p e_t f_{t+b},   f_t = 1 for t >= n,

is the likelihood ratio of what follows (arXiv 2602.09338). From the stationary start it is
(f_0 + p (f_1 + … + f_{b-1})) / (1 + (b - 1) p). In logarithms throughout.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array
from anechoic.accounting.balls_in_bins.bound import check_nonnegative
from anechoic.accounting.loss_distributions.importance_sampling import Tilt, TiltedPair
from anechoic.errors import UnsupportedError
from anechoic.sampling import MinSepSampling
from anechoic.sensitivity.gram import ENTRIES
from anechoic.strategies.banded import columns_of
from anechoic.strategies.base import Strategy


class _Draws(NamedTuple):
    normals: Array  # shape (n, count)
    joined: NDArray[np.bool_]  # shape (n, count)


def check_bands(strategy: Strategy, separation: int) -> None:
    """Refuse strategies whose participations overlap, or that have a negative entry.

    Raises:
        UnsupportedError: naming the condition.
    """
    check_nonnegative(strategy, "min-sep sampling")
    if strategy.structure.bands > separation:
        raise UnsupportedError(
            f"bands={strategy.structure.bands} exceeds separation={separation}: the recursion for min-sep"
            " sampling (arXiv 2602.09338) needs participations that do not overlap. Use fewer bands, a larger"
            " separation, or BallsInBins."
        )
    if strategy.n * strategy.structure.bands > ENTRIES:
        raise UnsupportedError(
            f"n={strategy.n} steps and {strategy.structure.bands} bands are too many to be sampled here."
        )


class MinSepPair(TiltedPair):
    """The pair (P, Q) of b-min-sep sampling.

    Args:
        strategy: entrywise non-negative, of at most `separation` bands.
        sampling: of as many steps.

    Raises:
        UnsupportedError: for another strategy.
    """

    def __init__(self, strategy: Strategy, sampling: MinSepSampling) -> None:
        check_bands(strategy, sampling.separation)
        self._columns = columns_of(strategy)
        self._own = np.square(self._columns).sum(axis=1)  # |c_t|^2
        self._rate, self._separation = sampling.rate, sampling.separation
        n, b = strategy.n, sampling.separation
        best = np.zeros(n + b)
        for t in range(n - 1, -1, -1):  # the heaviest pattern
            best[t] = max(best[t + 1], self._own[t] + best[t + b])
        # equal to |m|^2 up to rounding, which must not put it too low
        self.largest = float(best[: min(b, n)].max()) * (1 + 1e-12)
        self._share = self._rate / (1 + (b - 1) * self._rate)  # probability of joining any one batch
        self._mean = self._share * strategy.multiply(np.ones(n))
        self.average = self._share * float(self._own.sum())
        self.shared = float(np.square(self._mean).sum())
        self.numbers = n

    def draw(self, rng: np.random.Generator, start: int, count: int) -> _Draws:
        n = self.numbers
        normals = rng.standard_normal((n, count))
        joined = np.zeros((n, count), dtype=bool)
        eligible = rng.random(count) < self._share / self._rate
        free = np.where(eligible, 0, rng.integers(1, max(2, self._separation), size=count))
        for t in range(n):
            joined[t] = (free <= t) & (rng.random(count) < self._rate)
            free[joined[t]] = t + self._separation
        return _Draws(normals, joined)

    def part(self, drawn: _Draws, count: int) -> _Draws:
        return _Draws(drawn.normals[:, :count], drawn.joined[:, :count])

    def pairs(self, drawn: _Draws, std: float, tilt: Tilt) -> tuple[Array, Array]:
        n, t = self.numbers, tilt.amount
        y = drawn.normals * std
        if tilt.direction == "remove":
            for lag in range(self._columns.shape[1]):
                y[lag:] += t * self._columns[: n - lag, lag, None] * drawn.joined[: n - lag]
            x = self._correlated(y) / std**2
            loss = self._log_ratio(x - self._own[:, None] / (2 * std**2))
            kept = loss > tilt.epsilon
            return loss[kept], self._log_ratio(t * x[:, kept] - t**2 * self._own[:, None] / (2 * std**2))
        y -= t * self._mean[:, None]
        x = self._correlated(y) / std**2
        loss = self._log_ratio(x - self._own[:, None] / (2 * std**2))
        kept = loss < -tilt.epsilon
        weight = -t * (self._mean @ y[:, kept]) / std**2 - t**2 * self.shared / (2 * std**2)
        return loss[kept], np.asarray(weight)

    def _correlated(self, y: Array) -> Array:
        """<c_t, y>, shape (n, count)."""
        n, result = self.numbers, np.zeros_like(y)
        for lag in range(self._columns.shape[1]):
            result[: n - lag] += self._columns[: n - lag, lag, None] * y[lag:]
        return result

    def _log_ratio(self, exponents: Array) -> Array:
        """log of the likelihood ratio from log e_t, shape (count,)."""
        n, b = exponents.shape[0], self._separation
        stay = math.log1p(-self._rate) if self._rate < 1 else -math.inf
        join = math.log(self._rate)
        f = np.zeros((n + b, exponents.shape[1]))
        for t in range(n - 1, -1, -1):
            np.logaddexp(stay + f[t + 1], join + exponents[t] + f[t + b], out=f[t])
        start = np.full((b, 1), join)
        start[0] = 0.0
        terms = f[:b] + start
        top = terms.max(axis=0, initial=-math.inf)
        total = np.log(np.exp(terms - top).sum(axis=0))
        return np.asarray(top + total - math.log1p((b - 1) * self._rate))
