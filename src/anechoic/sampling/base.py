"""What every sampling scheme has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anechoic._validate import positive_int
from anechoic.participation import Participation


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

    def describe(self, unit: str = "example") -> str:
        """One line for a privacy statement about one `unit`."""
        raise NotImplementedError  # pragma: no cover - abstract


def an(unit: str) -> str:
    """`unit` with its article."""
    return f"an {unit}" if unit[:1] in "aeio" else f"a {unit}"


def plural(unit: str) -> str:
    """Several of `unit`."""
    if unit.endswith("craft"):
        return unit
    if unit.endswith("y") and unit[-2:-1] not in "aeiou":
        return f"{unit[:-1]}ies"
    return f"{unit}es" if unit.endswith(("s", "x", "ch", "sh")) else f"{unit}s"


def owning(unit: str) -> str:
    """What a statement about units that own several examples adds."""
    if unit == "example":
        return ""
    return (
        f"; {an(unit)} takes part with the examples that it owns, and who owns an example that has several"
        " owners is fixed and public"
    )


def within(scheme: Sampling, steps: int) -> int:
    """`steps` if the scheme has as many."""
    n = scheme.steps
    if positive_int("steps", steps) > n:
        raise ValueError(
            f"steps={steps} exceeds the {n} steps of this scheme: it promises nothing beyond them."
        )
    return int(steps)
