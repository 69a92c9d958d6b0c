"""The noise rows of a stack, of which every step reads and replaces the rows on top."""

from __future__ import annotations

import numpy as np

from anechoic.noise.arrays import MemoryColumns, Plan
from anechoic.noise.filters.base import checked_scale, digest_of
from anechoic.noise.recurrence import Stacked


class StackedFilter:
    """The stack lies in the leading rows of the memory, bottom first; its rows have std, but no gain."""

    kind = "Stacked"

    def __init__(self, recurrence: Stacked, std: float, precision: str) -> None:
        self._recurrence = recurrence
        self._std = std
        self._precision = precision
        self.rows = recurrence.rows

    def used(self, t: int) -> int:
        return self._recurrence.depth(self._recurrence.local(t))

    def plan(self, t: int) -> Plan:
        system = self._recurrence
        s, gain = system.local(t), system.gain(t)
        step, top = system.step(s), system.depth(s)
        lead = checked_scale(self._std * gain * step.lead, t, self._precision)
        first, readout, entry = top - len(step.readout), gain * step.readout, step.entry / gain
        read, slots = list(range(first, top)), list(range(first, first + len(entry)))

        def plan(columns: MemoryColumns) -> None:
            memory, out = columns.memory, columns.row
            columns.draw(out, lead)
            row = out[None]
            if read:
                columns.add([(readout, memory[first:top])], out)
                columns.look_ahead(step.mix, read, slots)
            for slot, factor in zip(slots, entry, strict=True):
                if read:
                    columns.add([(np.array([factor]), row)], memory[slot])
                else:
                    columns.combine(np.array([factor]), row, memory[slot])

        return plan

    def digest(self) -> str:
        system = self._recurrence
        return digest_of(f"{self.kind}, {system.name}", system, self._std, system.parameters)
