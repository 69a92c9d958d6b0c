"""Drift: how far rounding may take the memory of noise that is not made of integers.

Decays cannot be multiplied for ever without rounding, so what such filters feed back is off by a little more
in each step. Kept in 106 bits, all of it together stays below `DRIFT` standard deviations: see
docs/proofs/noise.md#exact-rounding, which says what that costs.
"""

from __future__ import annotations

import math
from functools import singledispatch

import numpy as np

from anechoic.errors import GuaranteeError
from anechoic.noise.recurrence import Buffered, Mixed, Nested, StateSpace
from anechoic.noise.rounding import double_double

#: 2-norm, over all entries and steps, of the drift that is permitted, in standard deviations of z.
DRIFT = 2.0**-40
#: What it costs where epsilon is amplified: epsilon grows by this, and delta by this part of itself. The
#: noise drifts on both of two neighbouring data sets, each time by 64 * DRIFT in epsilon but for exp(-2000)
#: in delta.
DRIFT_EPSILON, DRIFT_DELTA = 2 * 64 * DRIFT, 2.0**-32
#: Largest memory for which the bound holds, in standard deviations of a row; larger memory is refused.
LARGEST_MEMORY = 2.0**24
#: Steps over which what a rounding does is added up one by one.
MOST_STEPS = 2**17


def before_drift(delta: float, drift: float, runs: int = 1) -> tuple[float, float]:
    """(inner, excess): (epsilon, inner)-DP without drift is (epsilon + excess, delta)-DP with it.

    Args:
        runs: that drift, of those that are composed: one after the other is put in for what it stands for.
    """
    return (delta * (1 - DRIFT_DELTA) ** runs, runs * DRIFT_EPSILON) if drift and runs else (delta, 0.0)


def checked_drift(recurrence: Mixed, dimension: int) -> float:
    """Bound on the drift over all rows, of so many entries.

    Raises:
        GuaranteeError: if it is above DRIFT.
    """
    local, reach = rounding_of(recurrence)
    steps = recurrence.n
    drift = math.sqrt(dimension) * math.sqrt(steps) * reach * local * LARGEST_MEMORY * double_double.ERROR
    if not drift <= DRIFT:
        raise GuaranteeError(
            f"the memory of this noise may drift by {drift:.2g} standard deviations over {steps} steps, above"
            f" {DRIFT:.2g}: use a strategy whose memory fades faster, or a banded one, whose memory is exact."
        )
    return drift


def check_memory(largest: float, std: float) -> None:
    """Refuse memory beyond LARGEST_MEMORY times `std`, the scale of the row that it goes with.

    Raises:
        GuaranteeError: if it is.
    """
    if not largest <= LARGEST_MEMORY * std:
        raise GuaranteeError(
            f"the memory of the noise has grown to {largest / std:.2g} standard deviations: rounding is"
            f" proven up to {LARGEST_MEMORY:.2g}. Use a strategy whose noise does not grow."
        )


@singledispatch
def rounding_of(recurrence: Mixed) -> tuple[float, float]:
    """(local, reach): a step takes memory off by `local` times ERROR, which counts `reach` times in rows."""
    raise NotImplementedError  # pragma: no cover - closed


@rounding_of.register
def _(recurrence: Buffered) -> tuple[float, float]:
    # a product and a sum a step, each off by ERROR of what is in memory, fade like the memory itself
    steps = float(recurrence.horizon)
    reach = sum(
        abs(float(scale)) * min(steps, 1 / (1 - float(decay)) if decay < 1 else math.inf)
        for scale, decay in zip(recurrence.scale, recurrence.decay, strict=True)
    )
    return 3.0, reach


@rounding_of.register
def _(recurrence: StateSpace) -> tuple[float, float]:
    if recurrence.horizon > MOST_STEPS:
        raise GuaranteeError(
            f"{recurrence.horizon} steps without a restart are too many to bound the rounding of this noise:"
            " restart it, or use a BLT."
        )
    row, reach = np.abs(recurrence.readout), 0.0
    power = np.array(recurrence.readout, dtype=np.float64)
    for _ in range(recurrence.horizon):
        reach += float(row.sum())
        power = power @ recurrence.transition
        row = np.abs(power)
        if not row.any() or not math.isfinite(reach):
            break
    # d + 1 terms are multiplied and added up; 2 for the rounding of this bound itself
    growth = float(np.abs(recurrence.transition).sum(axis=1, initial=0.0).max(initial=0.0))
    largest = float(np.abs(recurrence.input).max(initial=0.0))
    return 2.0 * (len(row) + 3) * (growth + largest + 1), reach


@rounding_of.register
def _(recurrence: Nested) -> tuple[float, float]:
    # a sum of `steps` rows at most, each divided and added to sums of sums
    rows = [recurrence.row(s) for s in range(recurrence.horizon)]
    return 2.0 * recurrence.horizon, max(float(np.abs(row[1:]).sum() / row[0]) for row in rows)
