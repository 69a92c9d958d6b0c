"""Over which steps a statistic adds up: all so far, or the last few."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from anechoic import workloads
from anechoic._validate import positive_int
from anechoic.streaming.columns import Integers
from anechoic.workloads.base import Workload


class Window:
    """The weights of earlier steps in what is released at a step. Subclasses are final."""

    @property
    def reach(self) -> int:
        """Return how many rows back the one lies that leaves the sum; 0 where none does."""
        return 0

    def workload(self, n: int) -> Workload:
        """Return A, for n steps."""
        return workloads.sliding_window(n, min(self.reach, n)) if self.reach else workloads.prefix_sum(n)

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

    def describe(self) -> str:
        """Return its words for statements."""
        last = f"the last {self.reach} steps" if self.reach > 1 else "each step alone"
        return last if self.reach else "all steps so far"


@dataclass(frozen=True)
class Running(Window):
    """All steps so far: prefix sums."""


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
