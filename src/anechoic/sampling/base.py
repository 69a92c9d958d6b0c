"""Base class of sampling schemes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Self

from anechoic._validate import plain, positive_float, positive_int
from anechoic.participation.base import Participation


class Sampling:
    """Base of all schemes.

    Every subclass has `examples` (N), `batch_size` (B), `steps` (n), `participation`, `truncate` and
    `describe`.
    """

    if TYPE_CHECKING:  # fields of some subclasses, properties of others

        @property
        def examples(self) -> int | None:
            """N: units that batches are drawn from; None where that is not known."""

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
    def formed_outside(self) -> bool:
        """Whether somebody else forms the batches and promises the participation; else the library does."""
        return False

    @property
    def moves_others(self) -> bool:
        """Whether adding or removing one unit may move others to other batches; so unless a scheme denies it.

        Where it does, add-or-remove adjacency is covered by no theorem.
        """
        return True

    @property
    def public_groups(self) -> int:
        """Groups that the proof of amplification gives away: step t draws from group t mod public_groups.

        1 where every step draws from all units.
        """
        return 1

    def expected_size(self, t: int) -> int | float:
        """Units that batch t holds on average, 0 <= t < n: B, unless a scheme has several rates."""
        return self.batch_size

    @property
    def expected_batch_size(self) -> int | float:
        """The constant divisor of every noisy sum: B, whatever a batch happens to hold."""
        return self.batch_size

    def truncate(self, steps: int) -> Self:
        """The scheme of the first `steps` steps, 1 <= steps <= n."""
        return replace(self, steps=within(self, steps))  # type: ignore[type-var]

    def describe(self, unit: str = "example") -> str:
        """One line for a privacy statement about one `unit`."""
        raise NotImplementedError  # pragma: no cover - abstract


class SecretSampling(Sampling):
    """Base of schemes that draw from N known examples: which batches an example joined is kept secret."""

    @property
    def amplified(self) -> bool:
        return True

    @property
    def moves_others(self) -> bool:
        return False

    def _make_whole(self, *names: str) -> None:
        """Refuse what is no whole number >= 1."""
        for name in names:
            object.__setattr__(self, name, positive_int(name, getattr(self, name)))

    def _check_batch_size(self) -> None:
        positive_float("batch_size", self.batch_size)
        object.__setattr__(self, "batch_size", plain(self.batch_size))

    def _at_most_examples(self, name: str, steps: int) -> None:
        """Refuse as many batches, of which an example joins one, as leave some without any."""
        if self.examples is not None and steps > self.examples:
            raise ValueError(
                f"{name}={steps} exceeds examples={self.examples}: a batch would hold less than one example"
                f" on average. Take at most {self.examples} {'steps' if name == 'period' else name}."
            )


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


def counted(number: int, noun: str) -> str:
    """So many of `noun`: 1 round, 2 rounds."""
    return f"{number} {noun if number == 1 else plural(noun)}"


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
