"""The candidates where batches may be drawn: bands tuned by the predicted error, with their sampling."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from typing import Literal

from anechoic.accounting import random_allocation_noise_multiplier
from anechoic.accounting.poisson.search import poisson_noise_multiplier_estimate
from anechoic.planning.bands import best_bands, powers_of_two
from anechoic.planning.designs import BANDED_UP_TO
from anechoic.planning.records import Candidate, Goal
from anechoic.planning.setting import Setting
from anechoic.sampling import BallsInBins, CyclicPoisson, Poisson, RandomAllocation, Sampling
from anechoic.strategies import Identity

#: Candidates whose predicted error is this close (relative) count as equal; the one with less memory wins.
TOLERANCE = 0.005
#: Most bins for which the bound of balls in bins without sampling error is computed.
BINS_UP_TO = 1024
#: Passes up to which that bound can be the better one: an example draws its bin once for all of them.
PASSES_IN_BINS = 4
#: The accountant may give so much less than the bound by which bins are compared with the other schemes.
HOPE = 1.35
#: Most steps in a pass for which random allocation is computed.
PERIOD_UP_TO = 3000
#: Most noise (of Poisson sampling) for which either is computed: their grids grow with its square, and the
#: schemes differ by less than a per cent there.
NOISE_UP_TO = 100.0
_ROUGH = 1e-3  # relative, of the noise by which numbers of bands are compared


class Amplified:
    """Candidates of one setting under a goal (epsilon, delta)."""

    def __init__(self, setting: Setting, goal: Goal) -> None:
        self.setting, self.goal = setting, goal
        self.n = setting.fixed.steps
        self.period = setting.fixed.period
        #: examples in expectation must fill every group
        self.most_groups = min(self.n, max(1, setting.examples // setting.batch_size))

    def candidates(self, name: str) -> Iterable[Candidate]:
        """Those of strategies "auto", "identity" or "banded_toeplitz", each with its sampling."""
        if name in ("auto", "identity"):
            yield from self._independent()
        if name in ("auto", "banded_toeplitz") and self.n <= BANDED_UP_TO:
            yield from self._cyclic()
            yield from self._in_bins()

    # -- independent noise ---------------------------------------------------------------------

    def _independent(self) -> Iterable[Candidate]:
        setting, identity = self.setting, Identity(self.n)
        yield Candidate(identity, Poisson(setting.examples, setting.batch_size, self.n))
        if self._bins_apply and 1 < self.period <= PERIOD_UP_TO and self._noise(1) <= NOISE_UP_TO:
            yield Candidate(identity, RandomAllocation(setting.examples, self.period, self.n))

    # -- cyclic Poisson sampling ---------------------------------------------------------------

    def _noise(self, groups: int) -> float:
        """About the noise multiplier under cyclic Poisson sampling; at rate 1 that is a fixed order."""
        goal, setting = self.goal, self.setting
        if goal.epsilon is None:
            raise ValueError("a search for the number of bands needs epsilon.")
        return poisson_noise_multiplier_estimate(
            goal.epsilon,
            goal.delta,
            min(1.0, setting.batch_size * groups / setting.examples),
            -(-self.n // groups),
            adjacency=goal.adjacency,
        )

    def _grouped(self, groups: int) -> Sampling:
        """Cyclic Poisson sampling; a fixed order where every batch is a whole group, and nothing secret."""
        grouping: Literal["balanced", "independent"] = "balanced"
        if self.goal.adjacency == "add_or_remove":
            grouping = "independent"
        sampling = CyclicPoisson(
            self.setting.examples, self.setting.batch_size, groups, self.n, grouping=grouping
        )
        fixed = self.setting.fixed
        return fixed if sampling.rate == 1.0 and self.goal.adjacency != "add_or_remove" else sampling

    @cached_property
    def _tried(self) -> dict[int, float]:
        """Predicted error by bands, as many as groups."""
        most = self.setting.at_most(self.most_groups)
        if most < 2:
            return {}
        return best_bands(
            lambda bands: self.setting.designs.error(bands) * self._noise(bands), steps=self.n, most=most
        )

    def _cyclic(self) -> Iterable[Candidate]:
        designs = self.setting.designs
        if self.goal.epsilon is None:  # the noise is given: nothing to be tuned
            most = self.setting.at_most(self.most_groups)
            for bands in powers_of_two(most) if most > 1 else ():
                yield Candidate(designs.toeplitz(bands), self._grouped(bands))
            return
        tried = self._tried
        if not tried:
            return
        best = min(tried, key=lambda bands: tried[bands])
        enough = min(b for b in tried if tried[b] <= tried[best] * (1 + TOLERANCE))
        shown = sorted({best, enough, *(b for b in tried if _is_power_of_four(b)), max(tried)})
        for bands in shown:
            if bands > 1:
                yield Candidate(designs.toeplitz(bands), self._grouped(bands))
        for bands in {best, enough}:
            free = designs.free(bands)
            if free is not None:
                yield Candidate(free, self._grouped(bands))
        yield from self._more_groups(max(tried))
        yield from self._fixed_order()

    def _more_groups(self, bands: int) -> Iterable[Candidate]:
        """The most bands that the memory allows, in more groups: for runs that amplification hardly helps.

        Without a limit of the memory more groups than bands gain nothing: as many bands as groups have the
        same noise and less error.
        """
        if bands == self.most_groups:
            return
        groups = [
            g for g in {-(-self.n // t) for t in range(1, -(-self.n // bands))} if g <= self.most_groups
        ]
        nearest = sorted(groups)[:1] + sorted(groups)[-1:] + [self.most_groups]
        best = min(nearest, key=self._noise)
        if best > bands and self._noise(best) < self._noise(bands):
            yield Candidate(self.setting.designs.toeplitz(bands), self._grouped(best))

    def _fixed_order(self) -> Iterable[Candidate]:
        """Without sampling: as many bands as a pass has steps, where N / B is not a whole number."""
        fixed = self.setting.fixed
        bands = self.setting.at_most(min(self.n, fixed.period))
        if bands > self.most_groups and self.goal.adjacency != "add_or_remove":
            yield Candidate(self.setting.designs.toeplitz(bands), fixed)

    # -- balls in bins -------------------------------------------------------------------------

    @property
    def _bins_apply(self) -> bool:
        return self.goal.adjacency != "replace_one" and self.goal.epsilon is not None

    def _in_bins(self) -> Iterable[Candidate]:
        """Balls in bins: without sampling error, an example hides in one of period // bands places."""
        passes = -(-self.n // self.period)
        few = self.period <= BINS_UP_TO and passes <= PASSES_IN_BINS
        most = self.setting.at_most(min(self.n, self.period // 2))
        if not self._bins_apply or not few or most < 2 or self._noise(1) > NOISE_UP_TO:
            return
        designs, noise = self.setting.designs, self._noise_in_bins

        def score(places: int) -> float:
            return designs.error(self.period // places) * noise(places, passes)

        tried: dict[int, float] = {}
        for bands in [b for b in powers_of_two(most) if b > 1]:
            places = self.period // bands
            tried[places] = score(places)
            if tried[places] > 1.1 * min(tried.values()):
                break
        best = min(tried, key=lambda places: tried[places])
        for factor in (0.7, 1.4):
            places = max(2, round(best * factor))
            if self.period // places <= most and places not in tried:
                tried[places] = score(places)
        best = min(tried, key=lambda places: tried[places])
        others = [*self._tried.values(), designs.error(1) * self._noise(1)]
        if tried[best] > HOPE * min(others):
            return
        strategy = designs.toeplitz(self.period // best)
        if strategy.structure.nonnegative:
            sampling = BallsInBins(self.setting.examples, self.period, self.n)
            enough = noise(best, passes) * strategy.largest_column_norm() * (1 + 1e-6)
            yield Candidate(strategy, sampling, enough=enough)

    def _noise_in_bins(self, places: int, passes: int) -> float:
        """An upper bound: one of `places` orthogonal means, each of `passes` participations."""
        goal = self.goal
        if goal.epsilon is None:
            raise ValueError("a search for the number of bands needs epsilon.")
        return math.sqrt(passes) * random_allocation_noise_multiplier(
            goal.epsilon, goal.delta, places, places, _ROUGH
        )


def _is_power_of_four(bands: int) -> bool:
    return bands > 1 and bands & (bands - 1) == 0 and bands.bit_length() % 2 == 1
