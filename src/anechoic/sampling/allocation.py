"""Schemes that spread the participations of an example over the run: bins, epochs, a least separation."""

from __future__ import annotations

from dataclasses import dataclass

from anechoic._serialize import serializable
from anechoic._validate import plain, positive_float, positive_int
from anechoic.participation import Cyclic, MinSep, OncePerEpoch, Participation
from anechoic.sampling.base import Sampling, owning, plural, within


@serializable
@dataclass(frozen=True)
class BallsInBins(Sampling):
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
        _integers(self, "examples", "bins", "steps")
        _at_most_examples(self, "bins", self.bins)

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

    @property
    def amplified(self) -> bool:
        return True

    def truncate(self, steps: int) -> BallsInBins:
        return BallsInBins(self.examples, self.bins, within(self, steps))

    def describe(self, unit: str = "example") -> str:
        return (
            f"balls in bins: each of {self.examples} {plural(unit)} drew one of {self.bins} bins, uniformly"
            f" and once for all {self.steps} steps, and takes part in step t where t mod {self.bins} is its"
            f" bin; which bin it drew kept secret{owning(unit)}"
        )


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
        _integers(self, "examples", "period", "steps")
        _at_most_examples(self, "period", self.period)

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

    def truncate(self, steps: int) -> RandomAllocation:
        return RandomAllocation(self.examples, self.period, within(self, steps))

    def describe(self, unit: str = "example") -> str:
        return (
            f"random allocation: in each epoch of {self.period} steps each of {self.examples} {plural(unit)}"
            f" takes part in one step, drawn uniformly and anew, for {self.steps} steps; which ones kept"
            f" secret{owning(unit)}"
        )


@serializable
@dataclass(frozen=True)
class MinSepSampling(Sampling):
    """b-min-sep sampling: who sat out the last b - 1 steps joins the next batch with probability p.

    The first step is drawn from the stationary law, so that every batch has the expected size
    B = N / (b - 1 + 1 / p) (arXiv 2602.09338). p = 1 is balls in bins, b = 1 is Poisson sampling.

    Args:
        examples: N, >= 1, public.
        batch_size: expected batch size B > 0, with B * separation <= N.
        separation: b >= 1; an example takes part at most once in any b consecutive steps.
        steps: n, >= 1.
    """

    examples: int
    batch_size: float
    separation: int
    steps: int

    def __post_init__(self) -> None:
        _integers(self, "examples", "separation", "steps")
        batch_size = positive_float("batch_size", self.batch_size)
        object.__setattr__(self, "batch_size", plain(self.batch_size))
        if batch_size * self.separation > self.examples:
            raise ValueError(
                f"batch_size * separation = {batch_size:g} * {self.separation} exceeds"
                f" examples={self.examples}: take a separation of at most"
                f" {int(self.examples // batch_size)} or a smaller batch."
            )

    @property
    def rate(self) -> float:
        """p: probability that an eligible example joins a batch, 1 / (N / B - b + 1)."""
        return min(1.0, 1.0 / (self.examples / self.batch_size - self.separation + 1))

    @property
    def participation(self) -> Participation:
        return MinSep(self.separation)

    @property
    def amplified(self) -> bool:
        return True

    def truncate(self, steps: int) -> MinSepSampling:
        return MinSepSampling(self.examples, self.batch_size, self.separation, within(self, steps))

    def describe(self, unit: str = "example") -> str:
        return (
            f"min-sep sampling: each of {self.examples} {plural(unit)} joins a batch with probability"
            f" {self.rate:.6g} where it joined none of the {self.separation - 1} before, from the stationary"
            f" start, for {self.steps} steps, which batches it joined kept secret{owning(unit)}"
        )


def _integers(scheme: Sampling, *names: str) -> None:
    for name in names:
        object.__setattr__(scheme, name, positive_int(name, getattr(scheme, name)))


def _at_most_examples(scheme: BallsInBins | RandomAllocation, name: str, value: int) -> None:
    if value > scheme.examples:
        raise ValueError(
            f"{name}={value} exceeds examples={scheme.examples}: a batch would be expected to hold less than"
            f" one example. Take at most {scheme.examples} {'steps' if name == 'period' else name}."
        )
