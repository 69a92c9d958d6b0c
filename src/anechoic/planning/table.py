"""A plan as text: one table, one vocabulary, for print(plan), the command line and reports."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

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


def paragraphs(texts: Iterable[str], between: str = "\n\n") -> str:
    """Texts in lines of 110 characters."""
    return between.join(textwrap.fill(text, 110, break_on_hyphens=False) for text in texts)


def notes(rows: Sequence[PlanRow]) -> list[str]:
    """What the columns mean, and words that stand in them."""
    return [LEGEND, *[AGAIN] * any(row.noise_storage != "store" for row in rows)]


def table(rows: Sequence[PlanRow]) -> list[str]:
    """Heading, rule and one line a candidate."""
    lines = cells(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, tuple("-" * width for width in widths))
    return ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]


def cells(rows: Sequence[PlanRow]) -> list[tuple[str, ...]]:
    """Headings and candidates; with two columns more, by which they rank, where runs differ in length."""
    long = len({row.mechanism.steps for row in rows}) > 1
    lines = [HEAD + BY_LENGTH * long]
    for row in rows:
        made = [row.name, row.sampling, f"{row.batch_size:g}", f"{row.noise_multiplier:.4g}"]
        made += [f"{row.predicted:.4g}", f"{row.step_noise:.3g}", held(row)]
        made += ["" if row.seconds is None else duration(row.seconds)]
        made += [str(row.mechanism.steps), f"{row.relative:.3g}"] * long
        lines += [("→" if row.chosen else "·" if row.frontier else "", *made)]
    return lines


def held(row: PlanRow) -> str:
    """How much noise state a row holds: bytes, or rows where the dimension is unknown."""
    if row.noise_storage != "store":
        return "again"
    return f"{row.history} row{'s' * (row.history != 1)}" if row.memory is None else size(row.memory)
