"""A plan as HTML: a cell of a notebook, a page of its own; and the pictures as files."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path

from anechoic.planning.chart import (
    draw_memory,
    draw_steps,
    one_figure,
    plan_figure,
    what_memory_shows,
    what_steps_show,
)
from anechoic.planning.records import PlanRow
from anechoic.planning.table import cells, headings, notes, several_lengths
from anechoic.statement.charts import as_file, in_style, inline
from anechoic.statement.page import cell, figure, page, paragraph, section, table

#: Kinds of files that a plan is written to.
KINDS = (".html", ".svg", ".png")


def as_cell(rows: Sequence[PlanRow], reason: str) -> str:
    """The plan in a notebook: the pictures, the table and the reason; without matplotlib how to get them."""
    if find_spec("matplotlib") is None:
        drawn = paragraph("Without matplotlib there is no picture: pip install 'anechoic[plot]'.")
    else:
        drawn = plan_pictures(rows)
    return cell(paragraph(reason), drawn, ranked_table(rows))


def as_page(rows: Sequence[PlanRow], reason: str, command: str = "") -> str:
    """The plan as one HTML document that loads nothing, with the command that made it.

    Raises:
        AnechoicError: without matplotlib.
    """
    best = next(row for row in rows if row.chosen)
    title = f"{best.name}, {best.sampling}, B = {best.batch_size:.4g}"
    made = section("How it was made", f"<pre><code>{escape(command)}</code></pre>") if command else ""
    parts = [
        f'<header><p class="kicker">anechoic · plan of {best.mechanism.steps:,} steps</p>'
        f"<h1>Chosen: {escape(title)}</h1>{paragraph(reason, 'lead')}</header>",
        plan_pictures(rows),
        section("Candidates", ranked_table(rows), *(paragraph(note, "soft") for note in notes(rows))),
        made,
    ]
    return page(f"Plan: {title}", "\n".join(part for part in parts if part))


def checked_kind(file: Path) -> Path:
    """A file that `write_plan` knows how to write.

    Raises:
        ValueError: for another ending than those of `KINDS`.
    """
    if file.suffix.lower() not in KINDS:
        raise ValueError(
            f"{file} ends in {file.suffix or 'nothing'!r}, and a plan is written as {', '.join(KINDS)}:"
            " name a file that ends so."
        )
    return file


def write_plan(rows: Sequence[PlanRow], reason: str, file: Path, command: str = "") -> None:
    """Write the page (.html), or the two pictures alone (.svg, .png).

    Raises:
        ValueError: for another ending.
        AnechoicError: without matplotlib.
        OSError: if the file cannot be written.
    """
    kind = checked_kind(file).suffix.lower()
    if kind == ".html":
        file.write_text(as_page(rows, reason, command), encoding="utf-8")
        return
    drawn = plan_figure(rows)
    with in_style():
        if kind == ".png":
            drawn.savefig(file, format="png", dpi=144)
            return
        file.write_text(
            as_file(drawn, f"{what_memory_shows(rows)} {what_steps_show(rows)}"), encoding="utf-8"
        )


def plan_pictures(rows: Sequence[PlanRow]) -> str:
    """Both beside each other, or one below the other where that is too wide."""
    shown = ((draw_memory, what_memory_shows(rows)), (draw_steps, what_steps_show(rows)))
    with in_style():
        drawn = [figure(inline(one_figure(rows, draw), words), words) for draw, words in shown]
    return f'<div class="pair">{"".join(drawn)}</div>'


def ranked_table(rows: Sequence[PlanRow]) -> str:
    """Every candidate, its mark before its name; the line of the choice stands out."""
    _, *heads = headings(rows)
    lines = [
        (f"{mark} {name}".strip(), *rest)
        for mark, name, *rest in (cells(row, long=several_lengths(rows)) for row in rows)
    ]
    marked = [(r, c) for r, row in enumerate(rows) if row.chosen for c in range(len(heads))]
    return table(heads, lines, best=marked)
