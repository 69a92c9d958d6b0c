"""`train`: the same comparison on a data set of several passes, with and without sampling."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from anechoic.mechanism.calibrate import calibrate
from anechoic.mechanism.mechanism import Mechanism
from anechoic.optimize import damped as damped_root
from anechoic.planning.families import StrategyName
from anechoic.workloads import prefix_sum
from studies.aircraft import QUICK_PASSES, aircraft_study, sampled_study
from studies.comparison import flights
from studies.comparison.runner import plain_arms, private_arms, run_study
from studies.comparison.study import Arm, Study
from studies.comparison.task import load
from studies.keeping import check_empty
from studies.owners import Owners
from studies.tasks import FashionMNIST
from studies.training import execute

STEPS = 2048
RATES = {"logistic": (0.1, 0.3, 1.0, 3.0), "cnn": (0.3, 1.0, 3.0)}
#: What --quick leaves of it.
QUICK_EXAMPLES, QUICK_STEPS, QUICK_RATES = 6_000, 60, (0.3, 1.0)


def fashion_study(
    directory: str,
    *,
    model: str = "logistic",
    batch_size: int = 469,
    steps: int | None = None,
    epochs: int | None = None,
    sampling: str = "fixed",
    strategy: StrategyName = "auto",
    epsilons: tuple[float, ...] = (1.0,),
    delta: float = 1e-6,
    rates: tuple[float, ...] | None = None,
    seeds: int = 1,
    examples: int | None = None,
) -> tuple[Study, dict[str, str]]:
    """The study of Fashion-MNIST, and why each mechanism was planned.

    Args:
        directory: folder of the four files.
        model: "logistic" or "cnn".
        batch_size: B.
        steps, epochs: length of a run; give at most one, 2,048 steps without either.
        sampling: "fixed", "poisson" or "both".
        strategy: what the planned arm may choose from; see `plan`.
        epsilons, delta: of the guarantees.
        rates: the grid of learning rates; None for the model's default.
        seeds: how many, counted from 0.
        examples: the first so many images; None for all.

    Raises:
        FileNotFoundError, ValueError: see `fashion_mnist`; or for arguments out of range.
    """
    task = FashionMNIST(directory, model, batch_size, examples)  # type: ignore[arg-type]
    count = len(load(task).labels)
    if steps is not None and epochs is not None:
        raise ValueError(f"steps={steps} and epochs={epochs}: give at most one of the two.")
    length = epochs * -(-count // batch_size) if epochs is not None else STEPS if steps is None else steps
    arms: list[Arm] = plain_arms(task)
    reasons: dict[str, str] = {}
    for scheme in ("fixed", "poisson") if sampling == "both" else (sampling,):
        found, why = private_arms(
            task,
            scheme=scheme,
            epsilons=epsilons,
            delta=delta,
            steps=length,
            examples=count,
            dimension=sum(p.numel() for p in task.build(0).parameters()),
            strategy=strategy,
            compare=strategy != "identity",
        )
        arms += found
        reasons |= why
    study = Study(task, tuple(arms), rates or RATES[model], tuple(range(seeds)), length, delta)
    return study, reasons


def with_damped(study: Study, reasons: Mapping[str, str]) -> tuple[Study, dict[str, str]]:
    """The study with a damped root before every planned mechanism that needs no sampling, and its reasons.

    Its one number has the least mean squared error of prefix sums for the steps and the participation of the
    planned mechanism, whose batches, unit and guarantee it shares.

    Args:
        study: of planned mechanisms in a fixed order, or of promised batches.
        reasons: why each mechanism was chosen.

    Raises:
        UnsupportedError: for a promise whose worst pattern is not known.
    """
    arms: list[Arm] = []
    texts = dict(reasons)
    for arm in study.arms:
        planned = Mechanism.from_json(arm.mechanism) if arm.mechanism and arm.kind == "planned" else None
        if planned is not None and not planned.amplified:
            promise = planned.sampling.participation
            found = damped_root(prefix_sum(planned.steps), participation=promise)
            made = calibrate(
                found.strategy,
                sampling=planned.sampling,
                epsilon=arm.epsilon,
                delta=planned.delta,
                clip_norm=planned.clip_norm,
                adjacency=planned.adjacency,
                unit=planned.unit,
            )
            arms.append(replace(arm, kind="damped", mechanism=made.to_json()))
            texts[arms[-1].name] = (
                f"{found.strategy.describe()}: the damping of least root mean square error of prefix sums for"
                f" {promise.describe()}."
            )
        arms.append(arm)
    return replace(study, arms=tuple(arms)), texts


def train(
    *,
    data: str,
    directory: str | None,
    out: Path,
    jobs: int,
    command: str,
    quick: bool = False,
    damped: bool = False,
    checkpoints: Path | None = None,
    checkpoint_every: int = 256,
    resume: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Run `python -m studies train`, show it, and write its report into `out`; returns the record.

    Args:
        data: "fashion-mnist" or "flights".
        directory: where the files of the data set are (not needed for the flights).
        out, jobs, command: see `run_study`.
        quick: a slice of the data and a few steps, for a look.
        damped: whether to train with the best damped root too, beside the planned mechanism.
        checkpoints: folder for the state of unfinished runs and the outcomes of finished ones.
        checkpoint_every: steps between two checkpoints of a run.
        resume: whether to go on from what `checkpoints` holds.
        options: of `fashion_study`, `flights_study` or `aircraft_study`; None stands for the default.

    Raises:
        CheckpointError: where `checkpoints` holds runs already and `resume` is not said.
        ValueError: for options that the data set does not have.
    """
    if not resume:
        check_empty(checkpoints)
    console = Console()
    given = {name: value for name, value in options.items() if value is not None}
    unit, facts = given.pop("unit", None), None
    if unit not in (None, "flight", "tail") or (unit is not None and data != "flights"):
        raise ValueError(
            f"--unit {unit}: the flights are protected by flight or by tail (the aircraft); of the other data"
            " nobody knows who owns what. Leave it out."
        )
    if unit != "tail" and (extra := {"separation", "limit"} & given.keys()):
        raise ValueError(f"{_options(extra)}: what an aircraft adds needs --unit tail.")
    sampled = unit == "tail" and given.get("sampling") == "poisson"
    if sampled:
        given.pop("sampling")
        if extra := {"separation", "limit"} & given.keys():
            raise ValueError(f"{_options(extra)}: bounds are for time order, --sampling fixed.")
    if data == "flights":
        fixed = {"model", "batch_size", "steps", "epochs"} & given.keys()
        if fixed or given.get("sampling", "fixed") != "fixed":
            raise ValueError(
                f"{_options(fixed or {'sampling'})}: the flights are one pass in time order with a logistic"
                " model; leave it out, or take --data fashion-mnist."
            )
        given.pop("sampling", None)
        if quick:
            given = {"rates": flights.QUICK_RATES, "seeds": 1, **given, "examples": flights.QUICK_EXAMPLES}
            if unit == "tail":
                given = {"epsilons": (1.0,), **({"passes": QUICK_PASSES} if sampled else {}), **given}
        with console.status("Planning the mechanisms"):
            if unit == "tail":
                study, reasons, facts = (sampled_study if sampled else aircraft_study)(**given)
            else:
                study, reasons = flights.flights_study(**given)
    else:
        if directory is None:
            raise ValueError("--data fashion-mnist needs --data-dir, the folder with its four files.")
        if quick:
            given = {"rates": QUICK_RATES, **given, "examples": QUICK_EXAMPLES}
            given.setdefault("steps", QUICK_STEPS) if "epochs" not in given else None
        with console.status("Planning the mechanisms"):
            study, reasons = fashion_study(directory, **given)
    if damped:
        with console.status("Tuning the damped root"):
            study, reasons = with_damped(study, reasons)
    kept: dict[str, Any] = {}
    if checkpoints is not None:
        checkpoints.mkdir(parents=True, exist_ok=True)
        kept = {"checkpoint": str(checkpoints), "checkpoint_every": checkpoint_every, "resume": resume}
    record = run_study(
        study,
        reasons,
        title=study.task.title + (" (quick look, a slice of the data)" if quick else ""),
        command=command,
        out=out,
        jobs=jobs,
        console=console,
        execute=execute,
        about=None if facts is None else Owners(facts),
        **kept,
    )
    flights.finish(study, out, console)
    return record


def _options(names: Iterable[str]) -> str:
    """Arguments by the names that they have on the command line."""
    return ", ".join(f"--{name.replace('_', '-')}" for name in sorted(names))
