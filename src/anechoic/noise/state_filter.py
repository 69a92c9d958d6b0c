"""The noise rows of a constant-recurrent strategy: a state of d rows that the emitted rows drive."""

from __future__ import annotations

from typing import Any

import numpy as np

from anechoic.noise.arrays import Arrays
from anechoic.noise.filters import Fresh, _checked_scale, _digest, _horizon
from anechoic.strategies.recurrence import StateSpace


class StateSpaceFilter:
    """d mixed sums of the emitted rows, in units of the last one; the first step of a block sets them."""

    kind = "StateSpace"

    def __init__(self, recurrence: StateSpace, std: float, precision: str) -> None:
        self._recurrence = recurrence
        self._std = std
        self._precision = precision
        self.rows = recurrence.rows if _horizon(recurrence) > 1 else 0

    def used(self, t: int) -> int:
        return self.rows if self._recurrence.local(t) else 0

    def advance(self, t: int, arrays: Arrays, memory: Any, fresh: Fresh, out: Any) -> None:
        system = self._recurrence
        gain = system.gain(t)
        fresh(out, _checked_scale(self._std * gain / system.first, t, self._precision))
        if system.local(t):
            ratio = gain / system.gain(t - 1)
            weights = -ratio / system.first * system.readout
            arrays.feed_state(out, memory, weights, ratio * system.transition, system.input)
        elif self.rows:
            arrays.assign(memory, out)  # whatever was there is gone before it is multiplied by zero
            nothing = np.zeros((self.rows, self.rows))
            arrays.feed_state(out, memory, nothing[0], nothing, system.input)

    def digest(self) -> str:
        system = self._recurrence
        parts = [system.readout, system.transition.ravel(), system.input, np.array([system.first])]
        return _digest(self.kind, system, self._std, np.concatenate(parts))
