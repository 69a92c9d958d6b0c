"""Random allocation: each example in one step of every epoch, drawn afresh."""

from __future__ import annotations

from dataclasses import dataclass

from anechoic._serialize import serializable
from anechoic.participation import OncePerEpoch
from anechoic.participation.base import Participation
from anechoic.sampling.base import SecretSampling, owning, plural


@serializable
@dataclass(frozen=True)
class RandomAllocation(SecretSampling):
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
        self._make_whole("examples", "period", "steps")
        self._at_most_examples("period", self.period)

    @property
    def batch_size(self) -> float:
        """N / period, the expectation."""
        return self.examples / self.period

    @property
    def participation(self) -> Participation:
        return OncePerEpoch(self.period)

    def describe(self, unit: str = "example") -> str:
        return (
            f"random allocation: in each epoch of {self.period} steps each of {self.examples} {plural(unit)}"
            f" takes part in one step, drawn uniformly and anew, for {self.steps} steps; which ones kept"
            f" secret{owning(unit)}"
        )
