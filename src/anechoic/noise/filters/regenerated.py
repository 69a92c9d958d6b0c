"""Noise without memory: the fresh rows of earlier steps are made again from the key."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from anechoic._validate import Array
from anechoic.algebra import toeplitz
from anechoic.noise.arrays import Plan
from anechoic.noise.filters.base import Filter, only_fresh
from anechoic.noise.recurrence import Autoregressive, MovingAverage

_FEWEST = 64  # coefficients of a Toeplitz inverse that are computed at once


class RegeneratedFilter(Filter[Autoregressive | MovingAverage]):
    """Row t is sum_j C^-1[t, t-j] z_{t-j}, over all steps since the past was last forgotten.

    A `MovingAverage` has these coefficients, at most `window` of them. Those of an `Autoregressive` follow
    from C: all of the past counts, so that step t takes t + 1 fresh rows. Rows differ from stored ones by
    rounding, so that neither way can resume the other.
    """

    def __init__(self, recurrence: Autoregressive | MovingAverage, std: float, precision: str) -> None:
        super().__init__(recurrence, std, precision)
        self.kind, self.rows = f"{self.kind}, regenerated", 0
        self._inverse = lru_cache(maxsize=1)(self._inverse_coefficients)

    def used(self, t: int) -> int:
        return 0

    def plan(self, t: int) -> Plan:
        local = self._recurrence.local(t)
        row = self._lagged(local) * (self._std * self._recurrence.gain(t))
        self.lead(row[0], t)
        return only_fresh(*row.tolist())

    def _lagged(self, s: int) -> Array:
        """C^-1[s, s], C^-1[s, s-1], …"""
        if isinstance(self._recurrence, MovingAverage):
            return self._recurrence.row(s)
        if not self._recurrence.stationary:
            return _solved(self._recurrence, s)
        # how many are computed depends on s alone: so do the bits, also of a stream that was restored
        count = max(_FEWEST, 1 << s.bit_length())
        return self._inverse(min(count, self._recurrence.horizon))[: s + 1]

    def _inverse_coefficients(self, count: int) -> Array:
        return toeplitz.inverse(self._recurrence.row(count - 1), count)


def _solved(recurrence: Autoregressive, s: int) -> Array:
    """x with x C = e_s, from x_s down, which is row s of C^-1: O(s window) operations."""
    solved, rest = np.zeros(s + 1), np.zeros(s + 1)
    rest[s] = 1.0
    for i in range(s, -1, -1):
        row = recurrence.row(i)
        solved[i] = rest[i] / row[0]
        rest[i + 1 - len(row) : i] -= solved[i] * row[:0:-1]
    return solved[::-1]
