"""A `Plan` as HTML: a cell of a notebook, a page of its own; and the pictures as files."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from anechoic.planning.records import PlanRow
from anechoic.planning.table import cells, notes
from anechoic.plots.plan import plan_figure, plan_images
from anechoic.plots.style import as_svg, in_style
from anechoic.statement.page import cell, figure, fold, paragraph, render_page, table

#: Kinds of files that a plan is written to.
KINDS = (".html", ".svg", ".png")


def as_cell(plan: Any) -> str | None:
    """Return the plan for a notebook: sentences, pictures, table, and the reason; None without jinja2."""
    if find_spec("jinja2") is None:
        return None
    missing = paragraph("Without matplotlib there is no picture: pip install 'anechoic[plot]'.")
    drawn = plan_pictures(plan.lines) if find_spec("matplotlib") else missing
    return cell(
        *map(paragraph, plan.sentences("'Why' below")), drawn, ranked_table(plan.lines), folded_reason(plan)
    )


def folded_reason(plan: Any) -> str:
    """Return why this is the choice and what the columns mean, to be opened by a click."""
    return fold("Why", "".join(map(paragraph, (plan.reason, *notes(plan.lines)))))


def as_page(plan: Any, command: str = "") -> str:
    """Return the plan as one HTML document that loads nothing, with the command that made it."""
    best = plan.chosen
    title = f"{best.name}, {best.sampling}, B = {best.batch_size:.4g}"
    shown = {"pictures": plan_pictures(plan.lines), "candidates": ranked_table(plan.lines)}
    return render_page("plan.html", plan=plan, title=title, **shown, notes=notes(plan.lines), command=command)


def checked_kind(file: Path) -> Path:
    """Return a file that `write_plan` knows how to write; a ValueError for another ending than `KINDS`."""
    if file.suffix.lower() not in KINDS:
        raise ValueError(
            f"{file} ends in {file.suffix or 'nothing'!r}, and a plan is written as {', '.join(KINDS)}:"
            " name a file that ends so."
        )
    return file


def write_plan(plan: Any, file: Path, command: str = "") -> None:
    """Write the page (.html), or the two pictures alone (.svg, .png).

    Raises:
        ValueError: for another ending.
        AnechoicError: without matplotlib, and a page without jinja2.
        OSError: if the file cannot be written.
    """
    kind, rows = checked_kind(file).suffix.lower(), plan.lines
    if kind == ".html":
        file.write_text(as_page(plan, command), encoding="utf-8")
    elif kind == ".svg":
        file.write_text(as_svg(plan_figure(rows), "A plan: its noise, memory and steps"), encoding="utf-8")
    else:
        with in_style():
            plan_figure(rows).savefig(file, format="png", dpi=144)


def plan_pictures(rows: Sequence[PlanRow]) -> str:
    """Return both pictures as HTML, beside each other where the page is wide enough."""
    return f'<div class="pair">{"".join(figure(*each) for each in plan_images(rows))}</div>'


def ranked_table(rows: Sequence[PlanRow]) -> str:
    """Return every candidate as HTML, its mark before its name; the line of the choice stands out."""
    (_, *heads), *lines = cells(rows)
    shown = [(f"{mark} {name}".strip(), *rest) for mark, name, *rest in lines]
    marked = [(r, c) for r, row in enumerate(rows) if row.chosen for c in range(len(heads))]
    return table(heads, shown, best=marked)
