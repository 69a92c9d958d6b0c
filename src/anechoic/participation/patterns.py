"""Participation by an explicit list of patterns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from anechoic._serialize import serializable
from anechoic._validate import positive_int
from anechoic.participation.base import Participation


@serializable
@dataclass(frozen=True)
class Patterns(Participation):
    """An explicit list of patterns: each unit takes part in the steps of one of them, or in some of those.

    The steps beyond n of a run that is shorter are left out.

    Args:
        steps: one or more patterns, each of one or more distinct steps >= 0 (in any order).

    Raises:
        ValueError: if there is no pattern, or a pattern is empty, repeats a step or names one below 0.
    """

    steps: Iterable[Iterable[int]]

    def __post_init__(self) -> None:
        given: Any = self.steps
        if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
            raise ValueError(f"steps={self.steps!r} must be a list of patterns, such as [(0, 8), (1, 9)].")
        listed = []
        for pattern in given:
            if isinstance(pattern, (str, bytes)) or not isinstance(pattern, Iterable):
                raise ValueError(f"pattern {pattern!r} must be a list of steps, such as (0, 8).")
            steps = tuple(sorted(positive_int("step", step, minimum=0) for step in pattern))
            if not steps:
                raise ValueError("a pattern is empty: leave it out, a unit may always stay away.")
            if len(set(steps)) < len(steps):
                raise ValueError(f"pattern {steps} repeats a step: a unit takes part in a step once.")
            listed.append(steps)
        if not listed:
            raise ValueError("steps=[] has no pattern: give at least one.")
        object.__setattr__(self, "steps", tuple(sorted(set(listed))))

    def max_participations_in(self, n: int) -> int:
        return max(1, *(sum(step < n for step in pattern) for pattern in self._listed))

    def patterns(self, n: int) -> Iterator[tuple[int, ...]]:
        cut = {tuple(step for step in pattern if step < n) for pattern in self._listed}
        yield from sorted(pattern for pattern in cut if pattern)

    def touched(self, n: int) -> tuple[int, ...]:
        return tuple(sorted({step for pattern in self._listed for step in pattern if step < n}))

    def describe(self) -> str:
        most = max(len(pattern) for pattern in self._listed)
        return (
            f"each unit takes part in the steps of one of {len(self._listed)} listed patterns, at most"
            f" {most} steps"
        )

    @property
    def _listed(self) -> tuple[tuple[int, ...], ...]:
        return cast("tuple[tuple[int, ...], ...]", self.steps)
