"""The study of a federation: every kind of noise at every epsilon, each with its own best learning rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from anechoic.mechanism.mechanism import Mechanism
from studies.comparison.record import mechanism_record
from studies.comparison.study import Arm, Outcome, Study, load
from studies.federated.arms import arms
from studies.federated.tasks import FederatedTask

EPSILONS = (1.0, 2.0, 4.0, 8.0, 16.0)
#: Learning rates are chosen on this seed, and figures are those of the seeds after it.
TUNING_SEED = 0
SEEDS = 3
#: First learning rates of an arm, as powers of 2 times a guess from the error that its mechanism predicts.
FIRST = (-1, 0, 1)
#: The guess at a predicted error of one clip norm.
GUESS = 0.0625
#: The largest guess: the rate of the arm without noise.
MOST = 0.25


def federated_study(
    task: FederatedTask,
    *,
    epsilons: tuple[float, ...] = EPSILONS,
    seeds: int = SEEDS,
    rates: tuple[float, ...] | None = None,
) -> Study:
    """Return all arms at each epsilon, with delta = 1 / N**1.1.

    Args:
        task: the federation.
        epsilons: of the guarantees.
        seeds: how many, after the one that learning rates are chosen on.
        rates: the first learning rates, the same for all arms; None for those around each arm's guess.

    Raises:
        ValueError: if the population cannot fill the rounds.
    """
    data = load(task)
    width, classes = data.shape
    found = arms(task.rounds, epsilons=epsilons, clients=data.clients, dimension=width * classes)
    grids = {arm.name: rates or tuple(guess(arm) * 2.0**power for power in FIRST) for arm in found}
    delta = next(Mechanism.from_json(arm.mechanism).delta for arm in found if arm.mechanism)
    figures = tuple(range(TUNING_SEED + 1, TUNING_SEED + 1 + seeds))
    return Study(task, found, grids, figures, task.rounds.rounds, delta, tuned_on=TUNING_SEED)


def guess(arm: Arm) -> float:
    """Return a learning rate near the best one, a power of 2, from the error that the mechanism predicts.

    The error enters the model times the learning rate. Where the guess is wrong the search goes on, for every
    arm by the same rule.
    """
    if arm.mechanism is None:
        return MOST
    predicted = mechanism_record(arm)["predicted"]
    return float(min(MOST, 2.0 ** round(math.log2(GUESS / predicted))))


def seen_by_ledgers(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return what the ledgers of all runs saw."""
    facts = [outcome.facts for outcome in outcomes if outcome.facts]
    apart = [f["nearest"] for f in facts if f["nearest"] is not None]
    return {
        "runs": len(facts),
        "most": max((f["most"] or 0 for f in facts), default=0),
        "nearest": min(apart, default=None),
        "hours": round(sum(f["hours"] or 0 for f in facts) / max(1, len(facts))),
        "starved": round(sum(f["starved"] or 0 for f in facts) / max(1, len(facts))),
    }
