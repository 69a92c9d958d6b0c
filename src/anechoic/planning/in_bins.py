"""The candidates in balls in bins, by the bounds without sampling error."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import cast

from anechoic.accounting import random_allocation_noise_multiplier
from anechoic.accounting.balls_in_bins.accountant import BallsInBinsAccountant
from anechoic.accounting.balls_in_bins.bound import BinsBound, bins_gram
from anechoic.accounting.balls_in_bins.mixture import Mixture
from anechoic.optimize import blt
from anechoic.planning.amplified import NOISE_UP_TO, Amplified
from anechoic.planning.bands import FAR, powers_of_two
from anechoic.planning.calibrated import little_more_than_needed, may_do_with
from anechoic.planning.records import Candidate, Goal
from anechoic.sampling import BallsInBins
from anechoic.strategies import BLT, ColumnNormalized, Strategy
from anechoic.workloads import prefix_sum

#: Most bins for which the bound of balls in bins without sampling error is computed.
BINS_UP_TO = 1024
#: Passes up to which that bound can be the better one, for bands and for buffers: an example draws its bin
#: once for all of them.
PASSES_IN_BINS, PASSES_BUFFERED = 4, 64
#: The bound gives about so much more noise than the estimate by which bins are ranked, and at least so much.
MORE, LEAST = 1.08, 0.94
#: How far below the goal the epsilon of a costly calibration may stay.
SLACK = 0.005
#: Buffers of a BLT in bins, and the parts of a pass that it is designed for.
_BUFFERS = 3
_PARTS = (0.25, 1.0)
#: Samples of the estimate that ranks them: the same ones every time.
_SAMPLES = 500
_ROUGH = 1e-3  # relative, of the noise by which numbers of bands are compared


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
        """Orthogonal means: an example hides in one of period // bands places."""
        designs, most = self.setting.designs, min(self.n, self.period // 2)
        scores: dict[int, float] = {}
        for bands in powers_of_two(most):
            if bands > 1:
                scores[self.period // bands] = designs.error(bands) * self._noise(self.period // bands)
                if scores[self.period // bands] > FAR * min(scores.values()):
                    break
        rows = self.drawn.room.rows
        fitting = {p: value for p, value in scores.items() if rows is None or self.period // p <= rows}
        if fitting:
            strategy = designs.toeplitz(self.period // min(fitting, key=lambda p: fitting[p]))
            if strategy.structure.nonnegative:
                yield self._candidate(strategy, self._estimate(strategy))

    def _noise(self, places: int) -> float:
        """An upper bound: one of `places` orthogonal means, each of `passes` participations."""
        goal = self.goal
        if goal.epsilon is None:
            raise ValueError("noise is searched for where an epsilon is given.")
        return math.sqrt(self.passes) * random_allocation_noise_multiplier(
            goal.epsilon, goal.delta, places, places, _ROUGH
        )

    # -- buffers -------------------------------------------------------------------------------

    def _buffered(self) -> Iterable[Candidate]:
        """A BLT that fades within a part of a pass: its bins overlap, and Gauss-Markov chains bound that.

        Which part is decided by an estimate of the noise, from the same samples every time; the noise is
        that of the bound.
        """
        rows = self.drawn.room.rows
        if rows == 0:
            return
        buffers = min(_BUFFERS, self.n - 1, self.period - 1, _BUFFERS if rows is None else rows)
        ranked: list[tuple[float, float, Strategy]] = []
        for part in _PARTS:
            steps = max(buffers + 1, round(part * self.period))
            strategy = self._fading(steps, buffers)
            if strategy is None:
                continue
            std = self._estimate(strategy)
            ranked.append((std * self.setting.designs.rms(strategy), std, strategy))
        if ranked:
            _, std, strategy = min(ranked, key=lambda found: found[0])
            yield self._candidate(strategy, std)

    # -- noise ---------------------------------------------------------------------------------

    def _candidate(self, strategy: Strategy, estimate: float) -> Candidate:
        sampling, about = BallsInBins(self.setting.examples, self.period, self.n), MORE * estimate
        return Candidate(strategy, sampling, about, hope=LEAST / MORE, enough=about, costly=True)

    def _estimate(self, strategy: Strategy) -> float:
        """A point estimate of the least noise std, from the same samples every time: for rankings."""
        if self.goal.epsilon is None:
            raise ValueError("noise is searched for where an epsilon is given.")
        mixture = Mixture(bins_gram(strategy, self.period))
        return mixture.noise_std(self.goal.epsilon, self.goal.delta, samples=_SAMPLES)

    def _fading(self, steps: int, buffers: int) -> Strategy | None:
        """The best BLT for so many steps, over the whole run; None if it cannot be shown non-negative."""
        found = cast(BLT, blt(prefix_sum(steps), buffers=buffers, loss="rms").strategy)
        strategy = ColumnNormalized(BLT(self.n, found.scale, found.decay))
        return strategy if strategy.structure.nonnegative else None


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
