"""Balls in bins with correlated noise: the Gram matrix of the mixture, and a bound without sampling error.

An example draws one of b bins and takes part in steps i, i + b, …. For an entrywise non-negative C the run
is dominated by P = (1/b) sum_i N(m_i, s^2 I) against Q = N(0, s^2 I) with m_i = sum_j C[:, i + j b]
(arXiv 2410.06266, Lemma 3.2; there, the two directions are exchanged). Only G_ij = <m_i, m_j> matters.

The bound (`epsilon_bound`), for every k in 1 … b:

1. Joint convexity: P is the average over r < b of P_r, uniform on the k bins r + floor(j b / k) mod b, so
   no divergence of (P, Q) exceeds the largest of the (P_r, Q), in either direction.
2. Let G_r be the Gram matrix of class r, a >= 0 and c = max_r lambda_max(G_r - a 1 1^T). Then
   G_r <= c I + a 1 1^T in the order of semidefinite matrices, so that the means of class r are a contraction
   of means with that Gram matrix, and (P_r, Q) is post-processing (contract, add Gaussian noise) of their
   pair: one of k orthogonal means of length sqrt(c), composed with a Gaussian of mu = sqrt(a) / s.

k = 1 is the bound without sampling. Bins of a class are about b / k steps apart, so G_r is nearly diagonal
where C decays within that time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array, fraction, positive_float, positive_int
from anechoic.accounting.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu
from anechoic.accounting.random_allocation import LEAST_NOISE, one_of, smallest_epsilon
from anechoic.errors import UnsupportedError
from anechoic.sensitivity.gram import ENTRIES, gram_of
from anechoic.strategies import Strategy

_SIZES = 24  # numbers of bins to a class that are tried, and the divisors of b
_SHARES = (0.0, 0.1, 0.25)  # a, in units of the largest mean of a class's entries off the diagonal
_EIGENVALUE = 1e-10  # relative excess of c over the computed eigenvalue
_PATIENCE = 15  # candidates in a row that may give nothing
_CUBES = 5e7  # work for eigenvalues, above which they are bounded by row sums


def check_nonnegative(strategy: Strategy, what: str) -> None:
    """Refuse strategies with a negative entry, and rectangular ones.

    Raises:
        UnsupportedError: naming the lemma.
    """
    if strategy.rows != strategy.n:
        raise UnsupportedError(
            f"{strategy.describe()} is rectangular: amplification by {what} is proved for the square C whose"
            " rows are released one a step. Use a square strategy, or FixedOrder."
        )
    if not strategy.structure.nonnegative:
        raise UnsupportedError(
            f"{strategy.describe()} has negative entries, or cannot be shown to have none: amplification by"
            f" {what} is proved for entrywise non-negative C (Lemma 3.2 of arXiv 2410.06266), and fails for"
            " [[1, 0], [-1, 1]]. Use a non-negative strategy, or FixedOrder."
        )


def bins_gram(strategy: Strategy, bins: int) -> Array:
    """G_ij = <m_i, m_j> for the sums m_i of the columns i, i + bins, … of C, shape (bins, bins).

    Args:
        strategy: entrywise non-negative.
        bins: b >= 1; bins beyond the last step have the mean 0.

    Raises:
        UnsupportedError: for a strategy with negative entries, or too many bins to be held.
    """
    check_nonnegative(strategy, "balls-in-bins sampling")
    bins = positive_int("bins", bins)
    gram = gram_of(strategy) if bins * bins <= ENTRIES else None
    if gram is None:
        raise UnsupportedError(
            f"bins={bins} and n={strategy.n}: the Gram matrix of the bins is too large to be computed here"
            f" (at most {math.isqrt(ENTRIES)} bins). Use fewer, or FixedOrder."
        )
    n, result = strategy.n, np.zeros((bins, bins))
    offsets = np.arange(bins)
    for lag in range(min(gram.bandwidth, n)):
        entries = gram.diagonal(lag)
        rows = -(-len(entries) // bins)
        sums = np.pad(entries, (0, rows * bins - len(entries))).reshape(rows, bins).sum(axis=0)
        columns = (offsets + lag) % bins
        result[offsets, columns] += sums
        if lag:
            result[columns, offsets] += sums
    return np.maximum(result, 0.0)  # of a non-negative C, up to rounding


@dataclass(frozen=True)
class Domination:
    """One of `count` orthogonal means of squared length `length`, composed with a Gaussian.

    Attributes:
        count: k, bins in a class.
        length: c.
        shared: a, the squared mean of the Gaussian.
    """

    count: int
    length: float
    shared: float

    def delta(self, std: float) -> Callable[[float], float]:
        """epsilon -> an upper bound on delta at noise std `std`."""
        mu, per_step = math.sqrt(self.shared) / std, math.sqrt(self.length) / std
        if self.count == 1 or 1.0 / per_step < LEAST_NOISE:
            mu = math.hypot(mu, per_step)
            return lambda epsilon: gaussian_delta(epsilon, mu)
        ratio = one_of(self.count, 1.0 / per_step)
        return lambda epsilon: ratio.delta(epsilon, mu)

    def epsilon(self, delta: float, std: float) -> float:
        """An upper bound on epsilon at noise std `std`."""
        plain = gaussian_epsilon(delta, math.sqrt(self.length + self.shared) / std)
        return smallest_epsilon(self.delta(std), delta, plain)


def dominations(gram: Array) -> list[Domination]:
    """Pairs of which each dominates the mixture with this Gram matrix; none is the best everywhere."""
    found = []
    for count in _sizes(len(gram)):
        classes = _classes(len(gram), count)
        blocks = gram[classes[:, :, None], classes[:, None, :]]
        own = np.trace(blocks, axis1=1, axis2=2)
        size = float(own.max()) / count
        off = float((blocks.sum(axis=(1, 2)) - own).max()) / max(1, count * (count - 1))
        for share in _SHARES if off > 1e-12 * size else (0.0,):
            shared = share * off
            found.append(Domination(count, _largest_eigenvalue(blocks - shared) + _EIGENVALUE * size, shared))
    return found


def epsilon_bound(gram: Array, delta: float, std: float) -> float:
    """An upper bound on epsilon in both directions.

    Args:
        gram: of the means, shape (b, b).
        delta: in (0, 1).
        std: of the noise, s > 0.
    """
    return best_bound(dominations(gram), fraction("delta", delta), positive_float("std", std))[0]


def noise_std_bound(gram: Array, epsilon: float, delta: float) -> float:
    """A noise std, within about 1e-4 of the least, at which `epsilon_bound` is at most `epsilon`."""
    return noise_std_of(dominations(gram), epsilon, delta)


def noise_std_of(candidates: list[Domination], epsilon: float, delta: float) -> float:
    """Like `noise_std_bound`, from the dominations of the Gram matrix."""
    epsilon, delta = positive_float("epsilon", epsilon), fraction("delta", delta)
    without_sampling = min(candidate.length + candidate.shared for candidate in candidates)
    high = math.sqrt(without_sampling) / gaussian_mu(epsilon, delta) * (1 + 1e-9)
    while True:  # the best candidate at the noise found so far may do with less
        best, low, top = best_bound(candidates, delta, high)[1], 0.0, high
        while top - low > 2e-5 * top:
            middle = 0.5 * (low + top)
            low, top = (low, middle) if best.delta(middle)(epsilon) <= delta else (middle, top)
        if top > high * (1 - 1e-4):
            return high
        high = top


def best_bound(candidates: list[Domination], delta: float, std: float) -> tuple[float, Domination]:
    """The least epsilon that one of the `candidates` gives, and which.

    They come by the number of bins in a class, in which epsilon first falls and then grows: the search ends
    where many have given nothing.
    """
    least, chosen, in_vain = math.inf, candidates[0], 0
    for candidate in candidates:
        in_vain += 1
        if least < math.inf and candidate.delta(std)(least) > delta:
            if in_vain > _PATIENCE:
                break
            continue  # it cannot give less
        epsilon = candidate.epsilon(delta, std)
        if epsilon < least:
            least, chosen, in_vain = epsilon, candidate, 0
    return least, chosen


def _largest_eigenvalue(blocks: Array) -> float:
    """A bound on the eigenvalues of every symmetric block, from above and >= 0."""
    classes, count, _ = blocks.shape
    if classes * count**3 <= _CUBES:
        return max(0.0, float(np.linalg.eigvalsh(blocks)[:, -1].max()))
    return float(np.abs(blocks).sum(axis=2).max())


def _sizes(bins: int) -> list[int]:
    """Numbers of bins to a class."""
    spread = np.round(np.geomspace(1, bins, _SIZES)).astype(int).tolist()
    return sorted({*spread, *(size for size in range(1, bins + 1) if bins % size == 0)})


def _classes(bins: int, count: int) -> NDArray[np.int64]:
    """Bins of each class, shape (classes, count); every bin is in equally many classes."""
    places = np.arange(count) * bins // count
    shifts = bins // count if bins % count == 0 else bins
    return np.asarray((np.arange(shifts)[:, None] + places) % bins)
