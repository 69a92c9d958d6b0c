"""What a study shows on the screen: a bar per arm while it runs, then the tables (with rich)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from anechoic.experiments.pool import Listener
from anechoic.experiments.study import Outcome, Study, best
from anechoic.report import words


@contextmanager
def progress(study: Study, console: Console) -> Iterator[Listener]:
    """A listener that shows how far each arm is, and its best so far; a line per arm where nobody watches."""
    runs = study.runs()
    left = {arm.name: sum(run.arm == arm for run in runs) for arm in study.arms}
    found: dict[str, list[Outcome]] = {arm.name: [] for arm in study.arms}
    titles = {arm.name: arm.title for arm in study.arms}
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24 if console.width >= 100 else 10),
        TextColumn("{task.fields[done]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[found]}"),
        console=console,
        disable=not console.is_terminal,
    )
    total = bars.add_task("[bold]all runs", total=len(runs) * study.steps, done=f"0/{len(runs)}", found="")
    tasks: dict[str, TaskID] = {
        name: bars.add_task(titles[name], total=count * study.steps, start=False, done=f"0/{count}", found="")
        for name, count in left.items()
    }

    def listen(name: str, steps: int, outcome: Outcome | None) -> None:
        bar = tasks[name]
        if not bars.tasks[bar].started:
            bars.start_task(bar)
        bars.update(bar, advance=steps)
        bars.update(total, advance=steps)
        if outcome is None:
            return
        found[name].append(outcome)
        left[name] -= 1
        top = best(found[name])
        reached = f"{study.task.metric} {top.mean:.3f} (lr {top.learning_rate:g})"
        bars.update(bar, done=f"{len(found[name])}/{len(found[name]) + left[name]}", found=f"[dim]{reached}")
        bars.update(total, done=f"{sum(map(len, found.values()))}/{len(runs)}")
        if not left[name]:
            bars.stop_task(bar)
            if not console.is_terminal:
                console.print(f"{titles[name]}: {len(found[name])} runs done, {reached}")

    with bars:
        yield listen


def print_record(record: Mapping[str, Any], console: Console) -> None:
    """The table of results: one row an epsilon, with standard errors over the seeds."""
    arms, several = words.arms_by_name(record), len(words.units(record)) > 1
    count = len(record["seeds"])
    spread = f"; ± standard error over {count} seeds" if count > 1 else ", one seed"
    table = Table(title=record["task"]["metric_long"] + spread)
    for heading in words.heading(record):
        table.add_column(heading)
    for heading in ("ε", "independent", "planned", "gain", "not private", *(words.COSTS if several else ())):
        table.add_column(heading, justify="right")
    for row in record["comparisons"]:
        plain = words.reference(record, words.unit_of(row))
        table.add_row(
            *words.cells(record, row),
            f"{row['epsilon']:g}",
            words.reached(arms[row["independent"]]),
            words.reached(arms[row["planned"]]),
            f"[bold]{words.gained(row)}[/]",
            "–" if plain is None else words.reached(plain),
            *words.costs(record, row),
        )
    if record["comparisons"]:
        console.print(table)
    compared = {name for row in record["comparisons"] for name in (row["independent"], row["planned"])}
    for arm in record["arms"]:
        if arm["name"] not in compared:
            title = words.notes(arm) if arm["epsilon"] is None else arm["title"]
            console.print(f"{title}: {words.reached(arm)} at learning rate {arm['best']['learning_rate']:g}")
    if several:
        for line in (words.COSTS_ARE, *words.bounded(record), *words.worth(record)):
            console.print(line)
    rates = ", ".join(f"{rate:g}" for rate in record["learning_rates"])
    for line in (f"Learning rates: {rates}. {words.TUNING}", *words.edges(record)):
        console.print(line, style="dim")
