"""What a sensitivity is: a number, whether it is exact, and the theorem that gives it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from anechoic._validate import LARGEST, SMALLEST
from anechoic.statement.theorem import Theorem


@dataclass(frozen=True)
class Sensitivity:
    """Sensitivity in units of the clip norm, for zero-out adjacency: never below the truth.

    Attributes:
        value: sens(C, participation), root scale, > 0.
        exact: True where `value` is the supremum over patterns and dimensions (to rounding), False
            where it is an upper bound of it.
        method: the theorem or bound that gave it, in words.
        theorem: what proves it; None for a number from elsewhere.

    Raises:
        ValueError: if `value` is not a number whose square a float64 can hold.
    """

    value: float
    exact: bool
    method: str
    theorem: Theorem | None = None

    def __post_init__(self) -> None:
        if not SMALLEST <= self.value <= LARGEST:
            raise ValueError(
                f"sensitivity={self.value} by {self.method} must lie between {SMALLEST} and {LARGEST} to be"
                " computed reliably: scale the strategy, which changes no loss."
            )

    @classmethod
    def of_squared(
        cls, squared: float, exact: bool, method: str, theorem: Theorem | None = None
    ) -> Sensitivity:
        """The sensitivity whose square is `squared`."""
        return cls(math.sqrt(squared) if squared >= 0 else math.nan, exact, method, theorem)

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return f"{'=' if self.exact else '<='} {self.value:.6g} ({self.method})"
