"""A plan as text: one table, one vocabulary, for print(plan), the command line and reports."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from anechoic.planning.records import PlanRow
from anechoic.statement.rounding import duration, size

HEAD = ("", "strategy", "batches", "B", "σ", "predicted", "one step", "memory", "time")
BY_LENGTH = ("steps", "predicted / steps")
LEGEND = (
    "→ is the choice. · marks rows that no other row beats in both noise state and error. σ is the noise std"
    " over the reference sensitivity. Predicted is the noise in the iterates of the run: the standard"
    " deviation of a coordinate, in clip norms, at a learning rate of 1 (root mean square over the iterates)."
    " One step is the same for the mean gradient of a single step. Time is what the noise of a step takes on"
    " one core, about."
)
AGAIN = "again: no noise state; the fresh rows that a row is a sum of are drawn again in each step."


def plan_text(rows: Sequence[PlanRow], reason: str, width: int = 110) -> str:
    """The whole plan: every candidate, what the columns mean, and the reason of the choice."""
    wrapped = [
        line
        for note in (*notes(rows), reason)
        for line in ("", *textwrap.wrap(note, width, break_on_hyphens=False))
    ]
    return "\n".join([*table(rows), *wrapped])


def notes(rows: Sequence[PlanRow]) -> list[str]:
    """What the columns mean, and words that stand in them."""
    return [LEGEND, *[AGAIN] * any(row.noise_storage != "store" for row in rows)]


def headings(rows: Sequence[PlanRow]) -> tuple[str, ...]:
    """Of the columns; two more where runs differ in length, by the last of which they are ranked then."""
    return (*HEAD, *BY_LENGTH) if several_lengths(rows) else HEAD


def several_lengths(rows: Sequence[PlanRow]) -> bool:
    """Whether the runs of these rows have different numbers of steps."""
    return len({row.mechanism.steps for row in rows}) > 1


def table(rows: Sequence[PlanRow]) -> list[str]:
    """Heading, rule and one line a candidate."""
    long = several_lengths(rows)
    lines = [headings(rows), *(cells(row, long=long) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    ruled = (lines[0], tuple("-" * width for width in widths), *lines[1:])
    return ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in ruled]


def cells(row: PlanRow, *, long: bool = False) -> tuple[str, ...]:
    """One line of the table; `long` with the columns of runs of different length."""
    held = f"{row.history} row{'s' * (row.history != 1)}" if row.memory is None else size(row.memory)
    return (
        "→" if row.chosen else "·" if row.frontier else "",
        row.name,
        row.sampling,
        f"{row.batch_size:g}",
        f"{row.noise_multiplier:.4g}",
        f"{row.predicted:.4g}",
        f"{row.step_noise:.3g}",
        held if row.noise_storage == "store" else "again",
        "" if row.seconds is None else duration(row.seconds),
        *((str(row.mechanism.steps), f"{row.relative:.3g}") if long else ()),
    )
