"""The demo: late flights, one pass in time order, where no sampling can help."""

from __future__ import annotations

import json
import math
import multiprocessing
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from anechoic.demo.flights import flights_design
from anechoic.demo.metrics import mean_and_error
from anechoic.demo.report import (
    ARMS,
    HEAD,
    IF_DRAWN,
    NOT_COVERED,
    TUNING,
    cells,
    draw_utility,
    headline,
    report_page,
)
from anechoic.demo.training import BATCH_SIZE, CLIP_NORM, Arm, Run, train
from anechoic.errors import AnechoicError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.planning.compare import plan
from anechoic.plots.style import as_svg
from anechoic.sampling import FixedOrder
from anechoic.selection.selection import select
from anechoic.statement.software import software
from anechoic.strategies import Identity

EPSILONS, DELTA = (0.1, 0.3, 1.0), 1e-6
#: Learning rates at first; an arm that does best at an end of its rates tries more, `WIDER` times beyond.
RATES, WIDER = (0.25, 0.5, 1.0, 2.0), 64.0
SEEDS = 3
#: What --quick leaves of it: for a look at the report, not for figures.
QUICK_FLIGHTS, QUICK_SEEDS, QUICK_RATES = 64_000, 2, (0.5, 1.0)

Scores = dict[Run, float]


def demo(*, out: Path, seeds: int | None, quick: bool, jobs: int, command: str) -> dict[str, Any]:
    """Train every arm, show what it reached, and write the report; returns its record.

    Args:
        out: folder for report.html, flights.svg, results.json and the mechanism files.
        seeds: how many; None for the default.
        quick: a slice of the data, fewer seeds and learning rates.
        jobs: worker processes; 0 for none.
        command: how to run it again, for the report.

    Raises:
        AnechoicError: if a worker was killed.
    """
    console, start = Console(), time.perf_counter()
    count = QUICK_FLIGHTS if quick else len(flights_design()[1])
    with console.status("Planning the mechanisms"):
        arms, reasons = planned_arms(count)
    runs_with = list(range(seeds or (QUICK_SEEDS if quick else SEEDS)))
    out.mkdir(parents=True, exist_ok=True)
    for arm in arms:
        if arm.kind in ARMS:
            (out / f"{arm.name}.json").write_text(arm.mechanism or "", encoding="utf-8")
    scores: Scores = {}
    wanted = [(arm, rate) for arm in arms for rate in (QUICK_RATES if quick else RATES)]
    while wanted:
        scores |= train_all(
            [
                Run(arm, rate, seed, QUICK_FLIGHTS if quick else None)
                for arm, rate in wanted
                for seed in (
                    runs_with if arm.epsilon is not None else runs_with[:1]
                )  # else nothing is random
            ],
            jobs,
            console,
        )
        wanted = [] if quick else [(arm, rate) for arm in arms if (rate := next_rate(arm, scores))]
    record = {
        "title": "late flights, in time order" + (" (quick look, a slice of the data)" if quick else ""),
        "command": command,
        "flights": count,
        "steps": count // BATCH_SIZE,
        "delta": DELTA,
        "seeds": runs_with,
        "rows": [compared(arms, scores, epsilon) for epsilon in EPSILONS],
        **{
            kind: best(next(arm for arm in arms if arm.kind == kind), scores) for kind in ("clipped", "plain")
        },
        "runs": [[run.arm.name, run.rate, run.seed, score] for run, score in scores.items()],
        "reasons": reasons,
        "seconds": round(time.perf_counter() - start, 1),
        "software": software(),
    }
    write(record, {arm.name: arm.mechanism for arm in arms if arm.kind in ARMS}, out)
    show(record, console)
    console.print(f"Report: {out / 'report.html'}", highlight=False, soft_wrap=True)
    return record


def planned_arms(flights: int) -> tuple[list[Arm], dict[str, str]]:
    """Return both arms without privacy, three kinds of noise at each epsilon, and why each was planned."""
    steps = flights // BATCH_SIZE
    silent = Mechanism(Identity(steps), FixedOrder(flights, BATCH_SIZE, steps=steps, drop_last=True), 1e-12)
    arms, reasons = [Arm("plain"), Arm("clipped", mechanism=silent.to_json())], {}
    for epsilon in EPSILONS:
        for kind, strategy in (("independent", "identity"), ("planned", "auto")):
            found = plan(
                examples=flights,
                batch_size=BATCH_SIZE,
                steps=steps,
                epsilon=epsilon,
                delta=DELTA,
                dimension=2 * flights_design()[0].shape[1],
                random_sampling=False,
                strategy=strategy,  # type: ignore[arg-type]
                clip_norm=CLIP_NORM,
                drop_last=True,
            )
            arms.append(Arm(kind, epsilon, found.mechanism.to_json()))
            reasons[arms[-1].name] = found.reason
            if kind == "independent" and found.drawn is not None:
                noise = replace(found.mechanism, noise_std=found.drawn.noise_std)
                arms.append(Arm("drawn", epsilon, noise.to_json()))
    return arms, reasons


def train_all(runs: Sequence[Run], jobs: int, console: Console) -> Scores:
    """Return what each run reached, from worker processes of one thread each, with a bar."""
    if jobs == 0:
        return {run: train(run) for run in track(runs, "Training", console=console)}
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, len(runs)), context, initializer=_enter_worker)
    try:
        waiting = {pool.submit(train, run): run for run in runs}
        ended = track(as_completed(waiting), "Training", total=len(runs), console=console)
        return {waiting[future]: future.result() for future in ended}
    except BrokenProcessPool as error:
        raise AnechoicError(
            "a worker process was killed, most often for want of memory: try again with --jobs 1."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _enter_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    torch.set_num_threads(1)


def by_rate(arm: Arm, scores: Scores) -> dict[float, list[float]]:
    """Return the scores of an arm at each rate, in the order of the seeds."""
    own = sorted((run.rate, run.seed, score) for run, score in scores.items() if run.arm == arm)
    return {rate: [score for other, _, score in own if other == rate] for rate, _, _ in own}


def best(arm: Arm, scores: Scores) -> dict[str, Any]:
    """Return the rate of the largest mean score, and what it reached."""
    table = by_rate(arm, scores)
    rate = max(table, key=lambda one: math.fsum(table[one]))
    mean, error = mean_and_error(table[rate])
    return {"rate": rate, "rates": len(table), "mean": mean, "error": error, "scores": table[rate]}


def next_rate(arm: Arm, scores: Scores) -> float | None:
    """Return twice or half the rate at which an arm does best, where that is an end of its rates."""
    rates, top = list(by_rate(arm, scores)), best(arm, scores)["rate"]
    further = top / 2 if top == rates[0] else 2 * top
    inside = top not in (rates[0], rates[-1])
    return None if inside or not RATES[0] / WIDER <= further <= RATES[-1] * WIDER else further


def compared(arms: Sequence[Arm], scores: Scores, epsilon: float) -> dict[str, Any]:
    """Return what each kind of noise reached at an epsilon; the gain is paired by seed."""
    pair = {arm.kind: arm for arm in arms if arm.epsilon == epsilon}
    found = {kind: best(arm, scores) for kind, arm in pair.items()}
    each = zip(found["planned"]["scores"], found["independent"]["scores"], strict=True)
    gain, error = mean_and_error([ours - theirs for ours, theirs in each])
    tried = max(found[kind]["rates"] for kind in ARMS)
    made = [Mechanism.from_json(pair[kind].mechanism or "") for kind in ARMS]
    chosen = [one if tried == 1 else select(one, mean=tried, score_on="public") for one in made]
    return {
        "epsilon": epsilon,
        "chosen": max(one.epsilon() for one in chosen),
        **found,
        "gain": gain,
        "gain_error": error,
    }


def write(record: dict[str, Any], mechanisms: dict[str, str | None], out: Path) -> None:
    """Write results.json, flights.svg and report.html."""
    text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    (out / "results.json").write_text(text, encoding="utf-8")
    figure, words = draw_utility(record)
    (out / "flights.svg").write_text(as_svg(figure, words), encoding="utf-8")
    made = {name: Mechanism.from_json(mechanism or "") for name, mechanism in mechanisms.items()}
    (out / "report.html").write_text(report_page(record, made), encoding="utf-8")


def show(record: dict[str, Any], console: Console) -> None:
    """Print the headline and the table."""
    console.print(headline(record), style="bold", highlight=False)
    table = Table(*HEAD)
    for row in record["rows"]:
        table.add_row(*cells(record, row))
    console.print(table)
    for line in (IF_DRAWN, TUNING, *NOT_COVERED):
        console.print(line, style="dim", highlight=False)
