"""The best of a random number of runs: its privacy profile from that of one run.

K runs are drawn, K with generating function f, and the best is shown. Its law has the density f'(F(y)) over
that of one run, where F(y) is the probability that one run is no better than y. One run shows F_P <= G(F_Q)
with G(q) = min over strikes of (strike q + H_strike), and so, for every epsilon >= 0,

    delta(epsilon) <= E M(r),  M(r) = max over q of (f'(G(q)) r - e^epsilon f'(q))_+,

with r the likelihood ratio of one run. Bounds of H are enough: docs/proofs/budget.md#selection.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from anechoic._validate import Array
from anechoic.accounting.loss_distributions.profile import Profile, curve

#: 1 - q in; log f'(q) and its derivative by q out.
LogSlope = Callable[[Array], tuple[Array, Array]]

_PARTS = 6  # into which cells that decide are split
_STEPS = (9, 14, 14, 14, 14)  # halvings of the interval of epsilon, before cells are split again
_CLOSE = 2e-4  # relative gain by which another round is not worth it
_ROUNDING = 1e-9  # of all that is computed here, relative
_LOST = 1e-15  # of 1, in a sum of masses
_LARGEST = 400.0  # epsilon that is searched


def selection_epsilon(profile: Profile, log_slope: LogSlope, delta: float) -> float:
    """An epsilon >= 0 at which the best run is (epsilon, delta)-DP; inf where none up to 400 is shown.

    Args:
        profile: bounds of one run, in both directions.
        log_slope: of the number of runs; f' is convex and rises.
        delta: in (0, 1).
    """
    found = _Direction.of(profile.epsilons, profile.remove, profile.add).epsilon(log_slope, delta)
    if np.array_equal(profile.remove, profile.add):
        return found
    return max(found, _Direction.of(profile.epsilons, profile.add, profile.remove).epsilon(log_slope, delta))


@dataclass(frozen=True, eq=False)
class _Direction:
    """One run, seen in one direction.

    Attributes:
        levels, falls, scales: 1 - G(q) >= levels - falls q + scales (1 - q), in lines.
        ratios, masses: likelihood ratios above 0 and their Q-masses, of a pair that has these bounds.
        infinite: P-mass where the ratio is infinite.
    """

    levels: Array
    falls: Array
    scales: Array
    ratios: Array
    masses: Array
    infinite: float

    @classmethod
    def of(cls, epsilons: Array, ahead: Array, behind: Array) -> _Direction:
        strikes, bounds = curve(epsilons, ahead, behind)
        slopes = np.append(np.diff(bounds) / np.diff(strikes), 0.0)
        small = np.exp(-epsilons)
        return cls(
            # P(S) <= K Q(S) + H, the same of complements in the other direction, and P(S) <= 1
            np.concatenate([1.0 - ahead, -small * behind, [0.0]]),
            np.concatenate([1.0 / small, 0.0 * small, [0.0]]),
            np.concatenate([0.0 * small, small, [0.0]]),
            strikes[1:],
            np.maximum(np.diff(slopes), 0.0),
            float(bounds[-1]),
        )

    def lines(self, log_slope: LogSlope, edges: Array) -> tuple[Array, Array]:
        """(a, b), shape (2, cells): f'(G(q)) r - e^epsilon f'(q) <= a r - e^epsilon b for one of each two.

        In a cell G lies below one line and f' above its tangent: what is left is convex in q, and largest
        at one of the ends.
        """
        inside = np.concatenate([[edges[0] - 1.0], 0.5 * (edges[1:] + edges[:-1]), [edges[-1] + 1.0]])
        ends = np.concatenate([[-np.inf], edges, [np.inf]])
        ends = np.stack([ends[:-1], ends[1:]])
        lines = np.outer(expit(-inside), self.scales)
        lines -= np.outer(expit(inside), self.falls)
        lines += self.levels
        best = lines.argmax(axis=1)
        left = self.levels[best] - self.falls[best] * expit(ends) + self.scales[best] * expit(-ends)
        most = np.exp(log_slope(np.where((left < 0.0).any(axis=0), 0.0, left))[0])
        middle = expit(-inside)
        level, rate = log_slope(middle)
        return most, np.exp(level) * (1.0 + rate * (middle - expit(-ends)))

    def epsilon(self, log_slope: LogSlope, delta: float) -> float:
        edges, run = _edges(log_slope), self
        low, high = 0.0, 1.0
        while run._bound(*run.lines(log_slope, edges), high)[0] > delta:
            low, high = high, 2.0 * high
            if high > _LARGEST:
                return math.inf
        for steps in _STEPS:
            before, lines = high, run.lines(log_slope, edges)
            at_low, _, counting = run._bound(*lines, low)
            if at_low <= delta:
                return low
            # a ratio that counts for nothing at `low` does so above; none below is tried again
            least = low
            run = replace(run, ratios=run.ratios[counting], masses=run.masses[counting])
            for _ in range(steps):
                middle = 0.5 * (low + high)
                low, high = (low, middle) if run._bound(*lines, middle)[0] <= delta else (middle, high)
            if steps != _STEPS[0] and high > (1.0 - _CLOSE) * before:
                break
            deciding = run._bound(*lines, high)[1]
            inner = deciding[(deciding > 0) & (deciding < len(edges))]
            parts = np.linspace(edges[inner - 1], edges[inner], _PARTS + 1)
            edges, low = np.unique(np.concatenate([edges, parts.ravel()])), max(least, 0.8 * high)
        return high

    def _bound(
        self, most: Array, least: Array, epsilon: float
    ) -> tuple[float, NDArray[np.intp], NDArray[np.bool_]]:
        """The bound of delta, which cells decide it, and which ratios count."""
        values = np.outer(self.ratios, most)
        values -= math.exp(epsilon) * least.ravel()
        best = values.argmax(axis=1)
        worst = np.take_along_axis(values, best[:, None], axis=1)[:, 0]
        counting = worst > 0.0
        largest = float(most.max())
        total = float(self.masses[counting] @ worst[counting]) + self.infinite * largest
        # masses are second differences of numbers up to 1: what they lose adds up to a few units of that
        return total * (1 + _ROUNDING) + _LOST * largest, np.unique(best[counting] % most.shape[1]), counting


def _edges(log_slope: LogSlope) -> Array:
    """Logits at which cells end at first: f' rises little in each."""
    logits = np.linspace(-35.0, 35.0, 300)
    levels = log_slope(expit(-logits))[0]
    count = min(4000, math.ceil(4.0 * float(levels[-1] - levels[0])))
    more = np.interp(np.linspace(levels[0], levels[-1], count), levels, logits)
    return np.unique(np.concatenate([logits, more]))
