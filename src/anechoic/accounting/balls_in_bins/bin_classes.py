"""Balls in bins, bounded by one-of-k random allocation within classes of bins.

For every k in 1 … b:

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

from anechoic._validate import Array
from anechoic.accounting.gaussian import gaussian_delta, hockey_stick
from anechoic.accounting.loss_distributions.likelihood_ratio import Ratio, tail_of
from anechoic.accounting.random_allocation.epsilon import LEAST_NOISE, one_of

_SIZES = 12  # numbers of bins to a class that are tried, and the divisors of b
_SHARES = (0.0, 0.2)  # a, in units of the largest mean of a class's entries off the diagonal
_EIGENVALUE = 1e-10  # relative excess of c over the computed eigenvalue
_CUBES = 1e7  # work for eigenvalues, above which they are bounded by row sums
_ENTRIES = 3e6  # of the blocks of all classes, above which a number is left out
_TILT = 1.5  # of the second moment by which candidates are ranked


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

    def rank(self, std: float) -> float:
        """A number that is smaller for pairs that should give a smaller epsilon."""
        own = math.exp(min(600.0, _TILT * (self.length + self.shared) / std**2))
        rest = math.exp(min(600.0, _TILT * self.shared / std**2))
        return (own + (self.count - 1) * rest) / self.count

    def least_delta(self, epsilon: float, std: float) -> float:
        """A lower bound on every delta that is shown for it, without summing ratios.

        The mean R of ratios r_i has (R - e^epsilon)_+ >= sum_i (r_i / k - e^epsilon)_+.
        """
        return hockey_stick(epsilon + math.log(self.count), math.sqrt(self.length + self.shared) / std)

    def ratio(self, std: float, delta: float) -> Ratio | None:
        """The likelihood ratio without the Gaussian, to show `delta`; None where it is not summed."""
        noise = std / math.sqrt(self.length) if self.length > 0 else math.inf
        if self.count == 1 or not LEAST_NOISE < noise < math.inf:
            return None
        return one_of(self.count, noise, tail=tail_of(delta))

    def delta_at(self, std: float, near: float) -> Callable[[float], float]:
        """epsilon -> an upper bound on delta at noise std `std`, sharp where that is `near`."""
        ratio = self.ratio(std, near)
        if ratio is None:
            plain = math.sqrt(self.length + self.shared) / std
            return lambda epsilon: gaussian_delta(epsilon, plain)
        mu = math.sqrt(self.shared) / std
        return lambda epsilon: ratio.delta(epsilon, mu)


def dominations(gram: Array) -> list[Domination]:
    """Pairs of which each dominates the mixture with this Gram matrix; none is the best everywhere."""
    found = []
    for count in _sizes(len(gram)):
        classes = _classes(len(gram), count)
        if count > 1 and classes.size * count > _ENTRIES:
            continue
        blocks = gram[classes[:, :, None], classes[:, None, :]]
        own = np.trace(blocks, axis1=1, axis2=2)
        size = float(own.max()) / count
        off = float((blocks.sum(axis=(1, 2)) - own).max()) / max(1, count * (count - 1))
        if off <= 1e-12 * size:
            found.append(Domination(count, _largest_eigenvalue(blocks) + _EIGENVALUE * size, 0.0))
            continue
        for shared in [share * off for share in _SHARES]:
            found.append(Domination(count, _largest_eigenvalue(blocks - shared) + _EIGENVALUE * size, shared))
        if count > 1:  # entry by entry: Kahane's inequality (accounting.loss_distributions.chains)
            largest = blocks.max(axis=0)
            shared = float(largest[~np.eye(count, dtype=bool)].max())
            rest = max(0.0, float(largest.diagonal().max()) * (1 + 1e-15) - shared)
            found.append(Domination(count, rest, shared))
    return found


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
