"""Plan a mechanism from the arguments of make_private, with a grid for exact sums where that is possible.

Imported where a mechanism is planned: it brings all optimisers.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import torch
from torch import nn

from anechoic.errors import GuaranteeError, UnsupportedError
from anechoic.mechanism.weak_delta import default_delta
from anechoic.noise.grid import default_bits
from anechoic.planning.compare import STRATEGIES, UNAMPLIFIED, plan
from anechoic.planning.families import StrategyName
from anechoic.planning.integer_noise import on_finest_grid
from anechoic.planning.result import Plan
from anechoic.planning.update import update_of, with_schedule
from anechoic.torch.noise_adder import SumArithmetic
from anechoic.torch.setup import mechanism_fit
from anechoic.torch.setup.arguments import Setup
from anechoic.torch.setup.checks import NO_ROWS
from anechoic.torch.sources.base import source_class
from anechoic.workloads import prefix_sum

logger = logging.getLogger("anechoic")


def planned(setup: Setup) -> tuple[Plan, SumArithmetic]:
    """Plan a mechanism; the arithmetic says whether it has a grid, and why."""
    if setup.mechanism not in STRATEGIES:
        raise ValueError(
            f"mechanism={setup.mechanism!r} is unknown: choose one of {', '.join(map(repr, STRATEGIES))},"
            " or pass a Mechanism made with anechoic.calibrate."
        )
    clip_norm = setup.clip_norm
    if clip_norm is None:
        raise ValueError("max_grad_norm is missing: give the clip norm, or a Mechanism, which has its own.")
    if setup.target_epsilon is None and setup.noise_multiplier is None:
        raise ValueError(
            "noise_multiplier is missing: give it, or a Mechanism, or use make_private_with_epsilon."
        )
    if setup.poisson_sampling and setup.mechanism in UNAMPLIFIED and setup.participation is None:
        logger.warning(
            "mechanism=%r: no amplification is proved for it, so batches come in a fixed order.",
            setup.mechanism,
        )
    if mechanism_fit.is_open(setup):
        steps = mechanism_fit.OPEN_STEPS
        setup = replace(setup, mechanism="identity", steps=steps, workload=prefix_sum, keep="all")
    size = setup.data_loader.batch_size
    if size is None:  # batches of somebody else, of whatever size
        raise UnsupportedError(
            "data_loader has a batch_sampler, and so no batch_size. Use shuffle=True or shuffle=False with a"
            " batch_size; or pass a Mechanism with External(participation, batch_size, steps)."
        )
    shuffled = setup.participation is None and mechanism_fit.is_shuffled(setup.data_loader)
    steps, delta = mechanism_fit.planned_steps(setup), setup.target_delta
    if delta is None:
        delta = default_delta(setup.count)
        logger.info("target_delta is not given: the guarantee is printed at 1 / (100 N) = %.3g.", delta)
    logger.info(
        "planning a mechanism for %d steps and %d %s, seconds to minutes: anechoic.plan makes one to give.",
        steps,
        setup.count,
        "examples" if setup.units is None else "units",
    )
    update = with_schedule(update_of(setup.optimizer), setup.scheduler, setup.scheduler_interval)
    dimension = sum(p.numel() for p in setup.parameters)
    name: StrategyName = setup.mechanism  # type: ignore[assignment] # a Mechanism is in no STRATEGIES

    def made(memory_budget: int | None) -> Plan:
        return plan(
            examples=setup.count,
            batch_size=size,
            steps=steps,
            epsilon=setup.target_epsilon,
            noise_multiplier=setup.noise_multiplier,
            delta=delta,
            dimension=dimension,
            memory_budget=memory_budget,
            random_sampling=setup.poisson_sampling,
            participation=setup.participation,
            optimizer=update,
            keep=setup.keep,
            workload=setup.workload,
            strategy=name,
            clip_norm=clip_norm,  # type: ignore[arg-type] # is not None
            adjacency=setup.adjacency or "zero_out",
            unit=setup.unit or ("example" if setup.units is None else "unit"),
            drop_last=setup.data_loader.drop_last,
        )

    against = against_grid(setup.grad_sample_mode, setup.parameters)
    found, arithmetic = _on_grid(made, setup, dimension, against)
    if shuffled and found.drawn is not None and name == "auto":
        most = min(1.0, found.drawn.predicted / found.chosen.predicted)
        drawing = "poisson_sampling=True would draw its batches in secret"
        said = f"The loader shuffles: {drawing}, for at most {most:.2g} times this error."
        found = replace(found, reason=f"{found.reason} {said}")
    logger.info("planned mechanism:\n%s", found)
    return found, arithmetic


def _on_grid(
    made: Callable[[int | None], Plan], setup: Setup, dimension: int, against: str
) -> tuple[Plan, SumArithmetic]:
    """Plan with a grid by default where there can be one.

    What is chosen is the choice without a grid where its noise has room on one, else what has room there.
    Where nothing has, sums are in floating point, with a warning.

    `made` plans within a budget, which counts noise in float32; `against` is what speaks against a grid.
    """
    budget = setup.budget

    def gridded(floats: Plan) -> Plan:
        return on_finest_grid(floats, dimension, setup.target_epsilon, default_bits(dimension), budget=budget)

    def fits(plan: Plan) -> bool:
        return budget is None or (plan.chosen.memory or 0) <= budget

    def within() -> Plan:
        """Plan for float64 memory, or twice as many rows of it, where a strategy fades."""
        half = gridded(made(budget and budget // 2))
        return half if fits(half) else gridded(made(budget and budget // 4))

    if setup.exact_sums:
        return within(), SumArithmetic(True, "exact_sums=True.")
    floats = made(budget)
    if setup.exact_sums is False or against:
        against = against if setup.exact_sums is None else "exact_sums=False."
        return floats, SumArithmetic(False, against)
    try:
        plan = gridded(floats)
    except (GuaranteeError, ValueError) as error:
        return floats, SumArithmetic(False, str(error))
    if not fits(plan):
        needed = plan.chosen.memory
        with suppress(GuaranteeError, ValueError):  # no strategy of what was asked for has room
            plan = within()
        if not fits(plan):
            lost = (
                f"the noise on a grid takes {needed} bytes, and memory_budget={budget}. Give as many for"
                " exact sums, or exact_sums=False."
            )
            warnings.warn(f"sums are in floating point: {lost}", UserWarning, stacklevel=2)
            reason = f"{floats.reason} Sums are in floating point: {lost}"
            return replace(floats, reason=reason), SumArithmetic(False, lost)
        less = 1.0 - floats.chosen.predicted / plan.chosen.predicted
        said = f"{floats.chosen.name} has {less:.0%} less error, by memory_budget={needed}, or in floating"
        exact = "Sums are exact, which takes twice the bytes of float32 or more:"
        plan = replace(plan, reason=f"{plan.reason} {exact} {said} point by exact_sums=False.")
    return plan, SumArithmetic(True, f"by default, with grid_bits={plan.mechanism.grid_bits}.")


def against_grid(mode: str, parameters: list[nn.Parameter]) -> str:
    """Return a reason against exact sums by default; "" for none."""
    if not source_class(mode).takes_grid:
        return f"grad_sample_mode={mode!r}: {NO_ROWS}."
    if devices := sorted({p.device.type for p in parameters} - {"cpu"}):
        return (
            f"parameters are on {devices[0]!r}, and gradients of rows would be rounded to a grid on the CPU:"
            " exact_sums=True does so."
        )
    if any(p.dtype != torch.float32 for p in parameters):
        return "parameters are float64, of which exact sums take several times as long: exact_sums=True."
    return ""
