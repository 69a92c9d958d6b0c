"""Which steps one privacy unit may touch (participation schemas, monograph Definition 3.12).

A schema does not know the number of steps n; it comes from the strategy. Steps count from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from typing import Any

from anechoic._serialize import serializable
from anechoic._validate import positive_int


@dataclass(frozen=True)
class Participation:
    """Base of all schemas. Subclasses are final."""

    def max_participations_in(self, n: int) -> int:
        """Largest number of the n steps that one unit may touch."""
        raise NotImplementedError  # pragma: no cover - abstract

    def patterns(self, n: int) -> Iterator[tuple[int, ...]]:
        """Every maximal allowed pattern of steps, by brute force (exponential: for small n)."""
        raise NotImplementedError  # pragma: no cover - abstract

    def describe(self) -> str:
        """One line for a privacy statement."""
        raise NotImplementedError  # pragma: no cover - abstract

    def touched(self, n: int) -> tuple[int, ...]:
        """The steps below n that some unit may touch, in order; all of them unless a schema says otherwise.

        What is released at the others depends on nobody's data: it needs no noise, and bounds a strategy's
        sensitivity in no way.
        """
        return tuple(range(n))


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


@serializable
@dataclass(frozen=True)
class Cyclic(Participation):
    """Each unit takes part in step l, l + period, l + 2 period, … for one l < period.

    n need not be a multiple of the period: unit l then takes part ceil((n - l) / period) times.

    Args:
        period: steps between two participations of one unit, >= 1 (monograph: b).
    """

    period: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "period", positive_int("period", self.period))

    def max_participations_in(self, n: int) -> int:
        return -(-n // self.period)

    def patterns(self, n: int) -> Iterator[tuple[int, ...]]:
        yield from (tuple(range(first, n, self.period)) for first in range(min(self.period, n)))

    def describe(self) -> str:
        return f"each unit takes part once every {self.period} steps, always at the same place of the cycle"


@serializable
@dataclass(frozen=True)
class MinSep(Participation):
    """Two participations of one unit are at least `separation` steps apart (Definition 3.14).

    Steps t and t + separation may both be touched.

    Args:
        separation: >= 1 (monograph: b).
        max_participations: >= 1, or None for as many as fit into n (monograph: k).
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
        for count in range(1, self.max_participations_in(n) + 1):
            for steps in combinations(range(n), count):
                if all(b - a >= self.separation for a, b in pairwise(steps)):
                    yield steps

    def describe(self) -> str:
        limit = "" if self.max_participations is None else f", at most {self.max_participations} times"
        return f"participations of one unit are at least {self.separation} steps apart{limit}"


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


@serializable
@dataclass(frozen=True)
class OncePerEpoch(Participation):
    """Each unit takes part once in each run of `period` steps, anywhere in it (reshuffled passes).

    The last epoch may be cut short by n.

    Args:
        period: steps in one epoch, >= 1.
    """

    period: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "period", positive_int("period", self.period))

    def max_participations_in(self, n: int) -> int:
        return -(-n // self.period)

    def patterns(self, n: int) -> Iterator[tuple[int, ...]]:
        epochs = [range(start, min(start + self.period, n)) for start in range(0, n, self.period)]
        yield from product(*epochs)

    def describe(self) -> str:
        return f"each unit takes part at most once in each epoch of {self.period} steps, anywhere in it"


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
        return self.steps  # type: ignore[return-value]
