"""Whether the sums of a run are integers on a grid, and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Arithmetic:
    """Whether the sums of a run are integers on a grid.

    Attributes:
        exact: whether they are.
        reason: why, or why not, as a sentence.
    """

    exact: bool
    reason: str

    def __str__(self) -> str:
        return f"{'exact sums' if self.exact else 'sums in floating point'}: {self.reason}"
