"""Rounded rows of fading sums (BLT) and of states: their memory is no integer, so it is kept in pairs.

Decays cannot be multiplied for ever without rounding, so what these filters feed back is off by a little more
in each step. Kept in 106 bits, all of it together stays below `DRIFT` standard deviations: see
docs/proofs/float-safe.md, which says what that costs.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cached_property

import numpy as np

from anechoic.errors import GuaranteeError
from anechoic.noise.filters.base import digest_of, horizon
from anechoic.noise.recurrence import Buffered, StateSpace
from anechoic.noise.rounding import double_double
from anechoic.noise.rounding.base import Block, RowPlan, size
from anechoic.noise.rounding.weights import Listed
from anechoic.noise.rounding.windowed import gain

#: 2-norm, over all entries and steps, of the drift that is permitted, in standard deviations of z.
DRIFT = 2.0**-40
#: What it costs where epsilon is amplified: epsilon grows by this, and delta by this part of itself. The
#: noise drifts on both of two neighbouring data sets, each time by 64 * DRIFT in epsilon but for exp(-2000)
#: in delta.
DRIFT_EPSILON, DRIFT_DELTA = 2 * 64 * DRIFT, 2.0**-32
#: Largest memory for which the bound holds, in standard deviations of a row; larger memory is refused.
LARGEST_MEMORY = 2.0**24
#: Steps over which the powers of a transition matrix are added up one by one.
MOST_STEPS = 2**17


def before_drift(delta: float, drift: float, runs: int = 1) -> tuple[float, float]:
    """(inner, excess): (epsilon, inner)-DP without drift is (epsilon + excess, delta)-DP with it.

    Args:
        runs: that drift, of those that are composed: one after the other is put in for what it stands for.
    """
    return (delta * (1 - DRIFT_DELTA) ** runs, runs * DRIFT_EPSILON) if drift and runs else (delta, 0.0)


def checked_drift(local: float, reach: float, steps: int, dimension: int) -> float:
    """Bound on the drift over `steps` rows, where memory is off by `local` a step and counts `reach` times.

    Raises:
        GuaranteeError: if it is above DRIFT.
    """
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


class RoundedBuffered:
    """d fading sums of the rounded rows, in units of the last one; high parts first, then low parts."""

    kind = "Buffered, rounded"
    exact = False

    def __init__(self, recurrence: Buffered, std: float) -> None:
        self._recurrence = recurrence
        self._std = std
        self._buffers = len(recurrence.scale) if horizon(recurrence) > 1 else 0
        self.rows = 2 * self._buffers

    def used(self, t: int) -> int:
        return self.rows if self._recurrence.local(t) else 0

    def plan(self, t: int) -> RowPlan:
        return self._usual if self._constant(t) else self._plan(t)

    def _constant(self, t: int) -> bool:
        """Whether row t is made as all rows but the first ones after a restart."""
        return self._recurrence.gains is None and self._recurrence.local(t) > 0

    def settled(self, t: int) -> bool:
        """Whether row t and all later ones are made alike."""
        return self._recurrence.period is None and self._constant(t)

    @cached_property
    def _usual(self) -> RowPlan:
        return self._plan(1)

    @cached_property
    def decays(self) -> list[double_double.Constant]:
        """Factors of the sums in a step of that kind."""
        return [double_double.constant(Fraction(float(value))) for value in self._recurrence.decay]

    def _plan(self, t: int) -> RowPlan:
        system, d = self._recurrence, self._buffers
        here = gain(system, t)
        lead = Fraction(self._std) * here
        if not system.local(t):

            def begin(block: Block) -> dict[int, float]:
                block.memory[:d] = block.rounded
                block.memory[d:] = 0.0
                return dict.fromkeys(range(d), block.largest) | dict.fromkeys(range(d, 2 * d), 0.0)

            return RowPlan(lead, Listed({}), begin)
        ratio = here / gain(system, t - 1)
        scales = [Fraction(float(value)) * ratio for value in system.scale]
        decays = [double_double.constant(Fraction(float(value)) * ratio) for value in system.decay]
        weights = {i: -scale for i, scale in enumerate(scales) if scale}
        weights |= {d + i: -scale for i, scale in enumerate(scales) if scale}
        std = float(lead)

        def remember(block: Block) -> dict[int, float]:
            memory, rounded = block.memory, block.rounded
            sizes: dict[int, float] = {}
            for i, decay in enumerate(decays):
                faded = double_double.times((memory[i], memory[d + i]), decay)
                memory[i], memory[d + i] = double_double.plus_plain(faded, rounded)
                sizes |= {i: size(memory[i]), d + i: size(memory[d + i])}
                check_memory(sizes[i], std)
            return sizes

        return RowPlan(lead, Listed(weights), remember)

    def drift(self, dimension: int) -> float:
        system, steps = self._recurrence, horizon(self._recurrence)
        # a product and a sum a step, each off by ERROR of what is in memory, fade like the memory itself
        reach = sum(
            abs(float(scale)) * min(float(steps), 1 / (1 - float(decay)) if decay < 1 else math.inf)
            for scale, decay in zip(system.scale, system.decay, strict=True)
        )
        return checked_drift(3.0, reach, system.n, dimension)

    def digest(self) -> str:
        both = np.concatenate([self._recurrence.scale, self._recurrence.decay])
        return digest_of(self.kind, self._recurrence, self._std, both)


class RoundedStateSpace:
    """d mixed sums of the rounded rows, in units of the last one; high parts first, then low parts."""

    kind = "StateSpace, rounded"
    exact = False

    def __init__(self, recurrence: StateSpace, std: float) -> None:
        self._recurrence = recurrence
        self._std = std
        self._order = recurrence.rows if horizon(recurrence) > 1 else 0
        self.rows = 2 * self._order

    def used(self, t: int) -> int:
        return self.rows if self._recurrence.local(t) else 0

    def plan(self, t: int) -> RowPlan:
        system, d = self._recurrence, self._order
        first, here = Fraction(system.first), gain(system, t)
        lead = Fraction(self._std) * here / first
        entries = [double_double.constant(Fraction(float(value))) for value in system.input[:d]]
        begins = not system.local(t)
        ratio = Fraction(0) if begins else here / gain(system, t - 1)
        transition = [
            [
                (k, double_double.constant(Fraction(float(a)) * ratio))
                for k, a in enumerate(row)
                if a and not begins
            ]
            for row in system.transition[:d]
        ]
        readout = (
            {} if begins else {i: Fraction(float(u)) * ratio / first for i, u in enumerate(system.readout)}
        )
        weights = {i: -u for i, u in readout.items() if u} | {d + i: -u for i, u in readout.items() if u}
        std = float(lead)

        def remember(block: Block) -> dict[int, float]:
            memory, rounded, made = block.memory, block.rounded, []
            for entry, row in zip(entries, transition, strict=True):
                total = double_double.scaled(rounded, entry)
                for k, a in row:
                    total = double_double.plus(total, double_double.times((memory[k], memory[d + k]), a))
                made.append(total)
            sizes: dict[int, float] = {}
            for i, (high, low) in enumerate(made):
                memory[i], memory[d + i] = high, low
                sizes |= {i: size(high), d + i: size(low)}
                check_memory(sizes[i], std)
            return sizes

        return RowPlan(lead, Listed(weights), remember)

    def drift(self, dimension: int) -> float:
        system, steps = self._recurrence, horizon(self._recurrence)
        if steps > MOST_STEPS:
            raise GuaranteeError(
                f"{steps} steps without a restart are too many to bound the rounding of this noise: restart"
                " it, or use a BLT."
            )
        row, reach = np.abs(system.readout), 0.0
        power = np.array(system.readout, dtype=np.float64)
        for _ in range(steps):
            reach += float(row.sum())
            power = power @ system.transition
            row = np.abs(power)
            if not row.any() or not math.isfinite(reach):
                break
        growth = float(np.abs(system.transition).sum(axis=1).max(initial=0.0))
        # in one step each of d + 1 terms is multiplied and added up; 2 for the rounding of this bound itself
        local = 2 * (system.rows + 3) * (growth + float(np.abs(system.input).max(initial=0.0)) + 1)
        return checked_drift(local, reach, system.n, dimension)

    def digest(self) -> str:
        system = self._recurrence
        parts = [system.readout, system.transition.ravel(), system.input, np.array([system.first])]
        return digest_of(self.kind, system, self._std, np.concatenate(parts))
