"""`train --data flights --unit tail`: what it costs to protect an aircraft instead of a flight.

An aircraft flies many times a year, and in time order nobody chooses when. So a statement about it needs a
bound on how often it takes part: its flights that come too soon after those that were used, or too often, are
left out of the training (they are scored all the same). The flights of one aircraft in one batch are averaged
and clipped together. Which aircraft flies when is a public schedule; what is protected is what flights show.

Where the whole year may be used at once (`--sampling poisson`), aircraft are drawn at random instead: each
takes part with some of its flights, all aircraft equally often. Flights and aircraft are then judged on the
last tenth of the year, which nobody trains on.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np

from anechoic.accounting import gaussian_epsilon
from anechoic.mechanism.mechanism import Mechanism
from anechoic.participation import MinSep
from anechoic.planning.compare import plan
from anechoic.planning.families import StrategyName
from studies.bounding import (
    ContributionBound,
    Owners,
    batches_in_order,
    choose,
    counts_in_order,
    owner_mu,
    owners_in,
    participation_of,
)
from studies.comparison.runner import plain_arms, private_arms
from studies.comparison.study import Arm, Study, load
from studies.comparison.task import Flights
from studies.tasks import BoundedFlights, SampledFlights

UNIT = "aircraft"
EPSILONS = (1.0, 4.0)
RATES = (0.125, 0.25, 0.5, 1.0)
SEEDS = 2
#: Where batches are drawn at random: learning rates, and passes over the aircraft.
SAMPLED_RATES = (0.25, 0.5, 1.0, 2.0)
PASSES, QUICK_PASSES = 16, 2


def aircraft_study(
    *,
    examples: int | None = None,
    epsilons: tuple[float, ...] = EPSILONS,
    delta: float = 1e-6,
    rates: tuple[float, ...] = RATES,
    seeds: int = SEEDS,
    strategy: StrategyName = "auto",
    separation: int | None = None,
    limit: int | None = None,
) -> tuple[Study, dict[str, Any]]:
    """Return the study in time order at two units, and facts about aircraft: the entry "units" of its record.

    Args:
        examples: the first so many flights; None for all.
        epsilons, delta: of the guarantees, for a flight and for an aircraft.
        rates: the grid of learning rates.
        seeds: how many, counted from 0.
        strategy: what the planned arms may choose from; see `plan`.
        separation, limit: steps between two participations of an aircraft, and how many there may be; None
            takes what `plan` predicts the least error for.
    """
    flights = Flights(examples=examples)
    data = load(flights)
    owners, count, size = np.asarray(data.owners), len(data.labels), flights.batch_size
    steps = count // size
    setting: dict[str, Any] = {
        "scheme": "fixed",
        "epsilons": epsilons,
        "delta": delta,
        "steps": steps,
        "strategy": strategy,
    }

    def predicted(promise: MinSep, units: int) -> float:
        # of the classes, this one is designed in no time and comes close to the best
        found = plan(
            examples=units * steps,
            batch_size=units,
            steps=steps,
            noise_multiplier=1.0,
            delta=delta,
            participation=promise,
            strategy="banded_toeplitz" if strategy == "auto" and promise.separation > 1 else strategy,
            unit=UNIT,
        )
        return next(row.predicted for row in found.rows if row.chosen)

    if separation is None and limit is None:
        bound, compared = choose(owners, size, steps, predicted)
    else:
        gap = separation or 1
        bound, compared = ContributionBound(gap, limit or -(-steps // gap)), []
    task = BoundedFlights(examples=examples, bound=bound)
    batches = batches_in_order(bound.kept(owners, size, steps), size, steps)
    promise, units = participation_of(batches, owners), max(1, round(owners_in(batches, owners)))
    used = sum(map(len, batches))

    arms = private_arms(flights, **setting, examples=count)
    bounded: dict[str, Any] = {"unit": UNIT, "participation": promise, "batch_size": units}
    more = private_arms(flights, **setting, examples=used, **bounded)
    silent = [*plain_arms(task), Arm("clipped", "fixed", task.clip_norm, unit=UNIT)]
    study = Study(task, (*silent, *arms, *more), rates, tuple(range(seeds)), steps, delta)
    facts = {
        "name": UNIT,
        "count": len(np.unique(owners[: steps * size])),
        "bound": asdict(bound),
        "examples": steps * size,
        "used": used,
        "batch_size": units,
        "promise": promise.describe(),
        "compared": compared,
        "worth": worth(arms, owners, size, steps, delta),
    }
    return study, facts


def sampled_study(
    *,
    examples: int | None = None,
    epsilons: tuple[float, ...] = (1.0,),
    delta: float = 1e-6,
    rates: tuple[float, ...] = SAMPLED_RATES,
    seeds: int = SEEDS,
    strategy: StrategyName = "auto",
    passes: int = PASSES,
) -> tuple[Study, dict[str, Any]]:
    """Return the study with batches drawn at random, of flights or of aircraft; see `aircraft_study`.

    Args:
        examples, epsilons, delta, rates, seeds, strategy: see `aircraft_study`.
        passes: over the aircraft, on average; the arms that protect flights make as many steps.
    """
    task = SampledFlights(examples=examples)
    data = load(task)
    owners, count = np.asarray(data.owners), len(data.labels)
    aircraft = len(np.unique(owners))
    steps = passes * (aircraft // task.owners_a_batch)
    setting: dict[str, Any] = {
        "scheme": "poisson",
        "epsilons": epsilons,
        "delta": delta,
        "steps": steps,
        "strategy": strategy,
    }
    arms = private_arms(task, **setting, examples=count)
    more = private_arms(task, **setting, examples=aircraft, unit=UNIT, batch_size=task.owners_a_batch)
    silent = [*plain_arms(task), Arm("clipped", "fixed", task.clip_norm, unit=UNIT)]
    study = Study(task, (*silent, *arms, *more), rates, tuple(range(seeds)), steps, delta)
    facts = {
        "name": UNIT,
        "count": aircraft,
        "examples": count,
        "bound": None,
        "most_examples": task.most_flights,
        "batch_size": task.owners_a_batch,
        "compared": [],
        "worth": [],
    }
    return study, facts


def worth(arms: list[Arm], owners: Owners, batch_size: int, steps: int, delta: float) -> list[dict[str, Any]]:
    """What each statement about a flight is worth for an aircraft: one entry an arm.

    For the aircraft that moves the releases most, and for the one in the middle: epsilon at the same delta,
    exact from its own flights. `group` and `group_delta` are what group privacy says of the busiest, from
    epsilon and delta alone.
    """
    counts = counts_in_order(owners, batch_size, steps)
    flights = counts.sum(axis=0)
    found = []
    for arm in arms:
        mu = owner_mu(Mechanism.from_json(arm.mechanism or ""), counts)[flights > 0]
        found.append(
            {
                "arm": arm.name,
                "epsilon": arm.epsilon,
                "kind": arm.kind,
                "mu": float(mu.max()),
                "worst": gaussian_epsilon(delta, float(mu.max())),
                "median": gaussian_epsilon(delta, float(np.median(mu))),
                "most_examples": int(flights.max()),
                "group": float(flights.max()) * (arm.epsilon or 0.0),
                "group_delta": group_delta(int(flights.max()), arm.epsilon or 0.0, delta),
            }
        )
    return found


def group_delta(members: int, epsilon: float, delta: float) -> float:
    """delta of group privacy, delta * (e^(k epsilon) - 1) / (e^epsilon - 1), at most 1."""
    whole = members * epsilon
    logarithm = whole + math.log1p(-math.exp(-whole)) - math.log(math.expm1(epsilon)) + math.log(delta)
    return 1.0 if logarithm >= 0 else math.exp(logarithm)
