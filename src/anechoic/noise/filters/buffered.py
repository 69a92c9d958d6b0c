"""Noise rows from a few buffers, each a decaying sum of earlier rows."""

from __future__ import annotations

import numpy as np

from anechoic.noise.arrays import MemoryColumns, Plan
from anechoic.noise.filters.base import checked_scale, digest_of, horizon
from anechoic.noise.recurrence import (
    Buffered,
)


class BufferedFilter:
    """d fading sums of the emitted rows, in units of the last one; the first step of a block sets them."""

    kind = "Buffered"

    def __init__(self, recurrence: Buffered, std: float, precision: str) -> None:
        self._recurrence = recurrence
        self._std = std
        self._precision = precision
        self.rows = len(recurrence.scale) if horizon(recurrence) > 1 else 0

    def used(self, t: int) -> int:
        return self.rows if self._recurrence.local(t) else 0

    def plan(self, t: int) -> Plan:
        gain, first = self._recurrence.gain(t), not self._recurrence.local(t)
        lead = checked_scale(self._std * gain, t, self._precision)
        ratio = 1.0 if first else gain / self._recurrence.gain(t - 1)
        weights, decays = -ratio * self._recurrence.scale, ratio * self._recurrence.decay

        def plan(columns: MemoryColumns) -> None:
            columns.draw(columns.row, lead)
            if not first:
                columns.feed_back(weights, decays)
            elif self.rows:
                columns.assign(columns.memory, columns.row)

        return plan

    def digest(self) -> str:
        both = np.concatenate([self._recurrence.scale, self._recurrence.decay])
        return digest_of(self.kind, self._recurrence, self._std, both)
