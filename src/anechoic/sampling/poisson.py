"""Independent draws at every step: Poisson sampling, and its cyclic form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anechoic._serialize import serializable
from anechoic._validate import one_of, plain, positive_float, positive_int
from anechoic.participation import Cyclic, FullBatch
from anechoic.participation.base import Participation
from anechoic.sampling.base import Sampling, an, owning, plural, within


@serializable
@dataclass(frozen=True)
class Poisson(Sampling):
    """Every example joins every batch independently with probability B / N, in secret.

    Args:
        examples: N, >= 1, public.
        batch_size: expected batch size B, 0 < B <= N.
        steps: n, >= 1.
    """

    examples: int
    batch_size: float
    steps: int

    def __post_init__(self) -> None:
        _check_rate(self, groups=1)

    @property
    def groups(self) -> int:
        """1: every example may be sampled at every step."""
        return 1

    @property
    def rate(self) -> float:
        """Probability that a given example is in a given batch."""
        return self.batch_size / self.examples

    @property
    def participation(self) -> Participation:
        return FullBatch()

    @property
    def amplified(self) -> bool:
        return True

    @property
    def moves_others(self) -> bool:
        return False

    def truncate(self, steps: int) -> Poisson:
        return Poisson(self.examples, self.batch_size, within(self, steps))

    def describe(self, unit: str = "example") -> str:
        return (
            f"Poisson sampling: each of {self.examples} {plural(unit)} joins each of {self.steps} batches"
            f" independently with probability {self.rate:.6g}, which batches it joined kept secret"
            f"{owning(unit)}"
        )


@serializable
@dataclass(frozen=True)
class CyclicPoisson(Sampling):
    """Examples are split into groups; step t Poisson-samples group t mod groups (Definition 3.20).

    Args:
        examples: N, >= 1.
        batch_size: expected batch size B > 0, with B * groups <= N.
        groups: number of groups, >= 1 (monograph: b); strategies of at most so many bands gain most.
        steps: n, >= 1.
        grouping: "balanced" deals a secret random permutation into groups of equal size (to within
            one); "independent" draws each example's group on its own, as add-or-remove adjacency needs.

    Raises:
        ValueError: for an argument out of range, or B * groups > N.
    """

    examples: int
    batch_size: float
    groups: int
    steps: int
    grouping: Literal["balanced", "independent"] = "balanced"

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", positive_int("groups", self.groups))
        one_of("grouping", self.grouping, ("balanced", "independent"))
        _check_rate(self, groups=self.groups)

    @property
    def rate(self) -> float:
        """Probability that an example is in the batch of a step that samples its group: B groups / N."""
        return min(1.0, self.batch_size * self.groups / self.examples)

    @property
    def participation(self) -> Participation:
        return Cyclic(self.groups)

    @property
    def amplified(self) -> bool:
        return True

    @property
    def moves_others(self) -> bool:
        return self.groups > 1 and self.grouping != "independent"

    @property
    def public_groups(self) -> int:
        return self.groups

    def truncate(self, steps: int) -> CyclicPoisson:
        return CyclicPoisson(self.examples, self.batch_size, self.groups, within(self, steps), self.grouping)

    def describe(self, unit: str = "example") -> str:
        return (
            f"cyclic Poisson sampling: {self.examples} {plural(unit)} in {self.groups} groups"
            f" ({self.grouping}), step t samples each {unit} of group t mod {self.groups} independently"
            f" with probability {self.rate:.6g} for {self.steps} steps, which batches {an(unit)} joined kept"
            f" secret{owning(unit)}"
        )


def _check_rate(scheme: Poisson | CyclicPoisson, *, groups: int) -> None:
    examples = positive_int("examples", scheme.examples)
    batch_size = positive_float("batch_size", scheme.batch_size)
    object.__setattr__(scheme, "examples", examples)
    object.__setattr__(scheme, "batch_size", plain(scheme.batch_size))
    object.__setattr__(scheme, "steps", positive_int("steps", scheme.steps))
    if batch_size * groups > examples:
        raise ValueError(
            f"batch_size * groups / examples = {batch_size:g} * {groups} / {examples} ="
            f" {batch_size * groups / examples:.4g} is a sampling probability and must be at most 1:"
            f" take at most {int(examples // batch_size)} groups or a smaller batch."
        )
