"""Draws anew at every step: Poisson sampling, plain and cyclic, and batches of a fixed size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anechoic._serialize import serializable
from anechoic._validate import one_of
from anechoic.participation import Cyclic, FullBatch
from anechoic.participation.base import Participation
from anechoic.sampling.base import SecretSampling, an, owning, plural


@serializable
@dataclass(frozen=True)
class Poisson(SecretSampling):
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
        _check_rate(self)

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

    def describe(self, unit: str = "example") -> str:
        return (
            f"Poisson sampling: each of {self.examples} {plural(unit)} joins each of {self.steps} batches"
            f" independently with probability {self.rate:.6g}, which batches it joined kept secret"
            f"{owning(unit)}"
        )


@serializable
@dataclass(frozen=True)
class CyclicPoisson(SecretSampling):
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
        self._make_whole("groups")
        one_of("grouping", self.grouping, ("balanced", "independent"))
        _check_rate(self)

    @property
    def rate(self) -> float:
        """Probability that an example is in the batch of a step that samples its group: B groups / N."""
        return min(1.0, self.batch_size * self.groups / self.examples)

    @property
    def participation(self) -> Participation:
        return Cyclic(self.groups)

    @property
    def moves_others(self) -> bool:
        return self.groups > 1 and self.grouping != "independent"

    @property
    def public_groups(self) -> int:
        return self.groups

    def describe(self, unit: str = "example") -> str:
        return (
            f"cyclic Poisson sampling: {self.examples} {plural(unit)} in {self.groups} groups"
            f" ({self.grouping}), step t samples each {unit} of group t mod {self.groups} independently"
            f" with probability {self.rate:.6g} for {self.steps} steps, which batches {an(unit)} joined kept"
            f" secret{owning(unit)}"
        )


@serializable
@dataclass(frozen=True)
class FixedSize(SecretSampling):
    """Every batch holds B of the N examples, drawn uniformly without replacement, anew in every step.

    Accounted for independent noise, under "zero_out" and "replace_one".

    Args:
        examples: N, >= 1, public.
        batch_size: B, 1 <= B <= N.
        steps: n, >= 1.

    Raises:
        ValueError: for an argument out of range, or B > N.
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


def _check_rate(scheme: Poisson | CyclicPoisson) -> None:
    scheme._make_whole("examples", "steps")
    scheme._check_batch_size()
    examples, batch_size, groups = scheme.examples, scheme.batch_size, scheme.groups
    if batch_size * groups > examples:
        raise ValueError(
            f"batch_size * groups / examples = {batch_size:g} * {groups} / {examples} ="
            f" {batch_size * groups / examples:.4g} is a sampling probability and must be at most 1:"
            f" take at most {int(examples // batch_size)} groups or a smaller batch."
        )
