"""Result of `plan`: what was compared, what was chosen, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anechoic.mechanism.mechanism import Mechanism
from anechoic.optimize.result import Optimized
from anechoic.planning.advice import Advice
from anechoic.planning.page import as_cell
from anechoic.planning.records import PlanRow
from anechoic.planning.table import plan_text
from anechoic.plots.plan import plan_figure


@dataclass(frozen=True)
class Plan:
    """A ranked table of candidates (best first) and the choice.

    Attributes:
        rows: the candidates, by predicted error.
        mechanism: the chosen one, calibrated.
        reason: why it was chosen.
        advice: the learning rate to try; None for a workload of the caller's, and for an optimizer that is
            planned for as "sums".
        drawn: DP-SGD on these batches, if they might be drawn in secret: what a plan in a fixed order is
            compared with; None where it is permitted, or somebody else forms the batches.
    """

    rows: tuple[PlanRow, ...]
    mechanism: Mechanism
    reason: str
    advice: Advice | None = None
    drawn: PlanRow | None = None

    @property
    def lines(self) -> tuple[PlanRow, ...]:
        """The rows of tables and pictures: the candidates, and below them `drawn`."""
        return self.rows if self.drawn is None else (*self.rows, self.drawn)

    @property
    def chosen(self) -> PlanRow:
        """The row of the choice."""
        return next(row for row in self.rows if row.chosen)

    def __repr__(self) -> str:
        return f"Plan(chosen={self.chosen.name!r}, rows={len(self.rows)}, mechanism={self.mechanism!r})"

    def __str__(self) -> str:
        return plan_text(self.lines, self.reason)

    def _repr_html_(self) -> str | None:
        return as_cell(self.lines, self.reason)

    def plot(self) -> Any:
        """Plot two pictures: predicted noise against memory, and the noise over the steps of the run.

        The first has a point a row: its mark is the class of the strategy, its colour the way batches are
        formed. Noise is relative to independent noise with the steps and batches of the choice. The second
        shows the std of the noise in the iterates of the choice, of independent noise, and of two others.

        Returns:
            A matplotlib `Figure` (of `anechoic[plot]`); its `savefig` writes it.
        """
        return plan_figure(self.lines)


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
