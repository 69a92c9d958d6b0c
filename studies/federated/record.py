"""What a study of a federation found, as one plain record: screen, report and results.json read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from studies.comparison.record import machine, mechanism_record
from studies.comparison.study import KINDS, Arm, Best, Kind, Outcome, best, by_rate, gain
from studies.federated.study import TUNING_SEED, FederatedStudy
from studies.federated.tasks import load

#: Which kinds are compared with which.
AGAINST: dict[Kind, tuple[Kind, ...]] = {
    "independent": ("tree", "blt", "banded"),
    "tree": ("blt", "banded"),
}


def make_record(
    study: FederatedStudy,
    outcomes: Sequence[Outcome],
    *,
    title: str,
    command: str,
    seconds: float,
    jobs: int,
) -> dict[str, Any]:
    """The record of a study, made of JSON values only.

    Args:
        study: what was run.
        outcomes: of all its runs, those that chose learning rates among them.
        title: heading of the report.
        command: how to run it again.
        seconds: wall-clock time in all.
        jobs: worker processes.
    """
    data = load(study.task)
    own = {arm.name: [o for o in outcomes if o.arm == arm.name] for arm in study.arms}
    figures = {name: figures_of(found) for name, found in own.items()}
    width, classes = data.shape
    return {
        "title": title,
        "command": command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "jobs": jobs,
        "machine": machine(),
        "task": {
            "name": study.task.name,
            "title": study.task.title,
            "description": study.task.describe(data),
            "metric": study.task.metric,
            "metric_long": study.task.metric_long,
            "clients": data.clients,
            "examples": data.examples,
            "parameters": width * classes,
        },
        "rounds": asdict(study.task.rounds),
        "delta": study.delta,
        "seeds": list(study.seeds),
        "tuning_seed": TUNING_SEED,
        "arms": [_arm(arm, own[arm.name], figures[arm.name]) for arm in study.arms],
        "comparisons": _comparisons(study.arms, figures),
        "ledger": _ledger(outcomes),
    }


def figures_of(outcomes: Sequence[Outcome]) -> Best:
    """What an arm reached on the seeds of the figures, at the learning rate that the other seed chose.

    Args:
        outcomes: of one arm. Where all are of the seed that chooses, they are the figures too.
    """
    tried = [o for o in outcomes if o.seed == TUNING_SEED]
    chosen = best(tried)
    found = best([o for o in outcomes if o.seed != TUNING_SEED] or tried)
    return Best(chosen.learning_rate, found.mean, found.error, found.metrics, chosen.edge)


def _arm(arm: Arm, outcomes: Sequence[Outcome], top: Best) -> dict[str, Any]:
    tried = by_rate([o for o in outcomes if o.seed == TUNING_SEED])
    return {
        "name": arm.name,
        "title": KINDS[arm.kind] + (f", ε = {arm.epsilon:g}" if arm.epsilon is not None else ""),
        "kind": arm.kind,
        "epsilon": arm.epsilon,
        "best": {**asdict(top), "metrics": list(top.metrics)},
        "tuning": [{"learning_rate": rate, "metric": mean} for rate, (mean, _) in tried.items()],
        "runs": [asdict(o) for o in outcomes],
        "seconds": round(sum(o.seconds for o in outcomes), 1),
        **({} if arm.mechanism is None else {"mechanism": mechanism_record(arm)}),
    }


def _comparisons(arms: Sequence[Arm], figures: dict[str, Best]) -> list[dict[str, Any]]:
    """Differences of two kinds at the same epsilon, paired by seed, in the order of the arms."""
    rows = []
    for base in arms:
        for other in arms:
            if other.epsilon == base.epsilon and other.kind in AGAINST.get(base.kind, ()):
                mean, error = gain(figures[other.name], figures[base.name])
                rows.append(
                    {
                        "epsilon": base.epsilon,
                        "base": base.kind,
                        "kind": other.kind,
                        "gain": mean,
                        "gain_error": error if len(figures[base.name].metrics) > 1 else None,
                    }
                )
    return rows


def _ledger(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What the ledgers of all runs saw."""
    facts = [outcome.facts for outcome in outcomes if outcome.facts]
    apart = [f["nearest"] for f in facts if f["nearest"] is not None]
    return {
        "runs": len(facts),
        "most": max((f["most"] or 0 for f in facts), default=0),
        "nearest": min(apart, default=None),
        "hours": round(sum(f["hours"] or 0 for f in facts) / max(1, len(facts))),
        "starved": round(sum(f["starved"] or 0 for f in facts) / max(1, len(facts))),
    }
