"""`train`: what it costs to protect an aircraft with all its flights, beside a flight."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from studies.aircraft import QUICK_PASSES, aircraft_study, sampled_study
from studies.comparison.runner import run_study
from studies.owners import owner_lines
from studies.training import execute

#: What --quick leaves of it.
QUICK_FLIGHTS, QUICK_FLIGHT_RATES = 64_000, (0.5, 1.0)


def train(
    *, out: Path, jobs: int, command: str, sampling: str, quick: bool = False, **options: Any
) -> dict[str, Any]:
    """Run `python -m studies train`, print its tables, and write `out`/results.json; returns the record.

    Args:
        out, jobs, command: see `run_study`.
        sampling: "fixed", in time order, or "poisson".
        quick: a slice of the data and a few steps, for a look.
        options: of `aircraft_study` or `sampled_study`; None stands for the default.

    Raises:
        ValueError: for options that the way of sampling does not have.
    """
    given = {name: value for name, value in options.items() if value is not None}
    sampled = sampling == "poisson"
    if sampled and (extra := {"separation", "limit"} & given.keys()):
        raise ValueError(f"{_options(extra)}: bounds are for time order, --sampling fixed.")
    if quick:
        given = {"rates": QUICK_FLIGHT_RATES, "seeds": 1, "epsilons": (1.0,), **given}
        given |= {"examples": QUICK_FLIGHTS, **({"passes": QUICK_PASSES} if sampled else {})}
    study, facts = (sampled_study if sampled else aircraft_study)(**given)
    record = run_study(
        study,
        title=study.task.title + (" (quick look, a slice of the data)" if quick else ""),
        command=command,
        out=out,
        jobs=jobs,
        execute=execute,
        facts=lambda outcomes: {"units": facts},
    )
    print("\n".join(owner_lines(record)))
    return record


def _options(names: Iterable[str]) -> str:
    """Arguments by the names that they have on the command line."""
    return ", ".join(f"--{name.replace('_', '-')}" for name in sorted(names))
