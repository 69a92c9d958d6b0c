"""Cyclic participation: the same place in every cycle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anechoic._serialize import serializable
from anechoic.participation.base import Periodic, distinct, lags, pairs


@serializable
@dataclass(frozen=True)
class Cyclic(Periodic):
    """Each unit takes part in step l, l + period, l + 2 period, … for one l < period.

    n need not be a multiple of the period: unit l then takes part ceil((n - l) / period) times.

    Args:
        period: steps between two participations of one unit, >= 1 (monograph: b).

    Raises:
        ValueError: for an argument out of range.
    """

    def patterns(self, n: int) -> Iterator[tuple[int, ...]]:
        yield from (tuple(range(first, n, self.period)) for first in range(min(self.period, n)))

    def describe(self) -> str:
        return f"each unit takes part once every {self.period} steps, always at the same place of the cycle"

    def allows(self, steps: Iterable[int], n: int) -> bool:
        return len({t % self.period for t in distinct(steps, n)}) <= 1

    def together(self, n: int) -> NDArray[np.bool_]:
        return pairs(lags(n) % min(self.period, n) == 0)
