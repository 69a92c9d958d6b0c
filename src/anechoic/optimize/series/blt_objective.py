"""The loss of a BLT as a function of 2 d positive gaps, with its exact gradient.

Let y_0 = 0 and y_1 < y_2 < … < y_2d be the running sums of the gaps. The odd points are -log of the decays
of C, the even ones from y_2 on those of C^-1, and y_0 is the 1 of the prefix sum. By Lemma 4.13 of the
monograph, with p_a = exp(-y_a), the scale of an odd point, and the weight of an even one, is

    prod over points of the other kind |p_a - p_b|  /  prod over the other points of its own kind |p_a - p_b|

(scales leave out y_0). Distances are sums of gaps, so they are accurate however close two points are, and
their logarithms are differentiated with respect to the gaps without differences of large numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array
from anechoic.algebra.exponentials import (
    LARGEST,
    geometric,
    geometric_moment,
    pairs,
    remaining,
    remaining_moment,
)
from anechoic.optimize.series.blt_errors import SquaredError

Masks = tuple[Array, NDArray[np.bool_], NDArray[np.intp]]


class BLTObjective:
    """log(sensitivity * error) of the BLT with given gaps, for the comb of `count` steps `separation` apart.

    Args:
        n: steps.
        separation, count: worst pattern of the participation schema.
        last: weight of the last, largest error of prefix sums beside their mean, in [0, 1].
        squared_error: of another workload or other weights, in its place.
        progress: called with the evaluations so far and the loss, after each.

    Attributes:
        evaluations: calls so far.
    """

    def __init__(
        self,
        n: int,
        separation: int,
        count: int,
        last: float,
        squared_error: SquaredError | None = None,
        progress: Callable[[int, float], None] | None = None,
    ) -> None:
        self.n, self.separation, self.count, self.last = n, separation, count, last
        self.squared_error, self.progress = squared_error, progress
        self.evaluations = 0

    def __call__(self, gaps: Array) -> tuple[float, Array]:
        """Value and gradient at gaps > 0, shape (2 d,)."""
        self.evaluations += 1
        y, distance, residues = _residues(gaps)
        sensitivity, scale_part, mu_part = self._sensitivity(residues[1::2], y[1::2])

        # derivatives of the logarithm by log residues, by the points and by the gaps themselves
        by_residue, by_point, by_gap = np.zeros(len(y)), np.zeros(len(y)), np.zeros(len(gaps))
        by_residue[1::2], by_point[1::2] = scale_part / sensitivity, mu_part / sensitivity
        if self.squared_error is None:
            error, weight_part, nu_part = self._error(residues[0::2], y[0::2])
            by_residue[0::2], by_point[0::2] = weight_part / error, nu_part / error
        else:
            error, by_gap = self.squared_error(gaps)
            by_gap = 0.5 * by_gap / error

        signs, later, _ = _masks(len(y))
        by_pair = np.where(later, by_residue[:, None] * signs + (by_residue[:, None] * signs).T, 0.0)
        # log|p_a - p_b| = -y_a + log(1 - exp(-distance)) for a < b; gap m is in the distance if a < m <= b
        slopes = np.cumsum(np.cumsum((by_pair / np.expm1(distance))[:, ::-1], axis=1)[:, ::-1], axis=0)
        moved = np.cumsum((by_point - by_pair.sum(axis=1))[::-1])[::-1]
        value = 0.5 * float(np.log(sensitivity * error))
        if self.progress is not None:
            self.progress(self.evaluations, float(np.exp(value)))
        return value, slopes.diagonal(1) + moved[1:] + by_gap

    def _sensitivity(self, scale: Array, mu: Array) -> tuple[float, Array, Array]:
        """Half the squared norm's derivatives by log scale and by mu, after the norm itself."""
        n, b, k = self.n, self.separation, self.count
        rates = pairs(mu)
        products = scale[:, None] * scale
        if k == 1:
            terms = products * geometric(rates, n - 1)
            slopes = products * geometric_moment(rates, n - 1)
            return 1.0 + float(terms.sum()), terms.sum(axis=1), -slopes.sum(axis=1)
        # sums over the teeth so far of decay^(separation j), and their derivatives by mu
        lag = b * np.arange(k, dtype=np.float64)[:, None]
        powers = np.exp(-lag * mu)
        sums, slopes = np.cumsum(powers, axis=0), np.cumsum(-lag * powers, axis=0)
        reach = scale * np.exp(-(b - 1) * mu)
        heads = 1.0 + sums[:-1] @ reach
        total = 1.0 + float(heads @ heads)
        by_scale = reach * (heads @ sums[:-1])
        by_mu = reach * (heads @ (slopes[:-1] - (b - 1) * sums[:-1]))
        for part, length in ((slice(0, k - 1), b), (slice(k - 1, k), n - (k - 1) * b)):
            if length > 1:
                inner = products * geometric(rates, length - 1)
                gram = sums[part].T @ sums[part]
                total += float((inner * gram).sum())
                by_scale += (inner * gram).sum(axis=1)
                by_mu += (inner * (slopes[part].T @ sums[part])).sum(axis=1)
                by_mu -= (products * gram * geometric_moment(rates, length - 1)).sum(axis=1)
        return total, by_scale, by_mu

    def _error(self, weights: Array, nu: Array) -> tuple[float, Array, Array]:
        """The squared error, and half its derivatives by log weight and by nu."""
        last, rates = self.last, pairs(nu)
        products = weights[:, None] * weights
        terms, slopes = np.zeros_like(rates), np.zeros_like(rates)
        if last > 0.0:
            terms, slopes = last * geometric(rates, self.n), last * geometric_moment(rates, self.n)
        if last < 1.0:
            terms += (1.0 - last) * (remaining(rates, self.n) / self.n)
            slopes += (1.0 - last) * (remaining_moment(rates, self.n) / self.n)
        terms = products * terms
        return float(terms.sum()), terms.sum(axis=1), -(products * slopes).sum(axis=1)


def parameters(gaps: Array) -> tuple[Array, Array]:
    """Scale and decay, each shape (d,), of the BLT with the given gaps."""
    y, _, residues = _residues(gaps)
    scale, decay = residues[1::2], np.exp(-y[1::2])
    # the sum is below 1 but for rounding, and Lemma 3.16 (c) must hold of the numbers that are kept
    excess = scale.sum()
    return (scale if excess <= 1.0 else scale * (1.0 - 1e-15) / excess), decay


def _residues(gaps: Array) -> tuple[Array, Array, Array]:
    """Points y, shape (2 d + 1,); their distances (1 on the diagonal); scales and weights alternating."""
    signs, later, first = _masks(len(gaps) + 1)
    ends = np.concatenate([[0.0], gaps])
    distance = np.cumsum(np.where(later, ends, 0.0), axis=1)
    y = distance[0].copy()
    distance = np.minimum(np.where(later, distance, distance.T), LARGEST)
    np.fill_diagonal(distance, 1.0)
    logs = np.log(-np.expm1(-distance)) - y[first]
    return y, distance, np.exp((signs * logs).sum(axis=1))


@lru_cache(maxsize=64)
def _masks(points: int) -> Masks:
    """Signs of log|p_a - p_b| in log residue a; where b > a; min(a, b). Each shape (points, points)."""
    index = np.arange(points)
    signs = np.where((index[:, None] - index[None, :]) % 2, 1.0, -1.0)
    np.fill_diagonal(signs, 0.0)
    signs[1::2, 0] = 0.0
    return signs, index[None, :] > index[:, None], np.minimum(index[:, None], index[None, :])
