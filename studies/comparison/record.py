"""What a study found, as one plain record: screen, report and results.json all read it."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from anechoic.errors import UnsupportedError
from anechoic.losses.dispatch import error
from anechoic.mechanism.mechanism import Mechanism
from anechoic.selection.selection import select
from anechoic.workloads import prefix_sum
from studies.comparison.study import Arm, Best, Outcome, Study, best, by_rate, gain
from studies.comparison.task import load

_PACKAGES = ("anechoic", "torch", "opacus", "numpy", "scipy", "dp-accounting")


def make_record(
    study: Study,
    outcomes: Sequence[Outcome],
    *,
    title: str,
    command: str,
    seconds: float,
    jobs: int,
    reasons: Mapping[str, str],
    units: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The record of a study, made of JSON values only.

    Args:
        study: what was run.
        outcomes: of all its runs, in any order.
        title: heading of the report.
        command: how to run it again.
        seconds: wall-clock time in all.
        jobs: worker processes.
        reasons: why the mechanism of an arm was chosen, by the arm's name.
        units: facts about the owners of examples, where some arms protect these.
    """
    arms = [_arm(study, arm, [o for o in outcomes if o.arm == arm.name], reasons) for arm in study.arms]
    return {
        "title": title,
        "command": command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "jobs": jobs,
        "machine": machine(),
        "task": _task(study.task),
        "steps": study.steps,
        "delta": study.delta,
        "clip_norm": study.task.clip_norm,
        "learning_rates": sorted({outcome.learning_rate for outcome in outcomes}),
        "seeds": list(study.seeds),
        "arms": arms,
        "comparisons": comparisons(study, outcomes),
        **({} if units is None else {"units": dict(units)}),
    }


def machine() -> dict[str, Any]:
    """Versions and processors: what figures depend on besides seeds."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processors": os.cpu_count(),
        "versions": {name: _version(name) for name in _PACKAGES},
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed as a package"


def _task(task: Any) -> dict[str, Any]:
    data = load(task)
    return {
        "name": type(task).__name__,
        "title": task.title,
        "description": task.describe(data),
        "metric": task.metric,
        "metric_long": task.metric_long,
        "examples": len(data.labels),
        "batch_size": task.batch_size,
        "example": task.example,
        "parameters": sum(p.numel() for p in task.build(0).parameters()),
        "random_without_noise": task.random,
    }


def _arm(study: Study, arm: Arm, outcomes: Sequence[Outcome], reasons: Mapping[str, str]) -> dict[str, Any]:
    top = best(outcomes)
    record: dict[str, Any] = {
        "name": arm.name,
        "title": arm.title,
        "kind": arm.kind,
        "scheme": arm.scheme,
        "unit": arm.unit,
        "local_steps": arm.local_steps,
        "epsilon": arm.epsilon,
        "clip_norm": arm.clip_norm,
        "best": {**asdict(top), "metrics": list(top.metrics)},
        "rates": [{"learning_rate": r, "mean": m, "error": e} for r, (m, e) in by_rate(outcomes).items()],
        "runs": [asdict(o) for o in outcomes],
        "seconds": round(sum(o.seconds for o in outcomes), 1),
    }
    if arm.mechanism is not None:
        record["mechanism"] = mechanism_record(arm, reasons.get(arm.name, ""))
    return record


def mechanism_record(arm: Arm, reason: str = "") -> dict[str, Any]:
    """What a private arm's mechanism is, and the error that it predicts of prefix sums.

    Args:
        arm: with a mechanism.
        reason: why it was chosen.
    """
    mechanism = Mechanism.from_json(arm.mechanism or "")
    rms = error(prefix_sum(mechanism.steps), mechanism.strategy).rms
    return {
        "file": f"{arm.name}.json",
        "strategy": mechanism.strategy.describe(),
        "sampling": mechanism.sampling.describe(mechanism.unit),
        "noise_std": mechanism.noise_std,
        "noise_multiplier": mechanism.noise_multiplier,
        "rms_error": rms,
        "predicted": mechanism.noise_std * rms / mechanism.expected_batch_size,
        "epsilon": mechanism.epsilon(),
        "fingerprint": mechanism.fingerprint,
        "reason": reason,
    }


def comparisons(study: Study, outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """One entry for each scheme, unit and epsilon with both kinds of noise, in the order of the arms."""
    found: dict[str, Best] = {}
    for arm in study.arms:
        found[arm.name] = best([o for o in outcomes if o.arm == arm.name])
    rows = []
    for arm in study.arms:
        rival = next(
            (
                a
                for a in study.arms
                if (a.kind, a.scheme, a.unit, a.epsilon) == ("independent", arm.scheme, arm.unit, arm.epsilon)
            ),
            None,
        )
        if arm.kind != "planned" or rival is None:
            continue
        tried = max(len(by_rate([o for o in outcomes if o.arm == one.name])) for one in (arm, rival))
        rows.append(
            {
                "scheme": arm.scheme,
                "unit": arm.unit,
                "epsilon": arm.epsilon,
                "chosen_epsilon": _chosen_epsilon((rival, arm), tried),
                "independent": rival.name,
                "planned": arm.name,
                **_gain(study, found[arm.name], found[rival.name]),
                "taken": _taken(study, outcomes, arm, rival),
            }
        )
    return rows


def _gain(study: Study, planned: Best, independent: Best) -> dict[str, Any]:
    mean, spread = gain(planned, independent)
    return {"gain": mean, "gain_error": spread if len(study.seeds) > 1 else None}


def _taken(study: Study, outcomes: Sequence[Outcome], arm: Arm, rival: Arm) -> dict[str, Any] | None:
    """The comparison at the rate that was taken without looking; None where there is none."""
    if study.taken not in study.rates:
        return None
    planned, independent = (
        best([o for o in outcomes if o.arm == one.name and o.learning_rate == study.taken])
        for one in (arm, rival)
    )
    return {
        "learning_rate": study.taken,
        "independent": {"best": asdict(independent)},
        "planned": {"best": asdict(planned)},
        **_gain(study, planned, independent),
    }


def _chosen_epsilon(arms: Sequence[Arm], rates: int) -> float | None:
    """What `select` needs for the best of as many runs in the mean; None where no theorem covers it."""
    mechanisms = [Mechanism.from_json(arm.mechanism or "") for arm in arms]
    if rates == 1:
        return max(mechanism.epsilon() for mechanism in mechanisms)
    with suppress(UnsupportedError):
        return max(select(one, mean=rates, score_on="public").epsilon() for one in mechanisms)
    return None
