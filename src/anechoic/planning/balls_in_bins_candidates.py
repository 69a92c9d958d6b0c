"""Candidates for balls in bins, by the bounds without sampling error."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property, lru_cache
from typing import cast

import numpy as np

from anechoic._validate import Array
from anechoic.accounting.balls_in_bins.bound import BinsBound, bins_bound
from anechoic.accounting.poisson.search import poisson_noise_multiplier_estimate
from anechoic.planning.amplified_candidates import NOISE_UP_TO, AmplifiedCandidates
from anechoic.planning.bands import FAR, powers_of_two
from anechoic.planning.calibration import may_keep_goal, tightened_noise_std
from anechoic.planning.designs import designs_of
from anechoic.planning.objective import PlanObjective
from anechoic.planning.records import Candidate, Goal
from anechoic.sampling import BallsInBins
from anechoic.strategies import BLT, ColumnNormalized
from anechoic.strategies.base import Strategy
from anechoic.workloads import prefix_sum

#: Most bins for which the bound of balls in bins without sampling error is computed.
BINS_UP_TO = 1024
#: Passes up to which that bound can be the better one, for bands and for buffers: an example draws its bin
#: once for all of them.
PASSES_IN_BINS, PASSES_BUFFERED = 4, 64
#: The search for the least noise ends about so far below the rough one, and at most so far.
ABOUT, LEAST = 0.97, 0.9
#: Epsilon from which classes of bins bound overlapping bins better than chains may, and bins up to which.
CLASSES_FROM, CLASSES_UP_TO = 8.0, 32
#: How far below the goal the epsilon of a costly calibration may stay.
SLACK = 0.005
#: Buffers of the BLTs in bins, and the parts of a pass that they are designed for: what fades sooner leaves
#: more bins to hide in.
_BUFFERS = 2
_PARTS = (0.125, 0.25, 0.5, 1.0)
#: Strategies of so much the least error by estimates of their noise are candidates; parts of a pass for which
#: one buffer is so near to the least are tried with more.
_NEAR, _NEAR_PARTS = 1.06, 1.1
#: Estimates hold the mean of exp(_TILT <m_i, m_j> / s^2) over pairs of so many bins to those of all bins.
_TILT, _ROWS = 2.0, 64


class BallsInBinsCandidates:
    """Candidates of one setting in balls in bins, beside those of the other schemes."""

    def __init__(self, drawn: AmplifiedCandidates) -> None:
        self.drawn, self.setting, self.goal = drawn, drawn.setting, drawn.goal
        self.n, self.period = drawn.n, drawn.period
        self.passes = -(-self.n // self.period)

    @property
    def apply(self) -> bool:
        """Whether there is a bound for them, and it can be the better one."""
        return (
            self.goal.epsilon is not None
            and self.goal.adjacency != "replace_one"
            and 1 < self.period <= BINS_UP_TO
            and self.drawn.noise(1) <= NOISE_UP_TO
        )

    def candidates(self, families: frozenset[str]) -> Iterable[Candidate]:
        """Those of the families."""
        if not self.apply:
            return
        if "banded_toeplitz" in families and self.passes <= PASSES_IN_BINS:
            yield from self._near_the_best(self._banded())
        if "blt" in families and self.passes <= PASSES_BUFFERED:
            yield from self._near_the_best(self._buffered())

    def candidate(self, strategy: Strategy) -> Candidate:
        """A strategy without negative coefficients in bins."""
        return self._candidate(strategy, ABOUT * self._rough(strategy))

    def _candidate(self, strategy: Strategy, std: float) -> Candidate:
        return Candidate(strategy, self._sampling, std, hope=LEAST / ABOUT, enough=std, costly=True)

    # -- strategies ----------------------------------------------------------------------------

    def _banded(self) -> list[Strategy]:
        """Orthogonal means: an example hides in one of period // bands places."""
        designs, rows, found = self.setting.designs, self.drawn.room.rows, list[Strategy]()
        least = math.inf
        for tried in powers_of_two(designs.most_bands(min(self.n, self.period // 2))):
            # as many as leave no fewer places, but no more than there are steps
            bands = min(self.n, self.period // (self.period // max(1, tried)))
            if bands == 1 or (rows is not None and bands > rows):
                continue
            strategy = designs.toeplitz(bands)
            if strategy.structure.nonnegative and strategy not in found:
                found.append(strategy)
                value = self._estimate(strategy, self._independent)
                if value > FAR * least:
                    break
                least = min(least, value)
        return found

    def _buffered(self) -> list[Strategy]:
        """BLTs that fade within a part of a pass: their bins overlap, and Gauss-Markov chains bound that."""
        rows = self.drawn.room.rows
        most = min(_BUFFERS, self.n - 1, self.period - 1, _BUFFERS if rows is None else rows)
        parts, found = sorted({round(part * self.period) for part in _PARTS}), list[Strategy]()
        for buffers in range(1, most + 1):
            values: dict[int, float] = {}
            for steps in sorted({max(buffers + 1, part) for part in parts}):
                strategy = _fading(self.n, steps, buffers)
                if strategy is not None:
                    found.append(strategy)
                    values[steps] = self._estimate(strategy, self._independent)
            parts = [steps for steps, value in values.items() if value <= _NEAR_PARTS * min(values.values())]
        return found

    # -- noise ---------------------------------------------------------------------------------

    def _near_the_best(self, strategies: list[Strategy]) -> Iterable[Candidate]:
        """Those that may have the least error, by estimates from the rough noise of the best one known."""
        level, known, left = self._independent, list[tuple[float, Strategy]](), list(strategies)
        while left:
            value, place = min((self._estimate(one, level), place) for place, one in enumerate(left))
            if known and value > _NEAR * min(known, key=lambda each: each[0])[0]:
                break
            strategy = left.pop(place)
            rough = self._rough(strategy)
            known.append((rough * self.setting.designs.of(strategy), strategy))
            if known[-1] is min(known, key=lambda each: each[0]):
                level = _level(self._gram(strategy), rough)
            yield self._candidate(strategy, ABOUT * rough)

    def _estimate(self, strategy: Strategy, level: float) -> float:
        """About the error of a strategy, at the noise at which its bins are told apart as well as others."""
        gram, low, high = self._gram(strategy), -20.0, 20.0  # logarithms
        while high - low > 1e-4:
            middle = 0.5 * (low + high)
            low, high = (middle, high) if _level(gram, math.exp(middle)) > level else (low, middle)
        return math.exp(high) * self.setting.designs.of(strategy)

    @cached_property
    def _independent(self) -> float:
        """The level of orthogonal means, by the noise of Poisson sampling at their rate."""
        rate = 1.0 / self.period
        std = poisson_noise_multiplier_estimate(self._epsilon, self.goal.delta, rate, self.period)
        return _level(np.eye(self.period), std)

    def _rough(self, strategy: Strategy) -> float:
        return _rough(self.period, strategy, self._epsilon, self.goal.delta)

    def _gram(self, strategy: Strategy) -> Array:
        return bins_bound(strategy, self.period).gram

    @cached_property
    def _sampling(self) -> BallsInBins:
        return BallsInBins(self.setting.examples, self.period, self.n)

    @property
    def _epsilon(self) -> float:
        if self.goal.epsilon is None:
            raise ValueError("noise is searched for where an epsilon is given.")
        return self.goal.epsilon


@lru_cache(maxsize=64)
def _fading(n: int, steps: int, buffers: int) -> Strategy | None:
    """The best BLT for so many steps, over n; None if it cannot be shown non-negative."""
    found = cast(BLT, designs_of(PlanObjective(prefix_sum(steps))).blt(buffers))
    strategy = ColumnNormalized(BLT(n, found.scale, found.decay))
    return strategy if strategy.structure.nonnegative else None


def _level(gram: Array, std: float) -> float:
    """Logarithm of the mean of exp(_TILT <m_i, m_j> / s^2): about how well bins are told apart."""
    rows = np.linspace(0, len(gram) - 1, min(_ROWS, len(gram))).astype(int)
    tilted = gram[rows] * (_TILT / std**2)
    top = float(tilted.max())
    return top + math.log(float(np.exp(tilted - top).mean()))


@lru_cache(maxsize=64)
def _rough(bins: int, strategy: Strategy, epsilon: float, delta: float) -> float:
    """A noise std some per cent above the least: by chains, and classes where these may give much less.

    That is where few bands leave bins that do not overlap, too.
    """
    overlapping = 2 * strategy.structure.bands > bins
    chained = overlapping and epsilon < CLASSES_FROM and bins > CLASSES_UP_TO
    quick = BinsBound(bins_bound(strategy, bins).gram, classes=() if chained else None, renyi=False)
    return quick.rough_noise_std(epsilon, delta)


@may_keep_goal.register
def _(sampling: BallsInBins, candidate: Candidate, goal: Goal, std: float) -> bool:
    if goal.epsilon is None:
        return True
    return bins_bound(candidate.strategy, sampling.bins).keeps(goal.epsilon, goal.delta, std)


@tightened_noise_std.register
def _(sampling: BallsInBins, candidate: Candidate, goal: Goal, std: float) -> float:
    if goal.epsilon is None:
        return std
    return _tightened(sampling.bins, candidate.strategy, goal.epsilon, goal.delta)


@lru_cache(maxsize=64)
def _tightened(bins: int, strategy: Strategy, epsilon: float, delta: float) -> float:
    """Searched for from the rough one, so that it does not depend on what else is compared."""
    start = ABOUT * _rough(bins, strategy, epsilon, delta)
    return bins_bound(strategy, bins).noise_std(epsilon, delta, start=start, tolerance=SLACK)
