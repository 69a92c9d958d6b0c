"""What a study shows on the screen: a bar per arm while it runs, then the tables (with rich)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from studies.comparison import words
from studies.comparison.study import Arm, Outcome, TrainingRun, best


class Shown(Protocol):
    """What bars need to know of a study."""

    @property
    def task(self) -> Any: ...

    @property
    def arms(self) -> Sequence[Arm]: ...

    @property
    def steps(self) -> int: ...

    def runs(self) -> Sequence[TrainingRun]: ...


@contextmanager
def progress(study: Shown, console: Console) -> Iterator[Bars]:
    """A listener that shows how far each arm is, and its best so far; a line per arm where nobody watches."""
    bars = Bars(study, console)
    with bars.shown:
        yield bars


class Bars:
    """A bar for each arm, and one for all; more runs may come to be expected on the way."""

    def __init__(self, study: Shown, console: Console) -> None:
        self._study, self._console = study, console
        self._left = {arm.name: 0 for arm in study.arms}
        self._found: dict[str, list[Outcome]] = {arm.name: [] for arm in study.arms}
        self._titles = {arm.name: arm.title for arm in study.arms}
        self.shown = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24 if console.width >= 100 else 10),
            TextColumn("{task.fields[done]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[found]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._total = self.shown.add_task("[bold]all runs", total=0, done="", found="")
        self._tasks: dict[str, TaskID] = {
            name: self.shown.add_task(self._titles[name], total=0, start=False, done="", found="")
            for name in self._left
        }
        self.expect(study.runs())

    def expect(self, runs: Sequence[TrainingRun]) -> None:
        """These runs are to come too."""
        for run in runs:
            self._left[run.arm.name] += 1
        for name, bar in self._tasks.items():
            self._count(bar, len(self._found[name]), self._left[name])
        self._count(self._total, sum(map(len, self._found.values())), sum(self._left.values()))

    def __call__(self, name: str, steps: int, outcome: Outcome | None) -> None:
        """See `Listener`."""
        bar = self._tasks[name]
        if not self.shown.tasks[bar].started:
            self.shown.start_task(bar)
        self.shown.update(bar, advance=steps)
        self.shown.update(self._total, advance=steps)
        if outcome is None:
            return
        self._found[name].append(outcome)
        self._left[name] -= 1
        if not self._left[name] and not self._console.is_terminal:
            done = f"{len(self._found[name])} runs done"
            self._console.print(f"{self._titles[name]}: {done}, {self._reached(name)}")
        self.shown.update(bar, found=f"[dim]{self._reached(name)}")
        self.expect(())

    def _reached(self, name: str) -> str:
        top = best(self._found[name])
        return f"{self._study.task.metric} {top.mean:.3f} (lr {top.learning_rate:g})"

    def _count(self, bar: TaskID, made: int, left: int) -> None:
        self.shown.update(bar, total=(made + left) * self._study.steps, done=f"{made}/{made + left}")


def print_record(record: Mapping[str, Any], console: Console, more: Sequence[str] = ()) -> None:
    """The table of results, one row an epsilon, with standard errors over the seeds; and lines after it."""
    count = len(record["seeds"])
    spread = f"; ± standard error over {count} seeds" if count > 1 else ", one seed"
    for title, (head, rows) in (
        (record["task"]["metric_long"] + spread, words.compared(record)),
        (words.ONE_RATE, words.at_one_rate(record)),
    ):
        table = Table(title=title)
        for heading in head:
            named = heading in words.heading(record)
            table.add_column(
                heading, justify="left" if named else "right", style="bold" * (heading == "gain")
            )
        for cells in rows:
            table.add_row(*cells)
        if rows:
            console.print(table)
    compared = {name for row in record["comparisons"] for name in (row["independent"], row["planned"])}
    for arm in record["arms"]:
        if arm["name"] not in compared and arm["epsilon"] is not None:
            rate = arm["best"]["learning_rate"]
            console.print(f"{arm['title']}: {words.reached(arm)} at learning rate {rate:g}.")
    for line in (*words.without_privacy(record), *more):
        console.print(line)
    rates = ", ".join(f"{rate:g}" for rate in record["learning_rates"])
    for line in (f"Learning rates: {rates}. {words.TUNING}", *words.edges(record)):
        console.print(line, style="dim")
