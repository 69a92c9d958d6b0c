"""The candidates where nothing is drawn, or drawing is not used: a fixed order, or what somebody promises."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from anechoic.mechanism.calibrate import calibrate
from anechoic.planning.memory_budget import Room
from anechoic.planning.records import Candidate, Goal
from anechoic.planning.run_shape import Setting
from anechoic.planning.strategies import Strategies
from anechoic.strategies.base import Strategy


class Unsampled:
    """Candidates of one setting whose batches carry no secret."""

    def __init__(self, setting: Setting, goal: Goal, room: Room) -> None:
        self.sampling, self.goal = setting.unsampled, goal
        self.strategies = Strategies(setting.designs, self.sampling.participation, room)

    def candidates(self, families: frozenset[str], given: Iterable[Strategy] = ()) -> Iterable[Candidate]:
        """Those of the families, the ones beyond the room too; calibration is exact, and costs nothing."""
        goal = self.goal
        for strategy in chain(self.strategies.of(families), given):
            made = calibrate(
                strategy,
                sampling=self.sampling,
                epsilon=goal.epsilon,
                noise_multiplier=goal.noise_multiplier if goal.epsilon is None else None,
                delta=goal.delta,
                clip_norm=goal.clip_norm,
                adjacency=goal.adjacency,
                unit=goal.unit,
            )
            yield Candidate(strategy, self.sampling, made.noise_std, made=made)
