"""Participation in every step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anechoic._serialize import serializable
from anechoic.participation.base import Participation, distinct, pairs


@serializable
@dataclass(frozen=True)
class FullBatch(Participation):
    """Each unit may take part in every step."""

    def max_participations_in(self, n: int) -> int:
        return n

    def patterns(self, n: int) -> Iterator[tuple[int, ...]]:
        yield tuple(range(n))

    def describe(self) -> str:
        return "each unit may take part in every step"

    def allows(self, steps: Iterable[int], n: int) -> bool:
        distinct(steps, n)
        return True

    def together(self, n: int) -> NDArray[np.bool_]:
        return pairs(np.ones((n, n), dtype=bool))

    def contained_period(self, n: int) -> int:
        return 1
