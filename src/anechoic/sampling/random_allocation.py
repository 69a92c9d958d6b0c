"""Random allocation: each example in one step of every epoch, drawn afresh."""

from __future__ import annotations

from dataclasses import dataclass

from anechoic._serialize import serializable
from anechoic.participation import OncePerEpoch
from anechoic.participation.base import Participation
from anechoic.sampling.base import Sampling, owning, plural, within
from anechoic.sampling.checked import at_most_examples, whole_numbers


@serializable
@dataclass(frozen=True)
class RandomAllocation(Sampling):
    """In every epoch of `period` steps each example takes part in one step, drawn uniformly and anew.

    Of an epoch that n cuts short, only the steps before n are made.

    Args:
        examples: N, >= 1, public.
        period: steps in one epoch, 1 <= period <= N.
        steps: n, >= 1.
    """

    examples: int
    period: int
    steps: int

    def __post_init__(self) -> None:
        whole_numbers(self, "examples", "period", "steps")
        at_most_examples(self, "period", self.period)

    @property
    def batch_size(self) -> float:
        """N / period, the expectation."""
        return self.examples / self.period

    @property
    def participation(self) -> Participation:
        return OncePerEpoch(self.period)

    @property
    def amplified(self) -> bool:
        return True

    @property
    def moves_others(self) -> bool:
        return False

    def truncate(self, steps: int) -> RandomAllocation:
        return RandomAllocation(self.examples, self.period, within(self, steps))

    def describe(self, unit: str = "example") -> str:
        return (
            f"random allocation: in each epoch of {self.period} steps each of {self.examples} {plural(unit)}"
            f" takes part in one step, drawn uniformly and anew, for {self.steps} steps; which ones kept"
            f" secret{owning(unit)}"
        )
