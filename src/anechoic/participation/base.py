"""Base class of participation schemas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import positive_int
from anechoic.errors import UnsupportedError


@dataclass(frozen=True)
class Participation:
    """Base of all schemas. Subclasses are final.

    A schema gives `max_participations_in`, `patterns` and `describe`; what is said here of the others holds
    for any, and may be said faster.
    """

    def max_participations_in(self, n: int) -> int:
        """Largest number of the n steps that one unit may touch."""
        raise NotImplementedError  # pragma: no cover - abstract

    def patterns(self, n: int) -> Iterator[tuple[int, ...]]:
        """Every maximal allowed pattern of steps, by brute force (exponential: for small n)."""
        raise NotImplementedError  # pragma: no cover - abstract

    def describe(self) -> str:
        """One line for a privacy statement."""
        raise NotImplementedError  # pragma: no cover - abstract

    def touched(self, n: int) -> Sequence[int]:
        """The steps below n that some unit may touch, in order; all of them unless a schema says otherwise.

        What is released at the others depends on nobody's data: it needs no noise, and bounds a strategy's
        sensitivity in no way.
        """
        return range(n)

    def allows(self, steps: Iterable[int], n: int) -> bool:
        """Whether one unit may take part in exactly these steps, which are distinct and below n."""
        asked = distinct(steps, n)
        return any(asked.issubset(pattern) for pattern in self.patterns(n))

    def together(self, n: int) -> NDArray[np.bool_]:
        """Whether one unit may touch both of two steps, shape (n, n), symmetric, False on the diagonal."""
        both = np.zeros((n, n), dtype=bool)
        for s, t in combinations(range(n), 2):
            both[s, t] = both[t, s] = self.allows((s, t), n)
        return both

    def contained_period(self, n: int) -> int:
        """The least period of a cyclic schema all of whose patterns are allowed here.

        A lower bound for that schema holds for this one as well.

        Raises:
            UnsupportedError: if none is known.
        """
        raise UnsupportedError(
            f"participation={self!r}: bounds are known for Single, Cyclic, MinSep, OncePerEpoch and"
            " FullBatch. A bound for a schema that allows less holds as well."
        )


@dataclass(frozen=True)
class Periodic(Participation):
    """Base of schemas that repeat after `period` >= 1 steps."""

    period: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "period", positive_int("period", self.period))

    def max_participations_in(self, n: int) -> int:
        return -(-n // self.period)

    def contained_period(self, n: int) -> int:
        return min(self.period, n)


def lags(n: int) -> NDArray[np.int64]:
    """|s - t| of any two of n steps, shape (n, n)."""
    steps = np.arange(n)
    return np.asarray(np.abs(steps[:, None] - steps))


def pairs(held: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Pairs of two different steps at which it holds."""
    np.fill_diagonal(held, False)
    return held


def distinct(steps: Iterable[int], n: int) -> set[int]:
    """The steps as a set.

    Raises:
        ValueError: if one is no step below n, or comes twice.
    """
    asked: Sequence[int] = list(steps)
    found = set(asked)
    if len(found) < len(asked) or any(not 0 <= step < n for step in found):
        raise ValueError(f"steps={asked} must be distinct, and lie between 0 and n-1={n - 1}.")
    return found
