"""How batches are formed, as data: each scheme carries N, B and n, and says which participation follows.

A scheme is a promise about data access. `FixedOrder` and `External` give no amplification; under
`Poisson` and `CyclicPoisson` accounting may use the secrecy of who was sampled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from anechoic._serialize import serializable
from anechoic._validate import one_of, plain, positive_float, positive_int
from anechoic.participation import Cyclic, FullBatch, Participation, Single


class Sampling:
    """Base of all schemes. Every subclass has `batch_size` (B), `steps` (n) and `participation`."""

    if TYPE_CHECKING:  # fields of some subclasses, properties of others

        @property
        def batch_size(self) -> int | float:
            """B: the batch size, or its expectation."""

        @property
        def steps(self) -> int:
            """n: number of releases."""

        @property
        def participation(self) -> Participation:
            """Which steps one unit may touch under this scheme."""

    @property
    def amplified(self) -> bool:
        """Whether accounting may use the randomness of the batches."""
        return False

    @property
    def expected_batch_size(self) -> int | float:
        """The constant divisor of every noisy sum: B, whatever a batch happens to hold."""
        return self.batch_size

    def truncate(self, steps: int) -> Sampling:
        """The scheme of the first `steps` steps, 1 <= steps <= n."""
        raise NotImplementedError  # pragma: no cover - abstract

    def describe(self) -> str:
        """One line for a privacy statement."""
        raise NotImplementedError  # pragma: no cover - abstract


@serializable
@dataclass(frozen=True)
class FixedOrder(Sampling):
    """Passes over one order of the data that is fixed for the whole run: batch t is chunk t mod period.

    Args:
        examples: N, >= 1.
        batch_size: B, 1 <= B <= N.
        epochs: passes over the data, >= 1 (give this or `steps`).
        steps: n, >= 1.
        drop_last: whether the chunk of fewer than B examples at the end of a pass is left out.
    """

    examples: int
    batch_size: int
    epochs: int | None = None
    steps: int = 0
    drop_last: bool = False

    def __post_init__(self) -> None:
        _check_batch(self)
        if not isinstance(self.drop_last, bool):
            raise ValueError(f"drop_last={self.drop_last!r} must be True or False.")
        if self.epochs is None and not self.steps:
            raise ValueError("epochs=None and steps=None: give one of the two.")
        if self.epochs is not None:
            epochs = positive_int("epochs", self.epochs)
            if self.steps not in (0, epochs * self.period):
                raise ValueError(f"epochs={epochs} and steps={self.steps}: give one of the two.")
            object.__setattr__(self, "epochs", epochs)
            object.__setattr__(self, "steps", epochs * self.period)
        object.__setattr__(self, "steps", positive_int("steps", self.steps))

    @property
    def period(self) -> int:
        """Steps in one pass."""
        whole, rest = divmod(self.examples, self.batch_size)
        return whole if self.drop_last or not rest else whole + 1

    @property
    def participation(self) -> Participation:
        return Single() if self.steps <= self.period else Cyclic(self.period)

    def truncate(self, steps: int) -> FixedOrder:
        return FixedOrder(
            self.examples, self.batch_size, steps=_within(self, steps), drop_last=self.drop_last
        )

    def describe(self) -> str:
        tail = ", the incomplete last batch of a pass dropped" if self.drop_last else ""
        return (
            f"fixed order: one order of {self.examples} examples for the whole run, in batches of"
            f" {self.batch_size} ({self.period} steps a pass, {self.steps} steps{tail})"
        )


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

    def truncate(self, steps: int) -> Poisson:
        return Poisson(self.examples, self.batch_size, _within(self, steps))

    def describe(self) -> str:
        return (
            f"Poisson sampling: each of {self.examples} examples joins each of {self.steps} batches"
            f" independently with probability {self.rate:.6g}, which batches it joined kept secret"
        )


@serializable
@dataclass(frozen=True)
class CyclicPoisson(Sampling):
    """Examples are split into groups; step t Poisson-samples group t mod groups (Definition 3.20).

    Args:
        examples: N, >= 1.
        batch_size: expected batch size B > 0, with B * groups <= N.
        groups: number of groups, >= 1 (monograph: b); a strategy may have at most this many bands.
        steps: n, >= 1.
        grouping: "balanced" deals a secret random permutation into groups of equal size (to within
            one); "independent" draws each example's group on its own, as add-or-remove adjacency needs.
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

    def truncate(self, steps: int) -> CyclicPoisson:
        return CyclicPoisson(self.examples, self.batch_size, self.groups, _within(self, steps), self.grouping)

    def describe(self) -> str:
        return (
            f"cyclic Poisson sampling: {self.examples} examples in {self.groups} groups ({self.grouping}),"
            f" step t samples each example of group t mod {self.groups} independently with probability"
            f" {self.rate:.6g} for {self.steps} steps, which batches an example joined kept secret"
        )


@serializable
@dataclass(frozen=True)
class External(Sampling):
    """Somebody else forms the batches and promises `participation` (time order, federated clients).

    Args:
        participation: what is promised.
        batch_size: the constant divisor of every noisy sum, > 0.
        steps: n, >= 1.
        examples: N, >= 1, where it is known.
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

    def truncate(self, steps: int) -> External:
        return External(self.participation, self.batch_size, _within(self, steps), self.examples)

    def describe(self) -> str:
        return (
            f"batches formed outside the library for {self.steps} steps, promised:"
            f" {self.participation.describe()}"
        )


def _within(scheme: Sampling, steps: int) -> int:
    n = scheme.steps
    if positive_int("steps", steps) > n:
        raise ValueError(
            f"steps={steps} exceeds the {n} steps of this scheme: it promises nothing beyond them."
        )
    return int(steps)


def _check_batch(scheme: FixedOrder) -> None:
    examples = positive_int("examples", scheme.examples)
    batch_size = positive_int("batch_size", scheme.batch_size)
    if batch_size > examples:
        raise ValueError(f"batch_size={batch_size} exceeds examples={examples}: take smaller batches.")
    object.__setattr__(scheme, "examples", examples)
    object.__setattr__(scheme, "batch_size", batch_size)


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
