"""The study of the flights in time order, as the demo has it, with any grid and strategy."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from anechoic.mechanism.mechanism import Mechanism
from anechoic.planning.families import StrategyName
from anechoic.statement.formats import render
from anechoic.statement.statement import statement_of
from studies.comparison import words
from studies.comparison.runner import plain_arms, private_arms
from studies.comparison.study import Study
from studies.comparison.task import Flights, load

DELTA = 1e-6
EPSILONS = (0.1, 0.3, 1.0)
RATES = (0.25, 0.5, 1.0, 2.0)
#: Of those, the one at which nothing is chosen: a step of one clip norm.
RATE = 1.0
SEEDS = 3
#: What --quick leaves of it: for a look at the report, not for figures.
QUICK_EXAMPLES, QUICK_SEEDS, QUICK_RATES = 64_000, 2, (0.5, 1.0)


def flights_study(
    *,
    examples: int | None = None,
    epsilons: tuple[float, ...] = EPSILONS,
    delta: float = DELTA,
    rates: tuple[float, ...] = RATES,
    seeds: int = SEEDS,
    strategy: StrategyName = "auto",
    widen: bool = False,
) -> tuple[Study, dict[str, str]]:
    """The study of the flights, and why each mechanism was planned.

    Args:
        examples: the first so many flights; None for all.
        epsilons, delta: of the guarantees.
        rates: the grid of learning rates.
        seeds: how many, counted from 0.
        strategy: what the planned arm may choose from; see `plan`.
        widen: see `Study`.
    """
    task = Flights(examples=examples)
    count = len(load(task).labels)
    steps = count // task.batch_size
    arms, reasons = private_arms(
        task,
        scheme="fixed",
        epsilons=epsilons,
        delta=delta,
        steps=steps,
        examples=count,
        dimension=sum(p.numel() for p in task.build(0).parameters()),
        strategy=strategy,
        compare=strategy != "identity",
    )
    arms = [*plain_arms(task), *arms]
    return Study(task, tuple(arms), rates, tuple(range(seeds)), steps, delta, widen, RATE), reasons


def finish(study: Study, out: Path, console: Console) -> None:
    """Print the guarantee of the middle epsilon, of owners where these are protected, and where all is."""
    planned = sorted((arm for arm in study.arms if arm.kind == "planned"), key=lambda arm: arm.epsilon or 0.0)
    planned = [arm for arm in planned if arm.unit != "example"] or planned
    if planned:
        arm = planned[(len(planned) - 1) // 2]
        console.print(f"\n[bold]The guarantee of the {arm.title}[/]")
        stated = words.with_keys_from_seeds(statement_of(Mechanism.from_json(arm.mechanism or "")))
        console.print(render(stated, "text"), markup=False, highlight=False, soft_wrap=True)
        console.print(
            f"\nThe others: anechoic explain {out / (planned[0].name + '.json')}, …", highlight=False
        )
    console.print(f"Report: {out / 'report.html'}", highlight=False, soft_wrap=True)
