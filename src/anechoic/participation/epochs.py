"""Participation once in every epoch, anywhere in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from anechoic._serialize import serializable
from anechoic.participation.base import Periodic, distinct


@serializable
@dataclass(frozen=True)
class OncePerEpoch(Periodic):
    """Each unit takes part once in each run of `period` steps, anywhere in it (reshuffled passes).

    The last epoch may be cut short by n.

    Args:
        period: steps in one epoch, >= 1.

    Raises:
        ValueError: for an argument out of range.
    """

    def patterns(self, n: int) -> Iterator[tuple[int, ...]]:
        epochs = [range(start, min(start + self.period, n)) for start in range(0, n, self.period)]
        yield from product(*epochs)

    def describe(self) -> str:
        return f"each unit takes part at most once in each epoch of {self.period} steps, anywhere in it"

    def allows(self, steps: Iterable[int], n: int) -> bool:
        asked = distinct(steps, n)
        return len({t // self.period for t in asked}) == len(asked)

    def together(self, n: int) -> NDArray[np.bool_]:
        epochs = np.arange(n) // min(self.period, n)
        return np.asarray(epochs[:, None] != epochs)
