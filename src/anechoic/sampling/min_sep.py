"""Min-sep sampling: independent draws with a minimum separation."""

from __future__ import annotations

from dataclasses import dataclass

from anechoic._serialize import serializable
from anechoic.participation import MinSep
from anechoic.participation.base import Participation
from anechoic.sampling.base import SecretSampling, owning, plural


@serializable
@dataclass(frozen=True)
class MinSepSampling(SecretSampling):
    """b-min-sep sampling: who sat out the last b - 1 steps joins the next batch with probability p.

    The first step is drawn from the stationary law, so that every batch has the expected size
    B = N / (b - 1 + 1 / p) (arXiv 2602.09338). p = 1 is balls in bins, b = 1 is Poisson sampling.

    Args:
        examples: N, >= 1, public.
        batch_size: expected batch size B > 0, with B * separation <= N.
        separation: b >= 1; an example takes part at most once in any b consecutive steps.
        steps: n, >= 1.

    Raises:
        ValueError: for an argument out of range, or B * separation > N.
    """

    examples: int
    batch_size: float
    separation: int
    steps: int

    def __post_init__(self) -> None:
        self._make_whole("examples", "separation", "steps")
        self._check_batch_size()
        if self.batch_size * self.separation > self.examples:
            raise ValueError(
                f"batch_size * separation = {self.batch_size:g} * {self.separation} exceeds"
                f" examples={self.examples}: take a separation of at most"
                f" {int(self.examples // self.batch_size)} or a smaller batch."
            )

    @property
    def rate(self) -> float:
        """p: probability that an eligible example joins a batch, 1 / (N / B - b + 1)."""
        return min(1.0, 1.0 / (self.examples / self.batch_size - self.separation + 1))

    @property
    def participation(self) -> Participation:
        return MinSep(self.separation)

    def describe(self, unit: str = "example") -> str:
        return (
            f"min-sep sampling: each of {self.examples} {plural(unit)} joins a batch with probability"
            f" {self.rate:.6g} where it joined none of the {self.separation - 1} before, from the stationary"
            f" start, for {self.steps} steps, which batches it joined kept secret{owning(unit)}"
        )
