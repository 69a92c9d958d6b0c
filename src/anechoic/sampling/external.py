"""External sampling: somebody else forms the batches."""

from __future__ import annotations

from dataclasses import dataclass

from anechoic._serialize import serializable
from anechoic._validate import plain, positive_float, positive_int
from anechoic.participation.base import Participation
from anechoic.sampling.base import Sampling, owning


@serializable
@dataclass(frozen=True)
class External(Sampling):
    """Somebody else forms the batches and promises `participation` (time order, federated clients).

    Args:
        participation: what is promised.
        batch_size: the constant divisor of every noisy sum, > 0; it may count examples or units.
        steps: n, >= 1.
        examples: N of examples or units, >= 1, where it is known; nothing rests on it.

    Raises:
        ValueError: for an argument out of range.
    """

    participation: Participation
    batch_size: float
    steps: int
    examples: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.participation, Participation):
            raise ValueError(
                f"participation={self.participation!r} must be a Participation, such as MinSep(100)."
            )
        positive_float("batch_size", self.batch_size)
        object.__setattr__(self, "batch_size", plain(self.batch_size))
        object.__setattr__(self, "steps", positive_int("steps", self.steps))
        if self.examples is not None:
            object.__setattr__(self, "examples", positive_int("examples", self.examples))

    @property
    def formed_outside(self) -> bool:
        return True

    def describe(self, unit: str = "example") -> str:
        of = "" if unit == "example" else f" of each {unit}"
        return (
            f"batches formed outside the library for {self.steps} steps, promised{of}:"
            f" {self.participation.describe()}{owning(unit)}"
        )
