"""Result of `plan`: what was compared, what was chosen, and why."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from anechoic.mechanism.mechanism import Mechanism
from anechoic.optimize.result import Optimized
from anechoic.planning.advice import Advice
from anechoic.planning.page import as_cell
from anechoic.planning.records import PlanRow
from anechoic.planning.table import held, notes, paragraphs, table
from anechoic.plots.plan import plan_figure
from anechoic.statement.rounding import round_up


@dataclass(frozen=True)
class Plan:
    """A ranked table of candidates (best first) and the choice: what `plan` returns, and `engine.plan` is.

    `print` shows the table and three sentences, `why()` explains both; notebooks show pictures too.

    Attributes:
        rows: the candidates, by predicted error.
        mechanism: the chosen one, calibrated: for `make_private(mechanism=…)`, `to_json` or `report`.
        reason: why it was chosen, and what else was to be had.
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
        return "\n".join([*table(self.lines), "", paragraphs(self.sentences(), "\n")])

    def sentences(self, more: str = "plan.why()") -> list[str]:
        """Say whether it is worth it and beside what, what was chosen, and the rate to try."""
        row, scheme = self.chosen, self.mechanism.sampling.describe(self.mechanism.unit)
        run = f"{re.split('[:,]', scheme)[0]}, {row.mechanism.steps} steps of {row.batch_size:g}"
        worth = self.reason.split(". ")[0].rstrip(".")
        if self.drawn is not None:
            ratio = self.drawn.predicted / row.predicted
            worth += f"; DP-SGD on batches that are drawn in secret would have {ratio:.3g} times its error"
        first = [f"{worth}."] * (not worth.startswith("Chosen"))
        rate = "" if self.advice is None else f"{str(self.advice).split('. ')[0].rstrip('.')}; "
        kept = f"({round_up(self.mechanism.epsilon())}, {self.mechanism.delta:g})-DP"
        chosen = f"Chosen: {row.name}, {run}, {kept}; noise state {held(row)}."
        # where the learning rate at hand decided, the reason has a sentence of two clauses on it
        other = re.search(r"[^.]+ learning rate of [^;]+; [^:]+: give lr=\S+ and plan again", self.reason)
        again = f"{other[0].strip()}; " if other else ""
        return [*first, chosen, f"{again or rate}{more} has the reasons."]

    def why(self) -> str:
        """Return why this is the choice, what else was to be had, and what the columns of the table mean."""
        return paragraphs([self.reason, *notes(self.lines)])

    def _repr_html_(self) -> str | None:
        return as_cell(self)

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
