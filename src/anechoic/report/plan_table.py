"""A plan on the screen: the best candidates, the choice and independent noise."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec

from anechoic.planning import Plan, PlanRow
from anechoic.strategies import Identity

_HEAD = ("", "strategy", "batches", "B", "noise std", "σ", "RMS error", "predicted", "memory")
_LEGEND = (
    "σ: noise std over the reference sensitivity. Predicted: std of the noise in a sum of mean gradients, per"
    " coordinate, RMS over the steps, in clip norms."
)


def print_plan(plan: Plan, *, rows: int | None = 12) -> None:
    """Print the table and the reason.

    Args:
        plan: what `plan` returned.
        rows: how many of the best candidates, or None for all; the choice and independent noise always.
    """
    shown = selected(plan, rows)
    left = len(plan.rows) - len(shown)
    notes = [_LEGEND, f"{left} more candidates with a larger predicted error: --all shows them."][
        : 1 + bool(left)
    ]
    if find_spec("rich") is None or not sys.stdout.isatty():  # in a file or a pipe nothing is cut or wrapped
        _plain(shown)
        print("\n".join(["", *notes, "", plan.reason]))
        return
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    console = Console()
    several = len({row.batch_size for row in plan.rows}) > 1
    dropped = set() if console.width >= 112 else {"noise std", "RMS error"} | (set() if several else {"B"})
    kept = [i for i, heading in enumerate(_HEAD) if heading not in dropped]
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    for i in kept:
        right = _HEAD[i] not in ("", "strategy", "batches")
        table.add_column(_HEAD[i], justify="right" if right else "left", no_wrap=True)
    for row in shown:
        values = cells(row)
        table.add_row(*(values[i] for i in kept), style="bold green" if row.chosen else None)
    console.print(table)
    for line in notes:
        console.print(line, style="dim", highlight=False)
    console.print(f"\n{plan.reason}", highlight=False)


def selected(plan: Plan, rows: int | None) -> list[PlanRow]:
    """The first `rows` candidates, the chosen one, and the best with independent noise, in the same order."""
    if rows is None:
        return list(plan.rows)
    plain = next((row for row in plan.rows if isinstance(row.mechanism.strategy, Identity)), None)
    return [row for i, row in enumerate(plan.rows) if i < rows or row.chosen or row is plain]


def cells(row: PlanRow) -> tuple[str, ...]:
    """One line of the table."""
    memory = f"{row.history} rows" if row.memory is None else size(row.memory)
    numbers = (row.noise_std, row.noise_multiplier, row.rms_error, row.predicted)
    mark = "→" if row.chosen else ""
    return (
        mark,
        short(row.name),
        row.sampling,
        f"{row.batch_size:g}",
        *(f"{value:.4g}" for value in numbers),
        memory,
    )


def short(name: str) -> str:
    """The name of a strategy without its number of steps, the same for all: BandedToeplitz(bands=8)."""
    name = re.sub(r"\(n=\d+(, |(?=\)))", "(", name).replace("()", "")
    normalized = re.fullmatch(r"ColumnNormalized\((.*)\)", name)
    return f"{normalized[1]}, normalized" if normalized else name


def size(count: float) -> str:
    """Bytes for people: 1536 is 1.5 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


def _plain(rows: list[PlanRow]) -> None:
    lines = [_HEAD, *(cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_HEAD))]
    for line in (lines[0], ["-" * width for width in widths], *lines[1:]):
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
