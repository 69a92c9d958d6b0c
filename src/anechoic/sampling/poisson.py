"""Independent draws at every step: Poisson sampling, its cyclic form, and both with batches that are cut."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from anechoic._serialize import serializable
from anechoic._validate import one_of, plain, positive_float, positive_int
from anechoic.errors import UnsupportedError
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

    def at_most(self, max_batch_size: int) -> Truncated:
        """The same with batches of at most `max_batch_size`, to which they are padded; see `Truncated`."""
        return Truncated(self, max_batch_size)

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

    def at_most(self, max_batch_size: int) -> Truncated:
        """The same with batches of at most `max_batch_size`, to which they are padded; see `Truncated`."""
        return Truncated(self, max_batch_size)

    def describe(self, unit: str = "example") -> str:
        return (
            f"cyclic Poisson sampling: {self.examples} {plural(unit)} in {self.groups} groups"
            f" ({self.grouping}), step t samples each {unit} of group t mod {self.groups} independently"
            f" with probability {self.rate:.6g} for {self.steps} steps, which batches {an(unit)} joined kept"
            f" secret{owning(unit)}"
        )


@serializable
@dataclass(frozen=True)
class Truncated(Sampling):
    """Poisson sampling whose batches are cut: of more than `max_batch_size` members so many are kept.

    Which ones is drawn uniformly. Batches that hold fewer are padded with rows that add nothing, so that all
    batches have one size (where an example is a unit). Made by `Poisson.at_most` and `CyclicPoisson.at_most`.

    Args:
        inner: what is cut.
        max_batch_size: at least the expected batch size of `inner`.
    """

    inner: Poisson | CyclicPoisson
    max_batch_size: int

    def __post_init__(self) -> None:
        if not isinstance(self.inner, (Poisson, CyclicPoisson)):
            raise UnsupportedError(
                f"{type(self.inner).__name__} with batches of at most {self.max_batch_size}: a theorem is"
                " known here for Poisson and CyclicPoisson alone, whose draws are independent."
            )
        object.__setattr__(self, "max_batch_size", positive_int("max_batch_size", self.max_batch_size))
        if self.max_batch_size < self.inner.batch_size:
            raise ValueError(
                f"max_batch_size={self.max_batch_size} is below the expected batch size"
                f" {self.inner.batch_size:g}: most batches would be cut. Take at least"
                f" {least_size(self.inner, 1e-9)}, which are exceeded once in 10^9 runs."
            )

    @property
    def examples(self) -> int:
        return self.inner.examples

    @property
    def batch_size(self) -> float:
        """B of `inner`, the constant divisor."""
        return self.inner.batch_size

    @property
    def steps(self) -> int:
        return self.inner.steps

    @property
    def groups(self) -> int:
        """Those of `inner`."""
        return self.inner.groups

    @property
    def rate(self) -> float:
        """Probability of being drawn, before a batch is cut."""
        return self.inner.rate

    @property
    def participation(self) -> Participation:
        return self.inner.participation

    @property
    def amplified(self) -> bool:
        return True

    @property
    def moves_others(self) -> bool:
        return True  # where a batch is full, one more member takes the place of another

    @property
    def public_groups(self) -> int:
        return self.inner.public_groups

    @property
    def overflow(self) -> float:
        """Upper bound on the probability that any batch of the run is cut; depends on nothing private."""
        return overflow(self.inner, self.max_batch_size)

    def truncate(self, steps: int) -> Truncated:
        return Truncated(self.inner.truncate(steps), self.max_batch_size)

    def describe(self, unit: str = "example") -> str:
        return (
            f"{self.inner.describe(unit)}; of more than {self.max_batch_size} in a batch a uniform draw keeps"
            f" {self.max_batch_size} (probability at most {self.overflow:.3g} in all)"
            f"{', and smaller batches are padded' if unit == 'example' else ''}"
        )


def overflow(scheme: Poisson | CyclicPoisson, size: int) -> float:
    """Upper bound on the probability that any of the batches has more than `size` members: a union bound.

    A batch of balanced groups is a binomial number of the members of one group; of independent groups each
    example is in it with probability rate / groups, apart from all others.
    """
    count, rate = scheme.examples, scheme.rate
    if scheme.groups > 1:
        balanced = scheme.moves_others
        count = -(-count // scheme.groups) if balanced else count
        rate = rate if balanced else rate / scheme.groups
    return min(1.0, scheme.steps * binomial_tail(count, rate, size) * (1 + 2.0**-50))


def binomial_tail(count: int, rate: float, size: int) -> float:
    """Upper bound on the probability that of `count` coins more than `size` show heads.

    P(X = size + 1) over 1 minus the ratio of this term and the next: ratios of terms fall, so that the tail
    is below a geometric series.
    """
    if size >= count:
        return 0.0
    if rate >= 1.0:
        return 1.0
    first = size + 1
    ratio = (count - first) / (first + 1) * rate / (1 - rate)
    if ratio >= 1.0:
        return 1.0
    return min(1.0, math.exp(_log_binomial(count, rate, first)) / (1 - ratio) * (1 + 2.0**-40))


def _log_binomial(count: int, rate: float, heads: int) -> float:
    """Upper bound on the logarithm of the probability of so many heads of `count` coins."""
    terms = (
        math.lgamma(count + 1),
        -math.lgamma(heads + 1),
        -math.lgamma(count - heads + 1),
        heads * math.log(rate),
        (count - heads) * math.log1p(-rate),
    )
    return math.fsum(terms) + 2.0**-49 * (sum(map(abs, terms)) + count)  # more than float64 rounds off


def last_place(scheme: Poisson | CyclicPoisson, size: int) -> tuple[float, float] | None:
    """Upper bounds on (how likely the others leave one place, how likely a unit then has it), in one step.

    With Y the others that are drawn, a = P(Y = size - 1) and b the sum of P(Y = y) size / (y + 1) over
    y >= size, the kept others are size - 1 with probability a + p b, and the unit is with them with
    probability p (a + b) / (a + p b). Ratios of P(Y = y) fall in y: with r the first of them, b / a is at
    most r / (1 - r).

    Returns:
        None where such steps are no exception, and for independent groups, whose sizes are random.
    """
    if scheme.groups > 1 and not scheme.moves_others:
        return None
    members, rate = -(-scheme.examples // scheme.groups), scheme.rate
    if size >= members:
        return 0.0, rate  # no batch can be cut
    if rate >= 1.0 or size - 1 < members * rate * (1 + 2.0**-40):
        return None
    ratio = (members - size) / size * rate / (1 - rate) * (1 + 2.0**-50)
    if ratio >= 1.0:
        return None
    others = _log_binomial(members - 1, rate, size - 1)
    weight = math.exp(others) * (1 + rate * ratio / (1 - ratio)) * (1 + 2.0**-40)
    return min(1.0, weight), min(1.0, rate / (1 - ratio) * (1 + 2.0**-40))


def least_size(scheme: Poisson | CyclicPoisson, probability: float) -> int:
    """The least size that any batch exceeds with at most `probability`, by `overflow`."""
    low, high = math.floor(scheme.batch_size), scheme.examples
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if overflow(scheme, middle) <= probability else (middle, high)
    return high


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
