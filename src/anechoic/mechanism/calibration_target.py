"""What a calibration is asked for, and the last step of one: noise at which epsilon is shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from anechoic._validate import positive_float


class Spending(Protocol):
    """A mechanism with its own delta."""

    def epsilon(self) -> float:
        """At that delta."""


Made = TypeVar("Made", bound=Spending)


def asked_for(epsilon: float | None, noise_multiplier: float | None) -> tuple[float, bool]:
    """The one of the two that is given, checked, and whether it is epsilon.

    Raises:
        ValueError: where not exactly one is given, or it is not > 0.
    """
    if (epsilon is None) == (noise_multiplier is None):
        raise ValueError(
            f"epsilon={epsilon}, noise_multiplier={noise_multiplier}: give exactly one of the two."
        )
    if noise_multiplier is not None:
        return positive_float("noise_multiplier", noise_multiplier), False
    return positive_float("epsilon", epsilon, remedy="Only infinitely much noise gives epsilon = 0."), True


def shown(with_std: Callable[[float], Made], std: float, epsilon: float) -> Made:
    """The mechanism with noise `std`, or with the few roundings more at which its epsilon is at most that."""
    mechanism, excess = with_std(std), 1e-15
    while mechanism.epsilon() > epsilon:  # products of rounded numbers
        mechanism, excess = with_std(std * (1 + excess)), 2 * excess
    return mechanism
