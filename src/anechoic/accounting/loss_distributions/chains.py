"""Balls in bins, bounded without sampling error through a Gauss-Markov chain that dominates the bins.

Under Q the likelihood ratio of a uniform mixture of k Gaussians is R = (1/k) sum_i exp(x_i - V_ii / 2), x
centred Gaussian with covariance V = G / s^2. Both directions are expectations of convex functions of R.

Bins a few steps apart hardly correlate, and a + v rho^|i - j| lies above the largest entries at every lag: a
is a Gaussian mechanism composed with what is left, which is computed on a grid of (x_i, partial sum).

Proof: docs/proofs/amplification.md#balls-in-bins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.sparse import csc_matrix
from scipy.special import ndtr

from anechoic._validate import Array
from anechoic.accounting.loss_distributions.likelihood_ratio import gaussian_deltas

ROUNDING = 1e-9  # relative excess of a bound over what was summed in floating point
FLOOR = 1e-13  # absolute excess: rounding errors of masses near 1
LARGEST = 15.0  # epsilon above which nothing is computed
LEAST_DELTA = 1e-11

_COUNTS = (12, 20, 33, 65, 98, 130, 195)  # bins about as many as are kept on the whole circle
_GAPS = (0.0, 0.03, 0.06, 0.1, 0.15, 0.25, 0.4, 0.55)  # part of the circle that is left out
_SHARES = (0.0, 0.02, 0.1, 0.3)  # quantiles of the entries that are tried as the shared part
_TILT = 1.5  # of the second moment by which candidates are ranked
_LONGEST = 0.9999  # correlation above which the chain is one Gaussian


@dataclass(frozen=True)
class Resolution:
    """How finely a chain is computed: `variance` is the relative excess of v, `points` those of the sum."""

    variance: float
    points: int


QUICK, COARSE, FINE = Resolution(0.08, 250), Resolution(0.02, 800), Resolution(0.005, 2000)


@dataclass(frozen=True)
class BinChain:
    """The covariance shared + variance * correlation^|i - j| of `count` bins, in squared lengths.

    Attributes:
        count: k >= 2.
        shared: a >= 0.
        variance: v > 0.
        correlation: rho in [0, 1).
    """

    count: int
    shared: float
    variance: float
    correlation: float

    def rank(self, std: float) -> float:
        """A number that is smaller for chains that should give a smaller epsilon."""
        lags = np.arange(self.count)
        entries = self.shared + self.variance * self.correlation**lags
        weights = 2.0 * (self.count - lags)
        weights[0] = self.count
        return float(weights @ np.exp(np.minimum(_TILT * entries / std**2, 600.0))) / self.count**2

    @lru_cache(maxsize=32)  # noqa: B019 - by value, and what is kept is small; searches come back to a noise
    def law(self, std: float, epsilon: float, delta: float, grid: Resolution = FINE) -> ChainLaw:
        """The law of R', for questions about epsilons up to `epsilon` and deltas from `delta` on."""
        variance, mu = self.variance / std**2, math.sqrt(self.shared) / std
        rate = 1.0 - self.correlation**2
        step = math.sqrt(6.0 * grid.variance * rate * variance)
        spread = variance + step**2 / (4 * rate)  # of a chain that is at least as wide as the rounded one
        reach = math.sqrt(2.0 * math.log(2e4 * self.count / delta))
        sides = reach * math.sqrt(spread)
        lowest, highest = -math.ceil(sides / step), math.ceil((sides + spread) / step)
        points = step * np.arange(lowest, highest + 1, dtype=np.float64)
        inflation = step**2 / (8 * rate)
        leak = 2.0 * self.count * math.exp(inflation - reach**2 / 2)
        # fine in proportion to the sum, and below the strike of "add" evenly
        least, top = 0.5 * math.exp(-epsilon), math.exp(epsilon + 5.0 * mu)
        values = least * np.expm1(np.linspace(0.0, math.log1p(top / least), grid.points))
        masses, above, above_mean = _propagate(self, variance, points, values)
        return ChainLaw(values, masses, above, above_mean, mu, inflation, leak)


@dataclass(frozen=True)
class ChainLaw:
    """R' of a chain: masses at values from 0 on, and what lies above them.

    Attributes:
        values, masses: shape (points,).
        above: mass above the last value.
        above_mean: E[R'; above].
        mu: of the Gaussian that is composed with it.
        inflation: logarithm of the factor by which R' is divided for "add".
        leak: mass of what left the grid, in either direction.
    """

    values: Array
    masses: Array
    above: float
    above_mean: float
    mu: float
    inflation: float
    leak: float

    def remove(self, epsilon: float) -> float:
        """An upper bound on H(P || Q)."""
        logs = np.log(self.values[1:])
        inner = (self.masses * self.values)[1:] @ gaussian_deltas(epsilon - logs, self.mu)
        strike, last = math.exp(epsilon), float(self.values[-1])
        # above the grid: (R T - K)_+ <= R - K + E(K - T last)_+ for the ratio T of the Gaussian
        put = float(gaussian_deltas(np.array([math.log(last) - epsilon]), self.mu)[0]) * strike
        outer = self.above_mean - (strike - put) * self.above
        return self._rounded(float(inner) + max(0.0, outer))

    def add(self, epsilon: float) -> float:
        """An upper bound on H(Q || P)."""
        shifted = epsilon - self.inflation
        logs = np.log(self.values[1:])
        inner = float(self.masses[1:] @ gaussian_deltas(shifted + logs, self.mu)) + float(self.masses[0])
        last = np.array([shifted + float(logs[-1])])
        return self._rounded(inner + self.above * float(gaussian_deltas(last, self.mu)[0]))

    def delta(self, epsilon: float) -> float:
        """The larger of the two directions."""
        return max(self.remove(epsilon), self.add(epsilon))

    def _rounded(self, delta: float) -> float:
        return min(1.0, delta * (1 + ROUNDING) + FLOOR + self.leak)


def largest_at_lags(gram: Array) -> Array:
    """max over i of G[i, i + lag mod b], for every lag on the circle, shape (b,)."""
    bins = np.arange(len(gram))
    return np.asarray([gram[bins, (bins + lag) % len(gram)].max() for lag in range(len(gram))])


def chains(gram: Array) -> list[BinChain]:
    """Chains of which each dominates the mixture with this Gram matrix of entries >= 0."""
    at_lags, found = largest_at_lags(gram), []
    bins = len(gram)
    for spacing in sorted({math.ceil(bins / count) for count in _COUNTS}):
        for count in sorted({round((1.0 - gap) * bins / spacing) for gap in _GAPS}):
            if count >= 2 and (count - 1) * spacing < bins:
                found.extend(chains_above(at_lags[: count * spacing : spacing]))
    return found


def chains_above(profile: Array) -> list[BinChain]:
    """Chains whose covariances lie above `profile` at every lag."""
    found, count, top = [], len(profile), float(profile[0])
    lags = np.arange(1, count)
    shares = {float(profile[-1]), *np.quantile(profile, _SHARES).tolist()}
    for shared in sorted(shares):
        variance = (top - shared) * (1 + 1e-12)
        if variance <= 1e-3 * top:
            continue
        ratios = np.maximum(profile[1:] - shared, 0.0) / variance
        correlation = float((ratios ** (1.0 / lags)).max()) * (1 + 1e-12)
        if correlation < _LONGEST:
            found.append(BinChain(count, shared * (1 + 1e-12), variance, correlation))
    return found


def _propagate(chain: BinChain, variance: float, points: Array, values: Array) -> tuple[Array, float, float]:
    """The law of the sum, step by step from the joint law with x_i: (masses, mass above, mean above)."""
    rho, count, size = chain.correlation, chain.count, len(values)
    first = _rounded_normal(np.zeros(1), math.sqrt(variance), points)[0]
    moves = _rounded_normal(rho * points, math.sqrt(variance * (1.0 - rho**2)), points)
    terms = np.exp(points - variance / 2) / count
    futures = [np.zeros(len(points))]  # expected sum of the terms to come, from the last step backwards
    for _ in range(count - 1):
        futures.append(moves @ (terms + futures[-1]))
    # a sum moves up by the term of its row, and is rounded without bias to its two neighbours
    reached = (values[None, :] + terms[:, None]).ravel()
    beyond = np.flatnonzero(reached > values[-1])
    below = np.minimum(np.searchsorted(values, reached, side="right") - 1, size - 2)
    shares = (reached - values[below]) / np.diff(values)[below]
    # a column is where one sum goes: two entries each, so that nothing needs sorting
    weights, targets = np.empty((len(reached), 2)), np.empty((len(reached), 2), dtype=np.int32)
    weights[:, 0], weights[:, 1] = 1.0 - shares, shares
    weights[beyond] = 0.0  # counted below
    targets[:, 0] = below + np.repeat(size * np.arange(len(points)), size)
    targets[:, 1] = targets[:, 0] + 1
    starts = np.arange(0, weights.size + 1, 2, dtype=np.int32)
    adding = csc_matrix((weights.ravel(), targets.ravel(), starts), shape=(len(reached), len(reached)))
    joint = np.zeros((len(points), size))
    joint[:, 0] = first
    above = above_mean = 0.0
    for place in range(count):
        if place:
            joint = moves.T @ joint
        flat = joint.ravel()
        gone = flat[beyond]
        above += float(gone.sum())
        above_mean += float(gone @ (reached[beyond] + futures[count - 1 - place][beyond // size]))
        joint = (adding @ flat).reshape(joint.shape)
    return joint.sum(axis=0), above, above_mean


def _rounded_normal(means: Array, std: float, points: Array) -> Array:
    """Probabilities of N(mean, std^2) rounded without bias to two neighbours among equally spaced points.

    Beyond the ends everything goes to the end. Shape (means, points).
    """
    width = points[1] - points[0]
    z = np.abs(points[None, :] - means[:, None]) / std
    density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    # the weights are second differences of E (x - point)_+; of that, the part at the mean alone is exact,
    # and the rest, which is small on both sides, keeps its relative precision
    slopes = np.diff(std * (density - z * ndtr(-z)), axis=1) / width
    result = np.diff(slopes, axis=1, prepend=0.0, append=0.0)
    places = np.clip((means - points[0]) / width, 0.0, len(points) - 1.0)
    whole = np.minimum(places.astype(int), len(points) - 2)
    rows = np.arange(len(means))
    result[rows, whole] += 1.0 - (places - whole)
    result[rows, whole + 1] += places - whole
    return np.asarray(np.maximum(result, 0.0))
