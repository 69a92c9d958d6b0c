"""Plans for batches that others form and promise: of rounds, and of streams.

The candidates are those that `plan` compares in a fixed order. At equal guarantee the error of one is its
error for unit noise times its sensitivity, so that nothing is calibrated but the choice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from anechoic.mechanism.mechanism import Mechanism
from anechoic.mechanism.rows import on_finest_grid
from anechoic.participation.base import Participation
from anechoic.planning.calibration import calibrate_to_goal
from anechoic.planning.designs import designs_of
from anechoic.planning.fixed_order_candidates import FixedOrderCandidates
from anechoic.planning.memory_budget import MemoryBudget
from anechoic.planning.objective import PlanObjective
from anechoic.planning.records import Goal
from anechoic.planning.run_shape import buffered_schema
from anechoic.planning.user_choices import Restriction
from anechoic.sampling import External
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.strategies import Identity
from anechoic.strategies.base import Strategy


@dataclass(frozen=True)
class ExternalSetting:
    """What is planned for, and what is compared.

    Attributes:
        objective: whose error counts.
        participation: what is promised of a unit.
        wanted: strategies that are permitted.
        room: for rows of noise state.
        bounded: whether `room` bounds what is compared, and not only what is tried.
        alike: relative difference of errors that a smaller noise state is worth.
        free_rows: of noise state, among which the error decides; None where the first one is taken, as errors
            that are alike end a little apart elsewhere.
        few: whether only strategies of few numbers are compared: independent noise, BLTs, those from outside.
    """

    objective: PlanObjective
    participation: Participation
    wanted: Restriction
    room: MemoryBudget
    bounded: bool = True
    alike: float = 0.0
    free_rows: int | None = None
    few: bool = False

    def best(self) -> Strategy | None:
        """Return the one of least noise state among those of about the least error; None if none fits."""
        designs = designs_of(self.objective)
        found: list[tuple[int, float, Strategy]] = []
        for strategy in list(self._candidates()) or [Identity(self.objective.workload.n)]:
            rows = strategy.recurrence().rows
            if not self.bounded or rows == 0 or self.room.fits(rows):
                error = designs.of(strategy) * sensitivity(strategy, self.participation).value
                found.append((max(self.free_rows or 0, rows), error, strategy))
        most = (1 + self.alike) * min((error for _, error, _ in found), default=0.0)
        near = [one for one in found if one[1] <= most]
        deciding = 1 if self.free_rows is None else 2
        return min(near, key=lambda one: one[:deciding])[2] if near else None

    def _candidates(self) -> Iterable[Strategy]:
        designs, schema = designs_of(self.objective), self.participation
        if self.few:
            yield Identity(designs.workload.n)
            yield from designs.buffered(buffered_schema(schema))
        else:
            yield from FixedOrderCandidates(designs, schema, self.room).of(self.wanted.families)
        yield from self.wanted.made(designs.workload, schema, designs.loss)


def calibrated_in_integers(goal: Goal, strategy: Strategy, sampling: External, dimension: int) -> Mechanism:
    """Return the strategy with the noise that the goal asks for, on the finest grid that can round it."""
    return on_finest_grid(lambda bits: calibrate_to_goal(goal, strategy, sampling, grid_bits=bits), dimension)
