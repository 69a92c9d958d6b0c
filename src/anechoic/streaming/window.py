"""Over which steps a statistic adds up: all so far, or the last few."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from anechoic import workloads
from anechoic._validate import positive_int
from anechoic.streaming.columns import Integers
from anechoic.workloads.base import Workload


@dataclass(frozen=True)
class Window(ABC):
    """The weights of earlier steps in what is released at a step. Subclasses are final.

    Attributes:
        reach: how many rows back the one lies that leaves the sum; 0 where none does.
    """

    @property
    def reach(self) -> int:
        return 0

    @abstractmethod
    def workload(self, n: int) -> Workload:
        """Return A, for n steps."""

    def advance(
        self,
        total: Integers,
        row: Integers,
        step: int,
        row_of: Callable[[int], Integers],
    ) -> Integers:
        """Return row `step` of A Y, from the one before it.

        Args:
            total: row step - 1 of A Y, zeros at step 0; shape (m,).
            row: row `step` of Y.
            step: >= 0.
            row_of: gives earlier rows of Y.
        """
        found = total + row
        return found - row_of(step - self.reach) if 0 < self.reach <= step else found

    @abstractmethod
    def describe(self) -> str:
        """Return its words for statements."""


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
        return f"the last {self.width} steps" if self.width > 1 else "each step alone"


def checked_window(over: Window) -> Window:
    """Return `over` if it is one.

    Raises:
        ValueError: otherwise.
    """
    if not isinstance(over, Window):
        raise ValueError(f"over={over!r} must be Running() or SlidingWindow(width).")
    return over


def window_of(described: tuple[str, Mapping[str, Any]]) -> Window:
    """Return the sums over steps with a name and settings.

    Raises:
        KeyError, TypeError, ValueError: for others.
    """
    name, settings = described
    known: dict[str, type[Window]] = {one.__name__: one for one in (Running, SlidingWindow)}
    return known[name](**settings)
