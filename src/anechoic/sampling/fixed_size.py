"""Batches of a fixed size: drawn anew in every step, without replacement."""

from __future__ import annotations

from dataclasses import dataclass

from anechoic._serialize import serializable
from anechoic.participation import FullBatch
from anechoic.participation.base import Participation
from anechoic.sampling.base import SecretSampling, owning, plural


@serializable
@dataclass(frozen=True)
class FixedSize(SecretSampling):
    """Every batch holds B of the N examples, drawn uniformly without replacement, anew in every step.

    Accounted for independent noise, under "zero_out" and "replace_one".

    Args:
        examples: N, >= 1, public.
        batch_size: B, 1 <= B <= N.
        steps: n, >= 1.
    """

    examples: int
    batch_size: int
    steps: int

    def __post_init__(self) -> None:
        self._make_whole("examples", "batch_size", "steps")
        if self.batch_size > self.examples:
            raise ValueError(
                f"batch_size={self.batch_size} exceeds examples={self.examples}: take smaller batches."
            )

    @property
    def rate(self) -> float:
        """Probability that a given example is in a given batch."""
        return self.batch_size / self.examples

    @property
    def participation(self) -> Participation:
        return FullBatch()

    @property
    def moves_others(self) -> bool:
        return True

    def describe(self, unit: str = "example") -> str:
        return (
            f"fixed-size sampling: each of {self.steps} batches holds {self.batch_size} of {self.examples}"
            f" {plural(unit)}, drawn uniformly without replacement and anew, which ones kept secret"
            f"{owning(unit)}"
        )
