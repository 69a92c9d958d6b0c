"""Learning rates of the server as functions of the step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from anechoic._validate import positive_float, positive_int


@dataclass(frozen=True)
class Schedule(ABC):
    """A learning rate for every step 0, 1, 2, …; public, so that it costs no privacy."""

    @abstractmethod
    def __call__(self, step: int) -> float:
        """The learning rate of a step, >= 0."""


@dataclass(frozen=True)
class Warmup(Schedule):
    """From peak / steps in step 0 linearly up to `peak` in step steps - 1, then `after`, or the peak.

    Args:
        peak: > 0.
        steps: of the warm-up, >= 1.
        after: a schedule that counts its steps from the end of the warm-up.

    Raises:
        ValueError: for an argument out of range.
    """

    peak: float
    steps: int
    after: Schedule | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "peak", positive_float("peak", self.peak))
        object.__setattr__(self, "steps", positive_int("steps", self.steps))

    def __call__(self, step: int) -> float:
        if step < self.steps:
            return self.peak * (step + 1) / self.steps
        return self.peak if self.after is None else self.after(step - self.steps)


@dataclass(frozen=True)
class _Between(Schedule):
    """From `first` in step 0 to `last` in step steps - 1, which stays."""

    first: float
    steps: int
    last: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", positive_float("first", self.first))
        object.__setattr__(self, "steps", positive_int("steps", self.steps, minimum=2))
        if self.last != 0:
            object.__setattr__(self, "last", positive_float("last", self.last))

    def _done(self, step: int) -> float:
        """The part of the way that is done, in [0, 1]."""
        return min(step, self.steps - 1) / (self.steps - 1)


@dataclass(frozen=True)
class Linear(_Between):
    """From `first` in step 0 linearly to `last` in step steps - 1, which stays.

    Args:
        first: > 0.
        steps: >= 2.
        last: >= 0.
    """

    def __call__(self, step: int) -> float:
        done = self._done(step)
        return self.first + (self.last - self.first) * done


@dataclass(frozen=True)
class Cosine(_Between):
    """From `first` in step 0 down to `last` in step steps - 1 along half a cosine, and then `last`.

    Args:
        first: > 0.
        steps: >= 2.
        last: >= 0.
    """

    def __call__(self, step: int) -> float:
        done = self._done(step)
        return self.last + (self.first - self.last) * (1 + math.cos(math.pi * done)) / 2
