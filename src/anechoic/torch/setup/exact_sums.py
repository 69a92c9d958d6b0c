"""Exact sums of a run, by exact_sums= of make_private: whether its mechanism has a grid, else why not."""

from __future__ import annotations

import torch
from torch import nn

from anechoic.errors import MismatchError, UnsupportedError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.torch.noise_adder import SumArithmetic
from anechoic.torch.sources.base import source_class


def check_exact_sums(exact_sums: bool | None, mechanism: Mechanism | str, mode: str) -> None:
    """Refuse exact sums that are not the mechanism's, or where there are no single contributions.

    Raises:
        ValueError: if exact_sums is no truth value.
        MismatchError, UnsupportedError: naming the remedy.
    """
    if exact_sums not in (None, True, False):
        raise ValueError(f"exact_sums={exact_sums!r} must be True, False or None.")
    bits = mechanism.grid_bits if isinstance(mechanism, Mechanism) else None
    if isinstance(mechanism, Mechanism) and exact_sums not in (None, bits is not None):
        raise MismatchError(
            f"exact_sums={exact_sums}, but the mechanism has grid_bits={bits}: the grid is a part"
            " of it. Leave exact_sums out, or use dataclasses.replace(mechanism, grid_bits=…)."
        )
    if (bits is not None or exact_sums) and not source_class(mode).takes_grid:
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


def against_grid(mode: str, parameters: list[nn.Parameter]) -> str:
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
