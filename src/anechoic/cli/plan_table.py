"""A plan on the screen: the best candidates, the choice and independent noise."""

from __future__ import annotations

from anechoic.planning.families import family
from anechoic.planning.records import PlanRow
from anechoic.planning.result import Plan
from anechoic.planning.table import paragraphs, table


def print_plan(plan: Plan, *, rows: int | None = 12, why: bool = False) -> None:
    """Print the best `rows` candidates (all for None), what `selected` adds, and why, or three sentences."""
    shown = selected(plan, rows)
    left = len(plan.lines) - len(shown)
    more = [f"{left} more candidates, ranked below those shown: --all shows them."] * (left > 0)
    said = plan.why() if why else paragraphs(plan.sentences("--why"), "\n")
    print("\n".join([*table(shown), *more, "", said]))


def selected(plan: Plan, rows: int | None) -> list[PlanRow]:
    """The first `rows` candidates, the chosen one, and the best with independent noise, in the same order."""
    if rows is None:
        return list(plan.lines)
    plain = next((row for row in plan.rows if family(row.mechanism.strategy) == "identity"), None)
    always = (plain, plan.drawn)
    return [
        row for i, row in enumerate(plan.lines) if i < rows or row.chosen or any(row is a for a in always)
    ]
