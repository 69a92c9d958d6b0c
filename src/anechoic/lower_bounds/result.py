"""Result of every lower bound of the loss."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    """A proven lower bound of the loss.

    Attributes:
        value: no strategy of the class has a smaller loss; root scale.
        theorem: what proves it.
        covers: the class of strategies, such as "every factorisation".
    """

    value: float
    theorem: str
    covers: str = "every factorisation"
