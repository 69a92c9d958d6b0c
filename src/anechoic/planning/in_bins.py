"""The candidates in balls in bins, by the bounds without sampling error."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import cast

from anechoic.accounting.balls_in_bins.accountant import BallsInBinsAccountant
from anechoic.accounting.balls_in_bins.bound import BinsBound, bins_gram
from anechoic.accounting.random_allocation.epsilon import random_allocation_noise_multiplier
from anechoic.planning.amplified import NOISE_UP_TO, Amplified
from anechoic.planning.bands import FAR, powers_of_two
from anechoic.planning.calibrated import little_more_than_needed, may_do_with
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
_BUFFERS = (1, 2)
_PARTS = (0.125, 0.25, 0.5, 1.0)
#: Numbers of bands are compared by an upper bound that is quick, to this precision, and within this of the
#: least by another that is less so.
_ROUGH, _NEAR = 1e-3, 1.15


class InBins:
    """Candidates of one setting in balls in bins, beside those of the other schemes."""

    def __init__(self, drawn: Amplified) -> None:
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
            yield from self._banded()
        if "blt" in families and self.passes <= PASSES_BUFFERED:
            yield from self._buffered()

    # -- bands ---------------------------------------------------------------------------------

    def _banded(self) -> Iterable[Candidate]:
        """Orthogonal means: an example hides in one of period // bands places.

        What has less error than all smaller ones is tried where it fits, so that more room loses nothing.
        """
        designs = self.setting.designs
        most = designs.most_bands(min(self.n, self.period // 2))
        rows, scores = self.drawn.room.rows, dict[int, float]()
        for tried in powers_of_two(most):
            places = self.period // max(1, tried)
            bands = self.period // places
            if bands == 1 or (rows is not None and bands > rows):
                continue
            value = designs.error(bands) * self._noise(places)
            least = min(scores.values(), default=float("inf"))
            if value > FAR * least:
                break
            if value < _NEAR * least:
                scores[bands] = value
        least = min(scores.values(), default=float("inf"))
        for bands in [bands for bands, value in scores.items() if value <= _NEAR * least]:
            strategy = designs.toeplitz(bands)
            if strategy.structure.nonnegative:
                yield self._candidate(strategy, BinsBound(bins_gram(strategy, self.period), renyi=False))

    def _noise(self, places: int) -> float:
        """An upper bound: one of `places` orthogonal means, each of `passes` participations."""
        return math.sqrt(self.passes) * random_allocation_noise_multiplier(
            self._epsilon, self.goal.delta, places, places, _ROUGH
        )

    # -- buffers -------------------------------------------------------------------------------

    def _buffered(self) -> Iterable[Candidate]:
        """BLTs that fade within a part of a pass: their bins overlap, and Gauss-Markov chains bound that."""
        rows = self.drawn.room.rows
        for buffers in _BUFFERS:
            if buffers >= min(self.n, self.period) or (rows is not None and buffers > rows):
                return
            for steps in sorted({max(buffers + 1, round(part * self.period)) for part in _PARTS}):
                strategy = self._fading(steps, buffers)
                if strategy is not None:
                    yield self.candidate(strategy)

    def candidate(self, strategy: Strategy) -> Candidate:
        """A strategy without negative coefficients in bins."""
        return self._candidate(strategy, self._quick(strategy))

    def _fading(self, steps: int, buffers: int) -> Strategy | None:
        """The best BLT for so many steps, over the whole run; None if it cannot be shown non-negative."""
        found = cast(BLT, designs_of(PlanObjective(prefix_sum(steps))).blt(buffers))
        strategy = ColumnNormalized(BLT(self.n, found.scale, found.decay))
        return strategy if strategy.structure.nonnegative else None

    # -- noise ---------------------------------------------------------------------------------

    def _quick(self, strategy: Strategy) -> BinsBound:
        """Chains, and classes where these may give much less."""
        gram = bins_gram(strategy, self.period)
        chained = self._epsilon < CLASSES_FROM and self.period > CLASSES_UP_TO
        return BinsBound(gram, classes=() if chained else None, renyi=False)

    @property
    def _epsilon(self) -> float:
        if self.goal.epsilon is None:
            raise ValueError("noise is searched for where an epsilon is given.")
        return self.goal.epsilon

    def _candidate(self, strategy: Strategy, bound: BinsBound) -> Candidate:
        rough = bound.rough_noise_std(self._epsilon, self.goal.delta)
        sampling = BallsInBins(self.setting.examples, self.period, self.n)
        return Candidate(
            strategy, sampling, ABOUT * rough, hope=LEAST / ABOUT, enough=ABOUT * rough, costly=True
        )


@lru_cache(maxsize=4)
def _bound(sampling: BallsInBins, strategy: Strategy, adjacency: str) -> BinsBound:
    """The bound of the accountant; its Gram matrix takes a while."""
    return BallsInBinsAccountant(strategy, sampling, adjacency, "deterministic").deterministic


@may_do_with.register
def _(sampling: BallsInBins, candidate: Candidate, goal: Goal, std: float) -> bool:
    return (
        goal.epsilon is None
        or _bound(sampling, candidate.strategy, goal.adjacency).epsilon(goal.delta, std) <= goal.epsilon
    )


@little_more_than_needed.register
def _(sampling: BallsInBins, candidate: Candidate, goal: Goal, std: float) -> float:
    """Searched for from `std`."""
    if goal.epsilon is None:
        return std
    return _bound(sampling, candidate.strategy, goal.adjacency).noise_std(
        goal.epsilon, goal.delta, start=std, tolerance=SLACK
    )
