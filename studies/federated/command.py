"""`python -m studies federate`: run the study of a federation, show it, and write its report."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling.base import counted
from studies.comparison.console import progress
from studies.comparison.pool import execute_all
from studies.comparison.study import Outcome
from studies.federated.arms import policy_of
from studies.federated.record import make_record
from studies.federated.report import (
    TUNING,
    accuracy_table,
    federated_chart,
    federated_page,
    gain_table,
    headline,
)
from studies.federated.running import execute, stated
from studies.federated.study import SEEDS, FederatedStudy
from studies.federated.tasks import (
    ChangelogAuthors,
    DocstringSections,
    FashionClients,
    FederatedTask,
    Rounds,
)
from studies.keeping import check_empty

#: Tasks over text, and what a client is in them.
TEXTS: dict[str, tuple[type[ChangelogAuthors | DocstringSections], str]] = {
    "changelogs": (ChangelogAuthors, "authors"),
    "docstrings": (DocstringSections, "sections"),
}
#: What --quick leaves: fewer clients, rounds and seeds, for a look at the report, not for figures.
QUICK_CLIENTS, QUICK_IMAGES, QUICK_SEEDS, QUICK_EPSILONS, QUICK_RATES = 400, 6_000, 2, (8.0,), (0.0625, 0.25)
QUICK_ROUNDS = {"rounds": 48, "clients_per_round": 16, "separation": 12, "max_participations": 4}


def federate(
    *,
    data: str,
    directory: str | None,
    out: Path,
    jobs: int,
    command: str,
    quick: bool = False,
    clients: int | None = None,
    epsilons: tuple[float, ...] | None = None,
    seeds: int | None = None,
    rates: tuple[float, ...] | None = None,
    rounds: dict[str, int | None] | None = None,
    checkpoints: Path | None = None,
    resume: bool = False,
) -> dict[str, Any]:
    """Run the study and write report.html, accuracy.svg, results.json and the mechanisms; returns the record.

    Args:
        data: "fashion-mnist", "changelogs" or "docstrings".
        directory: where the files are; texts have a usual place.
        out: folder for what is written.
        jobs: worker processes.
        command: how to run it again, for the report.
        quick: few clients and rounds, for a look.
        clients: to spread the images over; None for the default.
        epsilons, seeds, rates: of `FederatedStudy.of`; None for the defaults.
        rounds: fields of `Rounds` that differ from the task's; None entries do not.
        checkpoints, resume: folder of the outcomes of finished runs, and whether to go on from them.

    Raises:
        ValueError: for options that the data do not have, or a population that cannot fill the rounds.
        FileNotFoundError: where the data are not there.
        CheckpointError: where `checkpoints` holds runs already and `resume` is not said.
    """
    if not resume:
        check_empty(checkpoints)
    console = Console()
    task = task_of(data, directory, quick=quick, clients=clients, rounds=rounds or {})
    with console.status("Planning the mechanisms"):
        study = FederatedStudy.of(
            task,
            seeds=seeds or (QUICK_SEEDS if quick else SEEDS),
            rates=rates or (QUICK_RATES if quick else None),
            **({} if epsilons is None and not quick else {"epsilons": epsilons or QUICK_EPSILONS}),
        )
    title = task.title + (" (quick look)" if quick else "")
    options: dict[str, Any] = {}
    if checkpoints is not None:
        checkpoints.mkdir(parents=True, exist_ok=True)
        options = {"checkpoint": str(checkpoints), "resume": resume}
    return run(study, title=title, command=command, out=out, jobs=jobs, console=console, **options)


def in_words(rounds: Rounds) -> str:
    """How a federation trains; a client takes part as often as the run has room for."""
    possible = policy_of(rounds).participation.max_participations_in(rounds.rounds)
    return (
        f"{rounds.rounds:,} {'round' if rounds.rounds == 1 else 'rounds'} of"
        f" {counted(rounds.clients_per_round, 'client')}; a client rests for"
        f" {counted(rounds.separation, 'round')} and takes part at most {counted(possible, 'time')}."
    )


def task_of(
    data: str, directory: str | None, *, quick: bool, clients: int | None, rounds: dict[str, int | None]
) -> FederatedTask:
    """The federation that the options name.

    Raises:
        ValueError: for options that the data do not have.
    """
    given = {name: value for name, value in rounds.items() if value is not None}

    def planned(usual: Rounds) -> Rounds:
        return replace(usual, **((QUICK_ROUNDS if quick else {}) | given))  # type: ignore[arg-type]

    if data in TEXTS:
        text, whose = TEXTS[data]
        if clients is not None:
            raise ValueError(f"--clients {clients}: the clients of the {data} are their {whose}.")
        return text(directory, rounds=planned(text.rounds))
    if directory is None:
        raise ValueError("--data fashion-mnist needs --data-dir, the folder with its four files.")
    return FashionClients(
        directory,
        clients=clients or (QUICK_CLIENTS if quick else FashionClients.clients),
        rounds=planned(FashionClients.rounds),
        examples=QUICK_IMAGES if quick else None,
    )


def run(
    study: FederatedStudy, *, title: str, command: str, out: Path, jobs: int, console: Console, **options: Any
) -> dict[str, Any]:
    """Choose learning rates, run the figures, show and write them; `options` go to every `TrainingRun`."""
    out.mkdir(parents=True, exist_ok=True)
    mechanisms = {arm.name: Mechanism.from_json(arm.mechanism) for arm in study.arms if arm.mechanism}
    for name, mechanism in mechanisms.items():
        (out / f"{name}.json").write_text(mechanism.to_json(), encoding="utf-8")
    console.print(f"[bold]{title}[/]")
    console.print(f"{counted(len(study.arms), 'arm')} of {in_words(study.task.rounds)}")
    if (remark := policy_of(study.task.rounds).remark(study.task.rounds.rounds)) is not None:
        console.print(f"Warning: {remark}", style="yellow", markup=False)
    console.print(TUNING, style="dim")
    start = time.perf_counter()
    with progress(study, console) as bars:

        def done(runs: Any) -> list[Outcome]:
            return execute_all(runs, jobs=jobs, listen=bars, execute=execute)

        outcomes = done(study.runs(**options))
        while more := study.beyond(outcomes, **options):
            bars.expect(more)
            outcomes += done(more)
        last = study.final(outcomes, **options)
        bars.expect(last)
        outcomes += done(last)
    seconds = time.perf_counter() - start
    record = make_record(study, outcomes, title=title, command=command, seconds=seconds, jobs=jobs)
    text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    (out / "results.json").write_text(text, encoding="utf-8")
    page = federated_page(record, mechanisms, stated(study.task, study.arms))
    (out / "report.html").write_text(page, encoding="utf-8")
    (out / "accuracy.svg").write_text(federated_chart(record), encoding="utf-8")
    show(record, console)
    console.print(f"Report: {out / 'report.html'}", highlight=False, soft_wrap=True)
    return record


def show(record: dict[str, Any], console: Console) -> None:
    """The tables, and where a best learning rate lies at an end of what was tried."""
    console.print(headline(record))
    for title, (head, rows) in (
        (f"{record['task']['metric']} in %, mean over seeds ± standard error", accuracy_table(record)),
        ("differences in points, paired by seed", gain_table(record)),
    ):
        if len(head) > 1:
            table = Table(title=title)
            for heading in head:
                table.add_column(heading, justify="right")
            for row in rows:
                table.add_row(*row)
            console.print(table)
    ends = [arm["title"] for arm in record["arms"] if arm["best"]["edge"]]
    if ends:
        console.print(f"Best at an end of the learning rates tried: {'; '.join(ends)}.", style="dim")
