"""Balls in bins: each example in one bin of every epoch, the same one."""

from __future__ import annotations

from dataclasses import dataclass

from anechoic._serialize import serializable
from anechoic.participation import Cyclic
from anechoic.participation.base import Participation
from anechoic.sampling.base import SecretSampling, owning, plural


@serializable
@dataclass(frozen=True)
class BallsInBins(SecretSampling):
    """Each example draws one of `bins` once for the whole run; bin i is the batch of steps i, i + bins, ….

    The bins are drawn uniformly and independently of one another (arXiv 2410.06266), so batches differ in
    size; N / bins is what every noisy sum is divided by.

    Args:
        examples: N, >= 1, public.
        bins: b, 1 <= b <= N; steps in one pass.
        steps: n, >= 1.
    """

    examples: int
    bins: int
    steps: int

    def __post_init__(self) -> None:
        self._make_whole("examples", "bins", "steps")
        self._at_most_examples("bins", self.bins)

    @property
    def batch_size(self) -> float:
        """N / bins, the expectation."""
        return self.examples / self.bins

    @property
    def period(self) -> int:
        """Steps in one pass."""
        return self.bins

    @property
    def participation(self) -> Participation:
        return Cyclic(self.bins)

    def describe(self, unit: str = "example") -> str:
        return (
            f"balls in bins: each of {self.examples} {plural(unit)} drew one of {self.bins} bins, uniformly"
            f" and once for all {self.steps} steps, and takes part in step t where t mod {self.bins} is its"
            f" bin; which bin it drew kept secret{owning(unit)}"
        )
