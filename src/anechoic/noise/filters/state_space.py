"""The noise rows of a constant-recurrent strategy: a state of d rows that the emitted rows drive."""

from __future__ import annotations

import numpy as np

from anechoic.noise.arrays import MemoryColumns, Plan
from anechoic.noise.filters.base import checked_scale, digest_of, horizon
from anechoic.noise.recurrence import StateSpace


class StateSpaceFilter:
    """d mixed sums of the emitted rows, in units of the last one; the first step of a block sets them."""

    kind = "StateSpace"

    def __init__(self, recurrence: StateSpace, std: float, precision: str) -> None:
        self._recurrence = recurrence
        self._std = std
        self._precision = precision
        self.rows = recurrence.rows if horizon(recurrence) > 1 else 0

    def used(self, t: int) -> int:
        return self.rows if self._recurrence.local(t) else 0

    def plan(self, t: int) -> Plan:
        system = self._recurrence
        gain, first = system.gain(t), not system.local(t)
        lead = checked_scale(self._std * gain / system.first, t, self._precision)
        ratio = 0.0 if first else gain / system.gain(t - 1)
        weights, transition = -ratio / system.first * system.readout, ratio * system.transition

        def plan(columns: MemoryColumns) -> None:
            columns.draw(columns.row, lead)
            if first and self.rows:
                columns.assign(columns.memory, columns.row)  # before what was there is multiplied by zero
            if self.rows:
                columns.feed_state(weights, transition, system.input)

        return plan

    def digest(self) -> str:
        system = self._recurrence
        parts = [system.readout, system.transition.ravel(), system.input, np.array([system.first])]
        return digest_of(self.kind, system, self._std, np.concatenate(parts))
