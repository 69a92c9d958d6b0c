"""A plan: what was compared, what was chosen, and why."""

from __future__ import annotations

from dataclasses import dataclass

from anechoic.mechanism import Mechanism
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
