"""Rounded rows of a stack, of which every step reads and replaces the rows on top."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from anechoic.errors import GuaranteeError
from anechoic.noise.filters.base import digest_of, horizon
from anechoic.noise.recurrence import Stacked, StackStep
from anechoic.noise.rounding import double_double
from anechoic.noise.rounding.base import Block, RowPlan, size
from anechoic.noise.rounding.decaying import MOST_STEPS, check_memory, checked_drift
from anechoic.noise.rounding.weights import Listed
from anechoic.noise.rounding.windowed import gain

Remember = Callable[[Block], dict[int, float]]


class RoundedStacked:
    """The stack lies in the leading rows of the memory, the bottom first.

    Where all factors are integers and there are no gains, it holds sums of rounded rows, which are integers.
    Otherwise rows are divided by their gains, and the memory holds pairs, the high part of row i in 2 i.
    """

    kind = "Stacked, rounded"

    def __init__(self, recurrence: Stacked, std: float) -> None:
        self._recurrence = recurrence
        self._std = std
        self.exact = recurrence.integral and recurrence.gains is None
        self._parts = 1 if self.exact else 2
        self.rows = self._parts * recurrence.rows

    def used(self, t: int) -> int:
        return self._parts * self._recurrence.depth(self._recurrence.local(t))

    def plan(self, t: int) -> RowPlan:
        system, parts = self._recurrence, self._parts
        s, here = system.local(t), gain(system, t)
        step, top = system.step(s), system.depth(s)
        first = top - len(step.readout)
        weights = {
            parts * (first + i) + part: Fraction(float(factor)) * here
            for i, factor in enumerate(step.readout)
            if factor
            for part in range(parts)
        }
        lead = Fraction(self._std) * here * Fraction(step.lead)
        remember = self._integers(step, first, top) if self.exact else self._pairs(step, first, here)
        return RowPlan(lead, Listed(weights), remember)

    def _integers(self, step: StackStep, first: int, top: int) -> Remember:
        for factors in (step.readout, step.mix, step.entry):
            if (factors != np.rint(factors)).any():
                raise GuaranteeError("a recurrence that is said to be integral has factors that are not.")

        def remember(block: Block) -> dict[int, float]:
            memory = block.memory
            made = step.mix @ memory[first:top] + step.entry[:, None] * block.rounded
            memory[first : first + len(made)] = made
            return {first + i: size(row) for i, row in enumerate(made)}

        return remember

    def _pairs(self, step: StackStep, first: int, here: Fraction) -> Remember:
        entries = [double_double.constant(Fraction(float(value)) / here) for value in step.entry]
        mix = [
            [(first + i, double_double.constant(Fraction(float(a)))) for i, a in enumerate(row) if a]
            for row in step.mix
        ]

        def remember(block: Block) -> dict[int, float]:
            memory, made = block.memory, []
            for entry, row in zip(entries, mix, strict=True):
                total = double_double.scaled(block.rounded, entry)
                for k, a in row:
                    total = double_double.plus(
                        total, double_double.times((memory[2 * k], memory[2 * k + 1]), a)
                    )
                made.append(total)
            sizes: dict[int, float] = {}
            for i, (high, low) in enumerate(made, start=first):
                memory[2 * i], memory[2 * i + 1] = high, low
                sizes |= {2 * i: size(high), 2 * i + 1: size(low)}
                check_memory(sizes[2 * i], self._std)
            return sizes

        return remember

    def drift(self, dimension: int) -> float:
        system, steps = self._recurrence, horizon(self._recurrence)
        if self.exact:
            return 0.0
        if steps > MOST_STEPS:
            raise GuaranteeError(
                f"{steps} steps without a restart are too many to bound the rounding of this noise: restart"
                " it, or use a BLT."
            )
        # how often the rounding of a step counts in a row of memory, and from there in an emitted row
        counts, reach, local = np.zeros(0), 0.0, 0.0
        for s in range(steps):
            step = system.step(s)
            kept = len(counts) - len(step.readout)
            read = counts[kept:]
            reach = max(reach, float(np.abs(step.readout) @ read) / step.lead)
            counts = np.append(counts[:kept], np.abs(step.mix) @ read + 1.0)
            # each of r + 1 terms is multiplied and added up; 2 for the rounding of this bound itself
            growth = float(np.abs(step.mix).sum(axis=1, initial=0.0).max(initial=0.0))
            entry = float(np.abs(step.entry).max(initial=0.0))
            local = max(local, 2 * (len(read) + 3) * (growth + entry + 1))
        return checked_drift(local, reach, system.n, dimension)

    def digest(self) -> str:
        system = self._recurrence
        return digest_of(f"{self.kind}, {system.name}", system, self._std, system.parameters)
