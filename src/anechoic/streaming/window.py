"""Over which steps a statistic adds up: all so far, the last few, or all with fading weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic import workloads
from anechoic._validate import fraction, positive_int
from anechoic.workloads.base import Workload


@dataclass(frozen=True)
class Window(ABC):
    """The weights of earlier steps in what is released at a step. Subclasses are final.

    Attributes:
        reach: how many rows back the one lies that leaves the sum; 0 where none does.
        fading: weight of what was added up before; the integer 1 where sums are to stay integers.
    """

    @property
    def reach(self) -> int:
        return 0

    @property
    def fading(self) -> float:
        return 1

    @abstractmethod
    def workload(self, n: int) -> Workload:
        """A, for n steps."""

    def advance(
        self,
        total: NDArray[Any],
        row: NDArray[np.int64],
        step: int,
        row_of: Callable[[int], NDArray[np.int64]],
    ) -> NDArray[Any]:
        """Row `step` of A Y, from the one before it: exact integers but where earlier steps fade.

        Args:
            total: row step - 1 of A Y, zeros at step 0; shape (m,).
            row: row `step` of Y.
            step: >= 0.
            row_of: gives earlier rows of Y.
        """
        found = np.asarray(self.fading * total + row)
        return found - row_of(step - self.reach) if 0 < self.reach <= step else found

    @abstractmethod
    def describe(self) -> str:
        """For statements."""


@dataclass(frozen=True)
class Running(Window):
    """All steps so far: prefix sums."""

    def workload(self, n: int) -> Workload:
        return workloads.prefix_sum(n)

    def describe(self) -> str:
        return "all steps so far"


@dataclass(frozen=True)
class SlidingWindow(Window):
    """The last `width` steps, this one among them.

    Args:
        width: >= 1.

    Raises:
        ValueError: for an argument out of range.
    """

    width: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", positive_int("width", self.width))

    @property
    def reach(self) -> int:
        return self.width

    def workload(self, n: int) -> Workload:
        return workloads.sliding_window(n, min(self.width, n))

    def describe(self) -> str:
        return f"the last {self.width} steps"


@dataclass(frozen=True)
class Decayed(Window):
    """All steps so far, one of age a with weight factor**a.

    Args:
        factor: strictly between 0 and 1.

    Raises:
        ValueError: for an argument out of range.
    """

    factor: float

    def __post_init__(self) -> None:
        remedy = "Without decay take Running()."
        object.__setattr__(self, "factor", fraction("factor", self.factor, remedy=remedy))

    @property
    def fading(self) -> float:
        return self.factor

    def workload(self, n: int) -> Workload:
        return workloads.exponential_decay(n, self.factor)

    def describe(self) -> str:
        return f"all steps so far, each counting {self.factor:g} times as much as the next"


def checked_window(over: Window) -> Window:
    """`over` if it is one.

    Raises:
        ValueError: otherwise.
    """
    if not isinstance(over, Window):
        raise ValueError(f"over={over!r} must be Running(), SlidingWindow(width) or Decayed(factor).")
    return over


def window_of(described: tuple[str, Mapping[str, Any]]) -> Window:
    """The sums over steps with a name and settings.

    Raises:
        KeyError, TypeError, ValueError: for others.
    """
    name, settings = described
    known: dict[str, type[Window]] = {one.__name__: one for one in (Running, SlidingWindow, Decayed)}
    return known[name](**settings)
