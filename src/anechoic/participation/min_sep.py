"""Participation with a minimum separation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

from anechoic._serialize import serializable
from anechoic._validate import positive_int
from anechoic.participation.base import Participation, distinct, lags, pairs
from anechoic.participation.full_batch import FullBatch


@serializable
@dataclass(frozen=True)
class MinSep(Participation):
    """Two participations of one unit are at least `separation` steps apart (Definition 3.14).

    Steps t and t + separation may both be touched.

    Args:
        separation: >= 1 (monograph: b).
        max_participations: >= 1, or None for as many as fit into n (monograph: k).

    Raises:
        ValueError: for an argument out of range.
    """

    separation: int
    max_participations: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "separation", positive_int("separation", self.separation))
        if self.max_participations is not None:
            count = positive_int("max_participations", self.max_participations)
            object.__setattr__(self, "max_participations", count)

    def max_participations_in(self, n: int) -> int:
        fits = -(-n // self.separation)
        return fits if self.max_participations is None else min(fits, self.max_participations)

    def patterns(self, n: int) -> Iterator[tuple[int, ...]]:
        more = self.separation - 1  # steps that are left out after each but the last one
        for count in range(1, self.max_participations_in(n) + 1):
            for steps in combinations(range(n - (count - 1) * more), count):
                yield tuple(step + place * more for place, step in enumerate(steps))

    def describe(self) -> str:
        count = self.max_participations
        if self.separation == 1:
            few = "one step" if count == 1 else f"{count} steps"
            return f"each unit takes part in at most {few}" if count else FullBatch().describe()
        limit = "" if count is None else f", at most {count} times"
        return f"participations of one unit are at least {self.separation} steps apart{limit}"

    def allows(self, steps: Iterable[int], n: int) -> bool:
        ordered = sorted(distinct(steps, n))
        apart = all(b - a >= self.separation for a, b in pairwise(ordered))
        return apart and len(ordered) <= self.max_participations_in(n)

    def together(self, n: int) -> NDArray[np.bool_]:
        held = lags(n) >= self.separation
        return pairs(held & (self.max_participations_in(n) > 1))

    def contained_period(self, n: int) -> int:
        # no more than max_participations steps of one residue may lie below n
        return min(n, max(self.separation, -(-n // self.max_participations_in(n))))
