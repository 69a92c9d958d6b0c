"""Schemes without secret randomness: a fixed order, and batches formed outside the library."""

from __future__ import annotations

from dataclasses import dataclass

from anechoic._serialize import serializable
from anechoic._validate import plain, positive_float, positive_int
from anechoic.participation import Cyclic, Participation, Single
from anechoic.sampling.base import Sampling, owning, plural, within


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
        return FixedOrder(self.examples, self.batch_size, steps=within(self, steps), drop_last=self.drop_last)

    def describe(self, unit: str = "example") -> str:
        tail = ", the incomplete last batch of a pass dropped" if self.drop_last else ""
        return (
            f"fixed order: one order of {self.examples} {plural(unit)} for the whole run, in batches of"
            f" {self.batch_size} ({self.period} steps a pass, {self.steps} steps{tail}){owning(unit)}"
        )


@serializable
@dataclass(frozen=True)
class External(Sampling):
    """Somebody else forms the batches and promises `participation` (time order, federated clients).

    Args:
        participation: what is promised.
        batch_size: the constant divisor of every noisy sum, > 0; it may count examples or units.
        steps: n, >= 1.
        examples: N of examples or units, >= 1, where it is known; nothing rests on it.
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
        return External(self.participation, self.batch_size, within(self, steps), self.examples)

    def describe(self, unit: str = "example") -> str:
        of = "" if unit == "example" else f" of each {unit}"
        return (
            f"batches formed outside the library for {self.steps} steps, promised{of}:"
            f" {self.participation.describe()}{owning(unit)}"
        )


def _check_batch(scheme: FixedOrder) -> None:
    examples = positive_int("examples", scheme.examples)
    batch_size = positive_int("batch_size", scheme.batch_size)
    if batch_size > examples:
        raise ValueError(f"batch_size={batch_size} exceeds examples={examples}: take smaller batches.")
    object.__setattr__(scheme, "examples", examples)
    object.__setattr__(scheme, "batch_size", batch_size)
