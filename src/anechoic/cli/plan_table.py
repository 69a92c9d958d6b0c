"""A plan on the screen: the best candidates, the choice and independent noise."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from anechoic.planning.families import family
from anechoic.planning.records import PlanRow
from anechoic.planning.result import Plan
from anechoic.planning.table import cells, headings, notes, several_lengths, table


def print_plan(plan: Plan, *, rows: int | None = 12) -> None:
    """Print the table and the reason.

    Args:
        plan: what `plan` returned.
        rows: how many of the best candidates, or None for all; the choice, independent noise
            and `drawn` always.
    """
    shown = selected(plan, rows)
    left = len(plan.lines) - len(shown)
    below = notes(shown)
    if left:
        below.append(f"{left} more candidates, ranked below those shown: --all shows them.")
    if find_spec("rich") is None or not sys.stdout.isatty():  # in a file or a pipe nothing is cut or wrapped
        print("\n".join([*table(shown), "", *below, "", plan.reason]))
        return
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    console = Console()
    several = len({row.batch_size for row in plan.rows}) > 1
    dropped = set() if console.width >= 112 else {"σ", "time"} | (set() if several else {"B"})
    heads, long = headings(shown), several_lengths(shown)
    kept = [i for i, heading in enumerate(heads) if heading not in dropped]
    grid = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    for i in kept:
        right = heads[i] not in ("", "strategy", "batches")
        grid.add_column(heads[i], justify="right" if right else "left", no_wrap=True)
    for row in shown:
        values = cells(row, long=long)
        grid.add_row(*(values[i] for i in kept), style="bold green" if row.chosen else None)
    console.print(grid)
    for line in below:
        console.print(line, style="dim", highlight=False)
    console.print(f"\n{plan.reason}", highlight=False)


def selected(plan: Plan, rows: int | None) -> list[PlanRow]:
    """The first `rows` candidates, the chosen one, and the best with independent noise, in the same order."""
    if rows is None:
        return list(plan.lines)
    plain = next((row for row in plan.rows if family(row.mechanism.strategy) == "identity"), None)
    always = (plain, plan.drawn)
    return [
        row for i, row in enumerate(plan.lines) if i < rows or row.chosen or any(row is a for a in always)
    ]
