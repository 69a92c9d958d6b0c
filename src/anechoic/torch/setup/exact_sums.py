"""Exact sums of a run, by exact_sums= of make_private: whether its mechanism has a grid, else why not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import torch
from torch import nn

from anechoic.errors import GuaranteeError, MismatchError, UnsupportedError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.noise.grid import default_bits
from anechoic.planning.integer_noise import on_finest_grid
from anechoic.planning.result import Plan
from anechoic.torch.noise_adder import SumArithmetic
from anechoic.torch.sources.base import source_class


def check_exact_sums(exact_sums: bool | None, mechanism: Mechanism | str, mode: str) -> None:
    """Refuse exact sums that are not the mechanism's, or where there are no single contributions.

    Args:
        exact_sums: as given to make_private.
        mechanism: a Mechanism, which has a grid or none, or the name of a strategy to plan.
        mode: grad_sample_mode.

    Raises:
        ValueError: if exact_sums is no truth value.
        MismatchError, UnsupportedError: naming the remedy.
    """
    if exact_sums not in (None, True, False):
        raise ValueError(f"exact_sums={exact_sums!r} must be True, False or None.")
    bits = mechanism.grid_bits if isinstance(mechanism, Mechanism) else None
    given = bits is not None
    if isinstance(mechanism, Mechanism) and exact_sums not in (None, given):
        raise MismatchError(
            f"exact_sums={exact_sums}, but the mechanism has grid_bits={bits}: the grid is a part"
            " of it. Leave exact_sums out, or use dataclasses.replace(mechanism, grid_bits=…)."
        )
    if (given or exact_sums) and not source_class(mode).takes_grid:
        raise UnsupportedError(
            f"grad_sample_mode={mode!r} with exact sums: it never has the gradient of a single example, which"
            " is what is rounded to the grid. Use 'rows', or exact_sums=False and no grid_bits."
        )


def arithmetic_of(mechanism: Mechanism) -> SumArithmetic:
    """Return the arithmetic of a given mechanism."""
    if mechanism.grid_bits is not None:
        return SumArithmetic(True, f"the given mechanism has grid_bits={mechanism.grid_bits}.")
    return SumArithmetic(
        False, "the given mechanism has no grid_bits. calibrate(…, grid_bits=…) makes one that has."
    )


def plan_with_grid(
    made: Callable[[int | None], Plan],
    *,
    exact_sums: bool | None,
    mode: str,
    parameters: list[nn.Parameter],
    epsilon: float | None,
    memory_budget: int | None,
) -> tuple[Plan, SumArithmetic]:
    """Plan a mechanism, with a grid by default where there can be one.

    Args:
        made: plans within a budget, which counts noise in float32.
        exact_sums: None for exact sums where nothing speaks against them. What is chosen is then the choice
            without a grid where its noise has room there too, else what has room on a grid. Where nothing
            has, sums are in floating point, with a warning.
        mode: grad_sample_mode.
        parameters: the trainable ones.
        epsilon: that the mechanism must keep within, or None.
        memory_budget: bytes that the noise state may take, or None.

    Raises:
        GuaranteeError, ValueError: if exact_sums is True, and noise or clip norm permit no grid.
    """
    dimension = sum(p.numel() for p in parameters)

    def gridded(floats: Plan) -> Plan:
        bits = default_bits(dimension)
        return on_finest_grid(floats, dimension, epsilon, bits, budget=memory_budget)

    def within(shares: tuple[int, ...]) -> Plan:
        """The first of these parts of the budget, counted in float32, whose choice fits on a grid."""
        for share in shares:
            plan = gridded(made(memory_budget and memory_budget // share))
            if fits(plan):
                break
        return plan

    def fits(plan: Plan) -> bool:
        return memory_budget is None or (plan.chosen.memory or 0) <= memory_budget

    # float64 memory, and twice as many rows where a strategy fades
    halves = (2, 4)
    if exact_sums:
        return within(halves), SumArithmetic(True, "exact_sums=True.")
    floats = made(memory_budget)
    if exact_sums is False:
        return floats, SumArithmetic(False, "exact_sums=False.")
    reason = _against(mode, parameters)
    if reason:
        return floats, SumArithmetic(False, reason)
    try:
        plan = gridded(floats)
    except (GuaranteeError, ValueError) as error:
        return floats, SumArithmetic(False, str(error))
    if not fits(plan):
        needed = plan.chosen.memory
        with suppress(GuaranteeError, ValueError):  # no strategy of what was asked for has room
            plan = within(halves)
        if not fits(plan):
            lost = (
                f"the noise on a grid takes {needed} bytes, and memory_budget={memory_budget}. Give as many"
                " for exact sums, or exact_sums=False."
            )
            warnings.warn(f"sums are in floating point: {lost}", UserWarning, stacklevel=2)
            return _said(floats, f"Sums are in floating point: {lost}"), SumArithmetic(False, lost)
        less = 1.0 - floats.chosen.predicted / plan.chosen.predicted
        plan = _said(
            plan,
            f"Sums are exact, which takes twice the bytes of float32 or more: {floats.chosen.name} has"
            f" {less:.0%} less error, by memory_budget={needed}, or in floating point by exact_sums=False.",
        )
    return plan, SumArithmetic(True, f"by default, with grid_bits={plan.mechanism.grid_bits}.")


def _said(plan: Plan, more: str) -> Plan:
    return replace(plan, reason=f"{plan.reason} {more}")


def _against(mode: str, parameters: list[nn.Parameter]) -> str:
    """Return a reason against exact sums, before anything is planned; "" for none."""
    if not source_class(mode).takes_grid:
        return (
            f"grad_sample_mode={mode!r} never has the gradient of a single example, which is what is rounded"
            " to a grid."
        )
    devices = sorted({p.device.type for p in parameters} - {"cpu"})
    if devices:
        return (
            f"parameters are on {devices[0]!r}, and gradients of rows are rounded to a grid on the CPU: they"
            " would be carried there. exact_sums=True does so."
        )
    if any(p.dtype != torch.float32 for p in parameters):
        return (
            "parameters are float64, whose gradients are rounded to a grid row by row, which takes several"
            " times as long as summing them. exact_sums=True does so."
        )
    return ""
