"""The candidates where nothing is drawn, or drawing is not used: a fixed order, or what somebody promises."""

from __future__ import annotations

from collections.abc import Iterable

from anechoic.mechanism.calibrate import calibrate
from anechoic.optimize import dense
from anechoic.planning.bands import powers_of_two
from anechoic.planning.designs import BANDED_UP_TO
from anechoic.planning.memory_budget import Room
from anechoic.planning.records import Candidate, Goal
from anechoic.planning.run_shape import Setting, buffered_schema, separation_of
from anechoic.strategies import ColumnNormalized, Identity, Output
from anechoic.strategies.base import Strategy

#: Longest run for which the best matrix of all is computed, and a BLT of several participations normalised.
DENSE_UP_TO = 64
NORMALIZED_BLT_UP_TO = 2048


class Unsampled:
    """Candidates of one setting whose batches carry no secret."""

    def __init__(self, setting: Setting, goal: Goal, room: Room) -> None:
        self.setting, self.goal, self.room = setting, goal, room
        self.sampling = setting.unsampled
        self.n, self.schema = self.sampling.steps, self.sampling.participation
        self.separation = separation_of(self.schema, self.n)

    def candidates(self, families: frozenset[str]) -> Iterable[Candidate]:
        """Those of the families, the ones beyond the room too; calibration is exact, and costs nothing."""
        goal = self.goal
        for strategy in self._strategies(families):
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

    def _strategies(self, families: frozenset[str]) -> Iterable[Strategy]:
        if "identity" in families:
            yield Identity(self.n)
        if "output" in families:
            yield Output(self.setting.workload)
        if "banded_toeplitz" in families and self.n <= BANDED_UP_TO:
            yield from self._banded()
        # where every step touches everybody nothing cancels
        if "blt" in families and self.n > 1 and (self.separation > 1 or len(families) == 1):
            yield from self._buffered()
        if "dense" in families and self.separation > 1 and self.n <= DENSE_UP_TO:
            yield self._dense()

    def _dense(self) -> Strategy:
        designs = self.setting.designs
        return dense(designs.workload, participation=self.schema, loss=designs.loss).strategy

    def _banded(self) -> Iterable[Strategy]:
        designs, most = self.setting.designs, min(self.n, self.separation)
        within = most if self.room.rows is None else min(most, self.room.rows)
        for bands in sorted({*powers_of_two(most), within}):
            if bands > 1:
                yield designs.toeplitz(bands)
        free = designs.free(min(within, designs.free_up_to))
        if free is not None:
            yield free

    def _buffered(self) -> Iterable[Strategy]:
        once = self.schema.max_participations_in(self.n) == 1
        for best in self.setting.designs.buffered(buffered_schema(self.schema)):
            yield best
            if once or self.n <= NORMALIZED_BLT_UP_TO:
                yield ColumnNormalized(best)
