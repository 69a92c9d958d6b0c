"""Fixed order: batches decided before the run; no secret, no amplification."""

from __future__ import annotations

from dataclasses import dataclass

from anechoic._serialize import serializable
from anechoic._validate import positive_int
from anechoic.participation import Cyclic, Single
from anechoic.participation.base import Participation
from anechoic.sampling.base import Sampling, counted, owning, plural, within


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

    Raises:
        ValueError: for an argument out of range, or unless one of epochs and steps is given.
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
            f" {self.batch_size} ({counted(self.period, 'step')} a pass, {counted(self.steps, 'step')}{tail})"
            f"{owning(unit)}"
        )


def _check_batch(scheme: FixedOrder) -> None:
    examples = positive_int("examples", scheme.examples)
    batch_size = positive_int("batch_size", scheme.batch_size)
    if batch_size > examples:
        raise ValueError(f"batch_size={batch_size} exceeds examples={examples}: take smaller batches.")
    object.__setattr__(scheme, "examples", examples)
    object.__setattr__(scheme, "batch_size", batch_size)
