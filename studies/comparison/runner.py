"""From a study to its record, its report and its files."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from anechoic.mechanism.mechanism import Mechanism
from anechoic.mechanism.weak_delta import examples_of, weak_delta
from anechoic.participation.base import Participation
from anechoic.planning.compare import plan
from anechoic.planning.families import StrategyName
from studies.comparison import words
from studies.comparison.console import print_record, progress
from studies.comparison.pool import Executor, execute_all
from studies.comparison.record import make_record
from studies.comparison.report import experiment_page
from studies.comparison.study import Arm, Study


def private_arms(
    task: Any,
    *,
    scheme: str,
    epsilons: tuple[float, ...],
    delta: float,
    steps: int,
    examples: int,
    dimension: int,
    strategy: StrategyName = "auto",
    compare: bool = True,
    unit: str = "example",
    participation: Participation | None = None,
    batch_size: int | None = None,
    local_steps: int = 1,
) -> tuple[list[Arm], dict[str, str]]:
    """Independent noise and the planned mechanism at each epsilon, and why each was planned.

    Args:
        task: an experiment's task.
        scheme: "fixed" or "poisson".
        epsilons, delta: of the guarantees.
        steps, examples, dimension: n, N, m.
        strategy: what `plan` may choose from: "auto" or one class.
        compare: whether there is an arm with independent noise.
        unit: what is protected.
        participation: what the batches of another unit than an example keep to.
        batch_size: expected number of units in a batch; None for the task's.
        local_steps: see `Arm`.
    """
    arms, reasons = [], {}
    for epsilon in epsilons:
        classes: dict[str, StrategyName] = {"independent": "identity", "planned": strategy}
        for kind, wanted in classes.items():
            if kind == "independent" and not compare:
                continue
            chosen = plan(
                examples=examples,
                batch_size=batch_size or task.batch_size,
                steps=steps,
                epsilon=epsilon,
                delta=delta,
                dimension=dimension,
                random_sampling=scheme == "poisson",
                strategy=wanted,
                clip_norm=task.clip_norm,
                drop_last=task.drop_last,
                participation=participation,
                unit=unit,
            )
            text = chosen.mechanism.to_json()
            arm = Arm(kind, scheme, task.clip_norm, epsilon, text, unit, local_steps)  # type: ignore[arg-type]
            arms.append(arm)
            reasons[arm.name] = chosen.reason
    return arms, reasons


def plain_arms(task: Any) -> list[Arm]:
    """The two runs without privacy: the same training without its noise, and without clipping too."""
    return [Arm("clipped", "fixed", task.clip_norm), Arm("plain", "fixed")]


class About(Protocol):
    """What else there is to tell of a study, such as `studies.owners.Owners`."""

    @property
    def facts(self) -> Mapping[str, Any]: ...

    def lines(self, record: Mapping[str, Any]) -> Sequence[str]: ...

    def section(self, record: Mapping[str, Any]) -> str: ...


def run_study(
    study: Study,
    reasons: Mapping[str, str],
    *,
    title: str,
    command: str,
    out: Path,
    jobs: int,
    console: Console,
    execute: Executor,
    about: About | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Run, show and write a study.

    Writes into `out`: report.html, results.json and one mechanism file for each private arm.

    Args:
        study: what to run.
        reasons: why the mechanism of an arm was chosen.
        title: heading of the report.
        command: how to run it again.
        out: folder, made where it is not there.
        jobs: worker processes.
        console: where progress and tables go.
        execute: what makes a run.
        about: facts about the owners of examples, where some arms protect these.
        options: of every `TrainingRun`.

    Returns:
        The record, as results.json has it.
    """
    out.mkdir(parents=True, exist_ok=True)
    mechanisms = {arm.name: Mechanism.from_json(arm.mechanism) for arm in study.arms if arm.mechanism}
    for name, mechanism in mechanisms.items():
        (out / f"{name}.json").write_text(mechanism.to_json(), encoding="utf-8")
    runs = study.runs(**options)
    console.print(f"[bold]{title}[/]")
    where = f"{jobs} worker process{'es' if jobs > 1 else ''}" if jobs else "this process"
    console.print(
        f"{len(study.arms)} arms, {len(runs)} runs of {study.steps:,} steps in {where}; learning rates"
        f" {', '.join(f'{rate:g}' for rate in study.rates)}{words.WIDENED if study.widen else ''}."
    )
    console.print(words.TUNING, style="dim")
    weak = (weak_delta(one.delta, examples_of(one.sampling), one.unit) for one in mechanisms.values())
    for sentence in dict.fromkeys(filter(None, weak)):
        console.print(f"Warning: {sentence}.", style="yellow", highlight=False)
    start = time.perf_counter()
    with progress(study, console) as bars:
        outcomes = execute_all(runs, jobs=jobs, execute=execute, listen=bars)
        while runs := study.beyond(outcomes, **options):
            bars.expect(runs)
            outcomes += execute_all(runs, jobs=jobs, execute=execute, listen=bars)
    record = make_record(
        study,
        outcomes,
        title=title,
        command=command,
        seconds=time.perf_counter() - start,
        jobs=jobs,
        reasons=reasons,
        units=None if about is None else about.facts,
    )
    (out / "results.json").write_text(
        json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    more = "" if about is None else about.section(record)
    (out / "report.html").write_text(experiment_page(record, mechanisms, more), encoding="utf-8")
    print_record(record, console, () if about is None else about.lines(record))
    return record
