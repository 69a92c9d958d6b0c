"""Calibration of a candidate to the goal, and its row of the table."""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch
from typing import Any

from anechoic.accounting.accountant import Accounting, MonteCarloAccountant
from anechoic.losses.dispatch import error
from anechoic.mechanism.calibrate import calibrate
from anechoic.mechanism.mechanism import Mechanism
from anechoic.planning.designs import Designs
from anechoic.planning.families import label
from anechoic.planning.memory_budget import MemoryBudget
from anechoic.planning.records import Candidate, Goal, PlanRow
from anechoic.planning.result import Plan
from anechoic.sampling.base import Sampling
from anechoic.strategies.base import Strategy
from anechoic.workloads import exponential_decay

#: Noise over what was estimated at which candidates that cannot be the best are compared.
SOMEWHAT_MORE = 1.0005


@singledispatch
def tightened_noise_std(sampling: Sampling, candidate: Candidate, goal: Goal, std: float) -> float:
    """A noise std that keeps the goal, near the least, where a search begins at `std`.

    By default `std`, of which the scheme's own accountant has shown that it keeps the goal.
    """
    return std


@singledispatch
def may_keep_goal(sampling: Sampling, candidate: Candidate, goal: Goal, std: float) -> bool:
    """Whether so much noise may keep the goal: no search is worth its time where it does not."""
    return True


def calibrate_candidate(candidate: Candidate, goal: Goal, *, compared: bool = False) -> Mechanism:
    """The candidate with the noise that the goal asks for.

    One that is only `compared` with the choice may have some more noise than needed, where that saves time.
    """
    if candidate.made is not None:
        return candidate.made
    if compared and goal.epsilon is not None:
        somewhat_more = candidate.enough or SOMEWHAT_MORE * candidate.expected
        made = _with_std(candidate, goal, somewhat_more)
        if candidate.enough is not None or made.epsilon() <= goal.epsilon:
            return made
    if candidate.enough is None:
        return calibrate_to_goal(goal, candidate.strategy, candidate.sampling)
    std = tightened_noise_std(candidate.sampling, candidate, goal, candidate.enough)
    return _with_std(candidate, goal, std)


def calibrate_to_goal(goal: Goal, strategy: Strategy, sampling: Sampling, **options: Any) -> Mechanism:
    """A strategy with the noise that the goal asks for, or with the noise multiplier that it gives.

    Args:
        options: of `calibrate`, besides the goal's or in their place.

    Raises:
        UnsupportedError: where no theorem covers the two.
    """
    kept = (
        {"epsilon": goal.epsilon} if goal.epsilon is not None else {"noise_multiplier": goal.noise_multiplier}
    )
    asked = {"delta": goal.delta, "clip_norm": goal.clip_norm, "adjacency": goal.adjacency, "unit": goal.unit}
    return calibrate(strategy, sampling=sampling, **{**kept, **asked, **options})


def _with_std(candidate: Candidate, goal: Goal, std: float) -> Mechanism:
    return Mechanism(
        candidate.strategy,
        candidate.sampling,
        std,
        goal.clip_norm,
        goal.adjacency,
        goal.unit,
        goal.delta,
    )


def with_verified_noise(plan: Plan, epsilon: float | None, accounting: Accounting | str) -> Plan:
    """The plan with the noise of its choice that Monte Carlo verifies, where that is asked for and less.

    One row alone, chosen before anything was drawn: the failures of several would add up.

    Args:
        epsilon: that the choice keeps; None for its own.
    """
    best, made, rows = plan.chosen, plan.mechanism, plan.rows
    offered, said = isinstance(made.accountant, MonteCarloAccountant), ""
    if accounting == "deterministic":
        said = " Monte Carlo may show that less noise is enough: plan(accounting='verified')." * offered
    elif not offered:
        said = " Monte Carlo has nothing to verify: it is offered for balls in bins and min-sep sampling."
    else:
        goal = Goal(epsilon or made.epsilon(), made.delta, None, made.clip_norm, made.adjacency, made.unit)
        found = calibrate_to_goal(goal, made.strategy, made.sampling, accounting=accounting)
        part, said = found.noise_std / made.noise_std, " Monte Carlo verifies no less noise."
        if part < 1.0:
            scaled = {name: part * getattr(best, name) for name in ("predicted", "step_noise")}
            noise = {name: getattr(found, name) for name in ("noise_std", "noise_multiplier")}
            less, made = replace(best, mechanism=found, **scaled, **noise), found
            rows = tuple(sorted((less if row is best else row for row in rows), key=lambda row: row.relative))
            said = f" Monte Carlo verifies it with {1 - part:.1%} less noise than the bounds above."
    return replace(plan, rows=rows, mechanism=made, reason=plan.reason + said)


def row_of(mechanism: Mechanism, designs: Designs, room: MemoryBudget) -> PlanRow:
    """A line of the table.

    Args:
        mechanism: calibrated.
        designs: of the plan's objective, among them its strategy.
        room: for the memory of its noise state.
    """
    recurrence, rms = mechanism.strategy.recurrence(), designs.of(mechanism.strategy)
    storage, history = room.storage(recurrence)
    batch_size = mechanism.expected_batch_size
    one_step = error(exponential_decay(mechanism.steps, 0.0), mechanism.strategy).rms
    return PlanRow(
        name=label(mechanism.strategy),
        sampling=type(mechanism.sampling).__name__,
        noise_std=mechanism.noise_std,
        noise_multiplier=mechanism.noise_multiplier,
        rms_error=rms,
        predicted=mechanism.noise_std * rms / batch_size,
        step_noise=mechanism.noise_std * one_step / batch_size,
        memory=room.memory(history),
        seconds=room.seconds(recurrence, storage),
        history=history,
        batch_size=batch_size,
        mechanism=mechanism,
        objective=designs.objective,
        noise_storage=storage,
    )
