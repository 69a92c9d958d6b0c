"""`python -m studies federate`: run the study of a federation, print its table, and write its record."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from anechoic.sampling.base import counted
from studies.comparison.runner import run_study
from studies.federated.arms import policy_of
from studies.federated.running import execute
from studies.federated.study import SEEDS, federated_study, seen_by_ledgers
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
#: What --quick leaves: fewer clients, rounds and seeds, for a look, not for figures.
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
    """Run the study, print its table and write `out`/results.json; returns the record.

    Args:
        data: "fashion-mnist", "changelogs" or "docstrings".
        directory: where the files are; texts have a usual place.
        out: folder for what is written.
        jobs: worker processes.
        command: how to run it again, for the record.
        quick: few clients and rounds, for a look.
        clients: to spread the images over; None for the default.
        epsilons, seeds, rates: of `federated_study`; None for the defaults.
        rounds: fields of `Rounds` that differ from the task's; None entries do not.
        checkpoints, resume: folder of the outcomes of finished runs, and whether to go on from them.

    Raises:
        ValueError: for options that the data do not have, or a population that cannot fill the rounds.
        FileNotFoundError: where the data are not there.
        CheckpointError: where `checkpoints` holds runs already and `resume` is not said.
    """
    if not resume:
        check_empty(checkpoints)
    task = task_of(data, directory, quick=quick, clients=clients, rounds=rounds or {})
    study = federated_study(
        task,
        seeds=seeds or (QUICK_SEEDS if quick else SEEDS),
        rates=rates or (QUICK_RATES if quick else None),
        **({} if epsilons is None and not quick else {"epsilons": epsilons or QUICK_EPSILONS}),
    )
    options: dict[str, Any] = {}
    if checkpoints is not None:
        checkpoints.mkdir(parents=True, exist_ok=True)
        options = {"checkpoint": str(checkpoints), "resume": resume}
    print(in_words(task.rounds))
    if (remark := policy_of(task.rounds).remark(task.rounds.rounds)) is not None:
        print(f"Warning: {remark}", file=sys.stderr)
    return run_study(
        study,
        title=task.title + (" (quick look)" if quick else ""),
        command=command,
        out=out,
        jobs=jobs,
        execute=execute,
        facts=lambda outcomes: {"rounds": asdict(task.rounds), "ledger": seen_by_ledgers(outcomes)},
        **options,
    )


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
