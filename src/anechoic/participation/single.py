"""Participation in one step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anechoic._serialize import serializable
from anechoic.participation.base import Participation, distinct


@serializable
@dataclass(frozen=True)
class Single(Participation):
    """Each unit takes part in at most one step (streaming)."""

    def max_participations_in(self, n: int) -> int:
        return 1

    def patterns(self, n: int) -> Iterator[tuple[int, ...]]:
        yield from ((t,) for t in range(n))

    def describe(self) -> str:
        return "each unit takes part in at most one step"

    def allows(self, steps: Iterable[int], n: int) -> bool:
        return len(distinct(steps, n)) <= 1

    def together(self, n: int) -> NDArray[np.bool_]:
        return np.zeros((n, n), dtype=bool)

    def contained_period(self, n: int) -> int:
        return n


#: The default wherever a participation is asked for.
SINGLE = Single()
