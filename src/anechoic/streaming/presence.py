"""Units that are there: each from its first record on until it has had none for so many steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

from anechoic._validate import positive_int
from anechoic.errors import UnsupportedError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.participation import Single


@dataclass(frozen=True)
class Presence:
    """How long a unit is there after a record, and how often it may come.

    A visit begins with a record of a unit that is not there, and ends `within` steps after the last record
    of it. So a unit is there at step t if and only if it has a record in steps t - within + 1, …, t, and no
    more than `visits` visits.

    Args:
        within: steps, >= 1.
        visits: of one unit that count, ever: its first ones; >= 1.

    Raises:
        ValueError: for an argument out of range.
    """

    within: int
    visits: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "within", positive_int("within", self.within))
        object.__setattr__(self, "visits", positive_int("visits", self.visits))

    @property
    def norm(self) -> float:
        """What a unit changes, over what a single 1 in one step would change: it comes, and leaves."""
        return math.sqrt(2.0 * self.visits)

    def check(self, mechanism: Mechanism) -> None:
        """Refuse noise under which coming and leaving might add up to more.

        Raises:
            UnsupportedError: for a strategy that is not Toeplitz with falling coefficients, or another
                participation than Single().
        """
        strategy = mechanism.strategy
        if not strategy.structure.nonincreasing or mechanism.participation != Single():
            raise UnsupportedError(
                f"mechanism of {type(strategy).__name__} and {mechanism.participation!r}: units that come"
                " and leave need Single() and a Toeplitz strategy with coefficients that fall and are not"
                " negative. Give epsilon and horizon, and one is planned."
            )

    def describe(self) -> str:
        """Of one unit, for statements."""
        often = "one visit" if self.visits == 1 else f"{self.visits} visits"
        return (
            f"it is counted in at most {often}, each until {self.within} steps have passed without a record"
        )
