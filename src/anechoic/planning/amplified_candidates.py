"""Candidates for secret batches: independent noise, and bands by their predicted error."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Literal

from anechoic.accounting.poisson.search import poisson_noise_multiplier_estimate
from anechoic.accounting.random_allocation.epsilon import random_allocation_noise_multiplier
from anechoic.mechanism.mechanism import Mechanism
from anechoic.planning.bands import grid
from anechoic.planning.calibration import tightened_noise_std
from anechoic.planning.designs import BANDED_UP_TO
from anechoic.planning.memory_budget import MemoryBudget
from anechoic.planning.records import Candidate, Goal
from anechoic.planning.run_shape import RunShape
from anechoic.sampling import CyclicPoisson, FixedOrder, Poisson, RandomAllocation
from anechoic.sampling.base import Sampling
from anechoic.strategies import Identity
from anechoic.strategies.base import Strategy

#: Numbers of bands whose approximate error is this close to the least are computed in full.
NEAR = 1.003
#: Free columns gain less than this (up to 1.6 % were seen), and are tried at these numbers of bands.
FREE_NEAR = 1.02
FREE = frozenset({2, 3, 4, 6, 8, 11, 16, 23, 32})
#: Most steps in a pass for which random allocation is computed.
PERIOD_UP_TO = 3000
#: Most noise (of Poisson sampling) for which it is computed: its grids grow with its square, and the schemes
#: differ by less than a per cent there.
NOISE_UP_TO = 100.0
#: Relative, of the noise of random allocation: where it is compared, and where it may be the best.
_ROUGH, _FINE = 2e-3, 1e-4
_ESTIMATE = 1 - 3e-4  # the least that calibration may give of an estimate


class AmplifiedCandidates:
    """Candidates of one setting under a goal (epsilon, delta)."""

    def __init__(self, setting: RunShape, goal: Goal, room: MemoryBudget) -> None:
        self.setting, self.goal, self.room = setting, goal, room
        self.n = setting.fixed.steps
        self.period = setting.period
        #: examples in expectation must fill every group
        self.most_groups = min(self.n, max(1, setting.examples // setting.batch_size))

    def candidates(
        self, families: frozenset[str], takes: Callable[[type[Sampling]], bool]
    ) -> Iterable[Candidate]:
        """Those of the families, the ones beyond the room too, each with its sampling.

        Args:
            families: of strategies.
            takes: whether candidates of a class of schemes are wanted; others may come too.
        """
        if "identity" in families:
            yield from self._independent(families, takes(RandomAllocation))
        if not takes(CyclicPoisson) and not takes(FixedOrder):
            return
        if "banded_toeplitz" in families and self.n <= BANDED_UP_TO and self.goal.epsilon is not None:
            yield from self._cyclic()

    # -- independent noise ---------------------------------------------------------------------

    def _independent(self, families: frozenset[str], allocated: bool) -> Iterable[Candidate]:
        setting, goal, identity = self.setting, self.goal, Identity(self.n)
        sampling = Poisson(setting.examples, setting.batch_size, self.n)
        if goal.noise_multiplier is not None:  # as given, and not found again from its epsilon
            std = goal.noise_multiplier
            made = Mechanism(identity, sampling, std, goal.clip_norm, goal.adjacency, goal.unit, goal.delta)
            yield Candidate(identity, sampling, std, made=made)
            if families == {"identity"}:  # with that noise, and not with other noise of the same epsilon
                return
        else:
            yield Candidate(identity, sampling, self.noise(1), hope=_ESTIMATE)
        if (
            allocated
            and goal.epsilon is not None
            and goal.adjacency != "replace_one"
            and 1 < self.period <= PERIOD_UP_TO
            and self.noise(1) <= NOISE_UP_TO
        ):
            std = random_allocation_noise_multiplier(goal.epsilon, goal.delta, self.period, self.n, _ROUGH)
            draw = RandomAllocation(setting.examples, self.period, self.n)
            yield Candidate(identity, draw, std, hope=1 - 2 * _ROUGH, enough=std)

    # -- cyclic Poisson sampling ---------------------------------------------------------------

    def noise(self, groups: int) -> float:
        """About the noise multiplier under cyclic Poisson sampling; at rate 1 that is a fixed order."""
        goal, setting = self.goal, self.setting
        if goal.epsilon is None:
            raise ValueError("noise is searched for where an epsilon is given.")
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
    def least_noise(self) -> dict[int, tuple[float, int]]:
        """The least noise of at least b groups, and their number, for every b of the grid from 2 on."""
        found: dict[int, tuple[float, int]] = {}
        best = (float("inf"), 0)
        for groups in reversed(grid(self.n, self.most_groups)):
            if groups > 1:
                best = min(best, (self.noise(groups), groups))
                found[groups] = best
        return dict(reversed(found.items()))

    def _cyclic(self) -> Iterable[Candidate]:
        """The best bands within the room and without it, those near them, and some for a smaller room.

        As many groups as bands, or more where they need less noise. What is tried does not depend on the
        room, save that as many bands as it holds are tried too: so more room never makes the choice worse.
        """
        if self.most_groups < 2:
            return
        most = self.setting.designs.most_bands(self.most_groups)
        curve = self.setting.designs.curve(most)
        score = {b: curve(b) * noise for b, (noise, _) in self.least_noise.items() if b <= most}
        wanted, free = set(frontier(score)), set[int]()
        for limit in {self.room.rows, None}:
            fitting = {b: value for b, value in score.items() if limit is None or b <= limit}
            if fitting:
                least = min(fitting.values())
                wanted |= {b for b, value in fitting.items() if value <= NEAR * least}
                free |= {b for b, value in fitting.items() if b in FREE and value <= FREE_NEAR * least}
        for bands in sorted(wanted | free):
            yield from self._with(bands, *self.least_noise[bands], free=bands in free)
        rows = self.room.rows
        if rows is not None and 1 < rows < most and rows not in self.least_noise:
            yield from self._with(rows, *self.least_noise[min(b for b in self.least_noise if b > rows)])

    def _with(self, bands: int, noise: float, groups: int, *, free: bool = False) -> Iterable[Candidate]:
        designs = self.setting.designs
        yield Candidate(designs.toeplitz(bands), self._grouped(groups), noise, hope=_ESTIMATE)
        found = designs.free(bands) if free else None
        if found is not None:
            yield self.in_groups(found, noise, groups)

    def in_groups(self, strategy: Strategy, noise: float, groups: int) -> Candidate:
        """A strategy of at most so many bands, drawn in groups whose noise multiplier is about `noise`."""
        std = noise * strategy.largest_column_norm()
        return Candidate(strategy, self._grouped(groups), std, hope=_ESTIMATE)


@tightened_noise_std.register
def _(sampling: RandomAllocation, candidate: Candidate, goal: Goal, std: float) -> float:
    if goal.epsilon is None:
        return std
    least = random_allocation_noise_multiplier(
        goal.epsilon, goal.delta, sampling.period, sampling.steps, _FINE
    )
    return min(std, least * candidate.strategy.largest_column_norm())


def frontier(score: dict[int, float]) -> list[int]:
    """Of numbers of bands, ascending, at most one in each octave that is better than all smaller ones."""
    found: dict[int, int] = {}
    least = float("inf")
    for bands in sorted(score):
        if score[bands] < least:
            least = score[bands]
            found[bands.bit_length()] = bands
    return list(found.values())
