"""A plan: what was compared, what was chosen, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anechoic.mechanism.mechanism import Mechanism
from anechoic.optimize.result import Optimized
from anechoic.planning.records import PlanRow
from anechoic.planning.table import plan_text


@dataclass(frozen=True)
class Plan:
    """A ranked table of candidates (best first) and the choice.

    Attributes:
        rows: the candidates, by predicted error.
        mechanism: the chosen one, calibrated.
        reason: why it was chosen.
    """

    rows: tuple[PlanRow, ...]
    mechanism: Mechanism
    reason: str

    @property
    def chosen(self) -> PlanRow:
        """The row of the choice."""
        return next(row for row in self.rows if row.chosen)

    def __str__(self) -> str:
        return plan_text(self.rows, self.reason)


def mechanism_in(given: Any) -> Any:
    """What is given as a mechanism; of a plan its choice.

    Raises:
        ValueError: for what an optimiser returned, which has no noise yet.
    """
    if isinstance(given, Optimized):
        raise ValueError(
            f"mechanism is what an optimiser returned ({given.strategy.describe()}), which has no noise yet:"
            " pass anechoic.calibrate(optimized.strategy, sampling=…, epsilon=…, delta=…)."
        )
    return given.mechanism if isinstance(given, Plan) else given
