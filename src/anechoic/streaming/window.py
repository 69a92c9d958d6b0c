"""Over which steps a statistic adds up: all so far, the last few, or all with fading weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic import workloads
from anechoic._validate import fraction, positive_int
from anechoic.workloads.base import Workload


@dataclass(frozen=True)
class Over(ABC):
    """The weights of earlier steps in what is released at a step. Subclasses are final."""

    @abstractmethod
    def workload(self, n: int) -> Workload:
        """A, for n steps."""

    @abstractmethod
    def advance(
        self,
        total: NDArray[Any],
        row: NDArray[np.int64],
        step: int,
        row_of: Callable[[int], NDArray[np.int64]],
    ) -> NDArray[Any]:
        """Row `step` of A Y, from the one before it.

        Args:
            total: row step - 1 of A Y, zeros at step 0; shape (m,).
            row: row `step` of Y.
            step: >= 0.
            row_of: gives earlier rows of Y.
        """

    @abstractmethod
    def describe(self) -> str:
        """For statements."""

    @property
    def reach(self) -> int:
        """How many rows back `advance` asks for earlier ones."""
        return 0


@dataclass(frozen=True)
class Running(Over):
    """All steps so far: prefix sums."""

    def workload(self, n: int) -> Workload:
        return workloads.prefix_sum(n)

    def advance(
        self,
        total: NDArray[Any],
        row: NDArray[np.int64],
        step: int,
        row_of: Callable[[int], NDArray[np.int64]],
    ) -> NDArray[Any]:
        return np.asarray(total + row)

    def describe(self) -> str:
        return "all steps so far"


@dataclass(frozen=True)
class SlidingWindow(Over):
    """The last `width` steps, this one among them.

    Args:
        width: >= 1.
    """

    width: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", positive_int("width", self.width))

    @property
    def reach(self) -> int:
        return self.width

    def workload(self, n: int) -> Workload:
        return workloads.sliding_window(n, min(self.width, n))

    def advance(
        self,
        total: NDArray[Any],
        row: NDArray[np.int64],
        step: int,
        row_of: Callable[[int], NDArray[np.int64]],
    ) -> NDArray[Any]:
        # integers: what leaves the window is taken off without a trace
        left = 0 if step < self.width else row_of(step - self.width)
        return np.asarray(total + row - left)

    def describe(self) -> str:
        return f"the last {self.width} steps"


@dataclass(frozen=True)
class Decayed(Over):
    """All steps so far, one of age a with weight factor**a.

    Args:
        factor: strictly between 0 and 1.
    """

    factor: float

    def __post_init__(self) -> None:
        remedy = "Without decay take Running()."
        object.__setattr__(self, "factor", fraction("factor", self.factor, remedy=remedy))

    def workload(self, n: int) -> Workload:
        return workloads.exponential_decay(n, self.factor)

    def advance(
        self,
        total: NDArray[Any],
        row: NDArray[np.int64],
        step: int,
        row_of: Callable[[int], NDArray[np.int64]],
    ) -> NDArray[Any]:
        return np.asarray(self.factor * total + row)

    def describe(self) -> str:
        return f"all steps so far, each counting {self.factor:g} times as much as the next"


def checked_over(over: Over) -> Over:
    """`over` if it is one.

    Raises:
        ValueError: otherwise.
    """
    if not isinstance(over, Over):
        raise ValueError(f"over={over!r} must be Running(), SlidingWindow(width) or Decayed(factor).")
    return over
