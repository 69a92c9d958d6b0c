"""`train`: the same comparison on a data set of several passes, with and without sampling."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from anechoic.mechanism.calibrate import calibrate
from anechoic.mechanism.mechanism import Mechanism
from anechoic.planning.families import StrategyName
from studies.aircraft import QUICK_PASSES, aircraft_study, sampled_study
from studies.comparison.runner import plain_arms, private_arms, run_study
from studies.comparison.study import Arm, Study, load
from studies.comparison.task import Flights
from studies.keeping import check_empty
from studies.owners import owner_lines
from studies.roots import damped as damped_root
from studies.tasks import FashionMNIST
from studies.training import execute

STEPS = 2048
RATES = {"logistic": (0.1, 0.3, 1.0, 3.0), "cnn": (0.3, 1.0, 3.0)}
#: What --quick leaves of it.
QUICK_EXAMPLES, QUICK_STEPS, QUICK_RATES = 6_000, 60, (0.3, 1.0)
QUICK_FLIGHTS, QUICK_FLIGHT_RATES = 64_000, (0.5, 1.0)


def flights_study(
    *,
    examples: int | None = None,
    epsilons: tuple[float, ...] = (0.1, 0.3, 1.0),
    delta: float = 1e-6,
    rates: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0),
    seeds: int = 3,
    strategy: StrategyName = "auto",
) -> Study:
    """Return the study of the flights in time order.

    Args:
        examples: the first so many flights; None for all.
        epsilons, delta: of the guarantees.
        rates: the grid of learning rates.
        seeds: how many, counted from 0.
        strategy: what the planned arm may choose from; see `plan`.
    """
    task = Flights(examples=examples)
    count = len(load(task).labels)
    run: dict[str, Any] = {"delta": delta, "steps": count // task.batch_size}
    given: dict[str, Any] = {"epsilons": epsilons, "examples": count, "strategy": strategy}
    arms = [*plain_arms(task), *private_arms(task, scheme="fixed", **given, **run)]
    return Study(task, tuple(arms), rates, tuple(range(seeds)), **run)


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
) -> Study:
    """Return the study of Fashion-MNIST.

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
    arms = plain_arms(task)
    for scheme in ("fixed", "poisson") if sampling == "both" else (sampling,):
        given: dict[str, Any] = {"epsilons": epsilons, "examples": count, "strategy": strategy}
        arms += private_arms(task, scheme=scheme, delta=delta, steps=length, **given)
    return Study(task, tuple(arms), rates or RATES[model], tuple(range(seeds)), length, delta)


def with_damped(study: Study) -> Study:
    """Return the study with a damped root before every planned mechanism that needs no sampling.

    Its one number has the least mean squared error of prefix sums for the steps and the participation of the
    planned mechanism, whose batches, unit and guarantee it shares.

    Args:
        study: of planned mechanisms in a fixed order, or of promised batches.

    Raises:
        UnsupportedError: for a promise whose worst pattern is not known.
    """
    arms: list[Arm] = []
    for arm in study.arms:
        planned = Mechanism.from_json(arm.mechanism) if arm.mechanism and arm.kind == "planned" else None
        if planned is not None and not planned.amplified:
            made = calibrate(
                damped_root(planned.steps, planned.sampling.participation),
                sampling=planned.sampling,
                epsilon=arm.epsilon,
                delta=planned.delta,
                clip_norm=planned.clip_norm,
                adjacency=planned.adjacency,
                unit=planned.unit,
            )
            arms.append(replace(arm, kind="damped", mechanism=made.to_json()))
        arms.append(arm)
    return replace(study, arms=tuple(arms))


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
    """Run `python -m studies train`, print its tables, and write `out`/results.json; returns the record.

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
            given = {"rates": QUICK_FLIGHT_RATES, "seeds": 1, **given, "examples": QUICK_FLIGHTS}
            if unit == "tail":
                given = {"epsilons": (1.0,), **({"passes": QUICK_PASSES} if sampled else {}), **given}
        if unit == "tail":
            study, facts = (sampled_study if sampled else aircraft_study)(**given)
        else:
            study = flights_study(**given)
    else:
        if directory is None:
            raise ValueError("--data fashion-mnist needs --data-dir, the folder with its four files.")
        if quick:
            given = {"rates": QUICK_RATES, **given, "examples": QUICK_EXAMPLES}
            given.setdefault("steps", QUICK_STEPS) if "epochs" not in given else None
        study = fashion_study(directory, **given)
    if damped:
        study = with_damped(study)
    kept: dict[str, Any] = {}
    if checkpoints is not None:
        checkpoints.mkdir(parents=True, exist_ok=True)
        kept = {"checkpoint": str(checkpoints), "checkpoint_every": checkpoint_every, "resume": resume}
    record = run_study(
        study,
        title=study.task.title + (" (quick look, a slice of the data)" if quick else ""),
        command=command,
        out=out,
        jobs=jobs,
        execute=execute,
        facts=lambda outcomes: {} if facts is None else {"units": facts},
        **kept,
    )
    if facts is not None:
        print("\n".join(owner_lines(record)))
    return record


def _options(names: Iterable[str]) -> str:
    """Arguments by the names that they have on the command line."""
    return ", ".join(f"--{name.replace('_', '-')}" for name in sorted(names))
