"""From a study to its outcomes, its tables and its file."""

from __future__ import annotations

import json
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from anechoic._validate import positive_int
from anechoic.errors import AnechoicError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.mechanism.weak_delta import examples_of, weak_delta
from anechoic.participation.base import Participation
from anechoic.planning.compare import plan
from anechoic.planning.families import StrategyName
from studies.comparison.record import lines, make_record
from studies.comparison.study import Arm, Outcome, Study, TrainingRun

#: Makes a run.
Executor = Callable[[TrainingRun], Outcome]


def private_arms(
    task: Any,
    *,
    scheme: str,
    epsilons: tuple[float, ...],
    delta: float,
    steps: int,
    examples: int,
    strategy: StrategyName = "auto",
    unit: str = "example",
    participation: Participation | None = None,
    batch_size: int | None = None,
) -> list[Arm]:
    """Return independent noise and the planned mechanism at each epsilon.

    Args:
        task, scheme: what is trained, in "fixed" order or by "poisson" sampling.
        epsilons, delta, steps, examples: ε and δ of the guarantees, n, N.
        strategy: what `plan` may choose from: "auto" or one class; "identity" makes one arm an epsilon.
        unit: what is protected.
        participation: what the batches of another unit than an example keep to.
        batch_size: expected number of units in a batch; None for the task's.
    """
    arms = []
    kinds: dict[str, StrategyName] = {"independent": "identity", "planned": strategy}
    for epsilon in epsilons:
        for kind, wanted in kinds.items():
            if kind == "independent" and strategy == "identity":
                continue
            mechanism = plan(
                examples=examples,
                batch_size=batch_size or task.batch_size,
                steps=steps,
                epsilon=epsilon,
                delta=delta,
                dimension=sum(p.numel() for p in task.build(0).parameters()),
                random_sampling=scheme == "poisson",
                strategy=wanted,
                clip_norm=task.clip_norm,
                drop_last=task.drop_last,
                participation=participation,
                unit=unit,
            ).mechanism
            arms.append(Arm(kind, scheme, task.clip_norm, epsilon, mechanism.to_json(), unit))  # type: ignore[arg-type]
    return arms


def plain_arms(task: Any) -> list[Arm]:
    """Return the two runs without privacy: the same training without its noise, and without clipping too."""
    return [Arm("clipped", "fixed", task.clip_norm), Arm("plain", "fixed")]


def run_study(
    study: Study,
    *,
    title: str,
    command: str,
    out: Path,
    jobs: int,
    execute: Executor,
    facts: Callable[[Sequence[Outcome]], Mapping[str, Any]] = lambda outcomes: {},
    **options: Any,
) -> dict[str, Any]:
    """Run a study, print its tables, and write its record, which it returns, into `out`/results.json.

    Args:
        study: what to run.
        title, command: heading of the tables, and how to run it again.
        out: folder, made where it is not there.
        jobs, execute: see `execute_all`.
        facts: more entries of the record, from the outcomes.
        options: of every `TrainingRun`.
    """
    out.mkdir(parents=True, exist_ok=True)
    mechanisms = (Mechanism.from_json(arm.mechanism) for arm in study.arms if arm.mechanism)
    weak = (weak_delta(one.delta, examples_of(one.sampling), one.unit) for one in mechanisms)
    for sentence in dict.fromkeys(filter(None, weak)):
        print(f"Warning: {sentence}.", file=sys.stderr)
    start = time.perf_counter()
    outcomes = execute_all(study.runs(**options), jobs=jobs, execute=execute)
    while runs := study.beyond(outcomes, **options):
        outcomes += execute_all(runs, jobs=jobs, execute=execute)
    outcomes += execute_all(study.final(outcomes, **options), jobs=jobs, execute=execute)
    seconds = round(time.perf_counter() - start, 1)
    record = make_record(study, outcomes, title=title, command=command, seconds=seconds, jobs=jobs)
    record |= facts(outcomes)
    text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    (out / "results.json").write_text(text, encoding="utf-8")
    print("\n".join(lines(record)))
    return record


def execute_all(runs: Sequence[TrainingRun], *, jobs: int, execute: Executor) -> list[Outcome]:
    """Return the outcomes of `runs`, in their order.

    Args:
        runs: what to train.
        jobs: worker processes; with 0 the runs happen in this process, one after the other; no run can then
            be repeated, because a process uses a noise key once.
        execute: what makes a run; a function that another process can import.

    Raises:
        AnechoicError: if a worker was killed, for want of memory for instance.
    """
    if positive_int("jobs", jobs, minimum=0) == 0 or not runs:
        return _counted(map(execute, runs), len(runs))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(runs)), context, initializer=_enter) as pool:
        try:
            return _counted(pool.map(execute, runs), len(runs))
        except BrokenProcessPool as error:
            raise AnechoicError(
                "a worker process was killed, most often for want of memory: try again with --jobs 1."
            ) from error


def _counted(outcomes: Iterable[Outcome], count: int) -> list[Outcome]:
    """Return outcomes as a list, and say on a terminal how many there are so far."""
    found = []
    for outcome in outcomes:
        found.append(outcome)
        if sys.stderr.isatty():
            end = "\n" if len(found) == count else ""
            print(f"\r{len(found)} of {count} runs", end=end, file=sys.stderr, flush=True)
    return found


def _enter() -> None:
    """Give a new worker one thread; Ctrl-C ends it without a traceback."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    torch.set_num_threads(1)
