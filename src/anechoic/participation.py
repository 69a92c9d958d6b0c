"""Which steps one privacy unit may touch (participation schemas, monograph Definition 3.12).

A schema does not know the number of steps n; it comes from the strategy. Steps count from 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise, product

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
