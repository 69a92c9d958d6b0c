"""The candidates whose noise Monte Carlo finds: balls in bins and min-sep sampling, by point estimates."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

from anechoic.accounting.balls_in_bins.bound import bins_gram
from anechoic.accounting.balls_in_bins.mixture import Mixture
from anechoic.accounting.laws.tilted import TiltedPair
from anechoic.accounting.min_sep.pair import MinSepPair
from anechoic.optimize import balls_in_bins
from anechoic.planning.bands import powers_of_two
from anechoic.planning.memory_budget import Room
from anechoic.planning.records import Candidate, Goal
from anechoic.planning.run_shape import Setting
from anechoic.sampling import BallsInBins, MinSepSampling
from anechoic.sampling.base import Sampling
from anechoic.strategies.base import Strategy

#: Numbers that the samples of one estimate take, and samples at least and at most.
_NUMBERS = 2_000_000
_SAMPLES = (2000, 20_000)
#: Most bins, and steps, for which noise is estimated.
BINS_UP_TO = 2048
STEPS_UP_TO = 20_000
#: The best numbers of bands of balls in bins whose coefficients are optimised too.
_OPTIMISED = 1
#: By how much an estimate exceeds the crossing, as room for the confidence bound of a verification.
MARGIN = 1.01


class NoiseEstimates:
    """Candidates of one setting under a goal, their noise estimated."""

    def __init__(self, setting: Setting, goal: Goal, room: Room) -> None:
        self.setting, self.goal, self.room = setting, goal, room
        self.n, self.period = setting.fixed.steps, setting.fixed.period

    def candidates(self) -> list[Candidate]:
        """The best of each scheme by their estimates, and what was tried on the way."""
        if (
            self.goal.epsilon is None
            or self.goal.adjacency == "replace_one"
            or min(self.n, self.period) < 2
            or self.n > STEPS_UP_TO
        ):
            return []
        found: list[Candidate] = []
        if self.period <= BINS_UP_TO:
            found += self._in_bins(self.goal.epsilon)
        return [*found, *self._separated(self.goal.epsilon)]

    def _within(self, bands: int) -> int:
        """`bands`, or as many as the noise state has room for."""
        return bands if self.room.rows is None else min(bands, self.room.rows)

    def _in_bins(self, epsilon: float) -> Iterable[Candidate]:
        sampling = BallsInBins(self.setting.examples, self.period, self.n)

        def estimated(strategy: Strategy) -> Candidate:
            return self._estimated(strategy, sampling, lambda: Mixture(bins_gram(strategy, self.period)))

        most = self._within(min(self.n, self.period))
        found = self._by_bands(most, lambda bands: estimated(self.setting.designs.toeplitz(bands)))
        for bands in sorted(found, key=lambda bands: found[bands][0])[:_OPTIMISED]:
            tuned = balls_in_bins(
                self.setting.workload,
                bins=self.period,
                epsilon=epsilon,
                delta=self.goal.delta,
                bands=bands,
                loss=self.setting.designs.loss,
                rounds=2,
            ).strategy
            yield estimated(tuned)
        yield from (candidate for _, candidate in found.values())

    def _separated(self, epsilon: float) -> Iterable[Candidate]:
        examples, batch_size = self.setting.examples, self.setting.batch_size
        most = self._within(min(self.n, examples // batch_size))

        def estimated(bands: int) -> Candidate:
            sampling = MinSepSampling(examples, batch_size, bands, self.n)
            strategy = self.setting.designs.toeplitz(bands)
            return self._estimated(strategy, sampling, lambda: MinSepPair(strategy, sampling))

        yield from (candidate for _, candidate in self._by_bands(most, estimated).values())

    def _by_bands(
        self, most: int, estimated: Callable[[int], Candidate]
    ) -> dict[int, tuple[float, Candidate]]:
        """Predicted error and candidate by bands: powers of two while it falls, and around the least."""
        found: dict[int, tuple[float, Candidate]] = {}

        def tried(bands: int) -> float:
            if bands not in found:
                designs, candidate = self.setting.designs, None
                if designs.toeplitz(bands).structure.nonnegative:
                    candidate = estimated(bands)
                    found[bands] = (designs.error(bands) * (candidate.noise_std or 0.0), candidate)
            return found[bands][0] if bands in found else float("inf")

        powers = [b for b in powers_of_two(most) if b > 1]
        values: list[float] = []
        for bands in powers:
            values.append(tried(bands))
            if values[-1] > 1.2 * min(values):
                break
        if len(values) > 1:
            best = values.index(min(values))
            around = powers[max(best - 1, 0) : min(best + 2, len(values))]
            for low, high in pairwise(around):
                tried(round((low * high) ** 0.5))
        return found

    def _estimated(self, strategy: Strategy, sampling: Sampling, pair: Callable[[], TiltedPair]) -> Candidate:
        if self.goal.epsilon is None:
            raise ValueError("an estimate of the noise needs epsilon.")
        drawn = pair()
        samples = max(_SAMPLES[0], min(_SAMPLES[1], _NUMBERS // drawn.numbers))
        std = drawn.noise_std(self.goal.epsilon, self.goal.delta, samples=samples)
        return Candidate(strategy, sampling, MARGIN * std, noise_std=MARGIN * std)
