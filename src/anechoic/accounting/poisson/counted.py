"""Poisson sampling by the number of participations: where a unit takes part seldom, whatever C.

A unit takes part in k of its m steps with probability w_k = Bin(m, p)(k). Given the pattern, the run is a
Gaussian mechanism of mu_k = sens_k / s, sens_k the sensitivity to k participations a group apart. With the
unit in no batch P and Q are equal, so that P = (1 - h) Q + h P', h = 1 - w_0, P' the mixture of the rest, and

    H_K'(P || Q) = h H_K(P' || Q),               K' = 1 + h (K - 1),
    H_K'(Q || P) = (1 - K' (1 - h)) H_K(Q || P'),  K = K' h / (1 - K' (1 - h)); 0 where K < 0

(Balle, Barthe, Gaboardi 2018). By joint convexity h H_K(P' || Q) <= sum over k >= 1 of w_k delta_k(log K),
both ways round. Numbers of participations that are not looked at count in full. Proof:
docs/proofs/conditional-composition.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy

from anechoic._validate import Array
from anechoic.accounting.gaussian import hockey_stick
from anechoic.accounting.search import smallest_epsilon
from anechoic.participation import MinSep
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.strategies.base import Strategy

MOST = 12  # participations that are looked at
SELDOM = 4.0  # expected participations up to which this is tried
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Counted:
    """Weights and sensitivities of 1, 2, … participations.

    Attributes:
        taken: h, the probability of any participation, to a relative 1e-12.
        weights: w_k, or more, shape (K,).
        more: probability of more than K participations, or more.
        lengths: sens_k, shape (K,).
    """

    taken: float
    weights: Array
    more: float
    lengths: Array

    def delta(self, epsilon: float, std: float) -> float:
        """An upper bound on both directions at epsilon >= 0."""
        least, most = self.taken * (1 - _ROUNDING), self.taken * (1 + _ROUNDING)
        epsilon = min(epsilon, 600.0)
        remove = self._mixed(math.log1p(math.expm1(epsilon) / most), std)
        left = 1.0 - math.exp(epsilon) * (1.0 - most)
        if left <= 0.0:
            return remove
        behind = epsilon + math.log(least) - math.log(left)
        return max(remove, left / least * self._mixed(behind, std))

    def _mixed(self, epsilon: float, std: float) -> float:
        deltas = np.array([hockey_stick(epsilon, length / std) for length in self.lengths.tolist()])
        return min(1.0, (float(self.weights @ deltas) + self.more) * (1 + _ROUNDING))

    def epsilon(self, delta: float, std: float, high: float) -> float:
        """An upper bound on epsilon; `high`, which is known, where none is below it."""
        return smallest_epsilon(lambda epsilon: self.delta(epsilon, std), delta, high)

    def less_noise(self, epsilon: float, delta: float, std: float) -> float:
        """About the least noise std, at most `std`, at which `epsilon` is shown; `std` where it is not."""
        if self.delta(epsilon, std) > delta:
            return std
        low, high = std / 2, std
        while self.delta(epsilon, low) <= delta:
            low, high = low / 2, low
        while high - low > 1e-6 * high:
            middle = 0.5 * (low + high)
            low, high = (low, middle) if self.delta(epsilon, middle) <= delta else (middle, high)
        return high


def counted_of(strategy: Strategy, groups: int, rate: float) -> Counted | None:
    """The numbers of participations of one unit; None where it takes part often.

    Args:
        strategy: square.
        groups: g >= 1.
        rate: p in (0, 1).
    """
    steps = -(-strategy.n // groups)
    if steps * rate > SELDOM:
        return None
    counts = np.arange(1, min(steps, MOST) + 1)
    lengths = [sensitivity(strategy, MinSep(groups, int(count))).value for count in counts]
    return Counted(
        -math.expm1(steps * math.log1p(-rate)),
        np.asarray(scipy.stats.binom.pmf(counts, steps, rate)) * (1 + 1e-10),
        float(scipy.stats.binom.sf(counts[-1], steps, rate)) * (1 + 1e-10),
        np.maximum.accumulate(np.array(lengths)),
    )
