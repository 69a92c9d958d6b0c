"""One accountant for each amplified sampling scheme: conditions, epsilon from noise, noise from epsilon.

An accountant is chosen by the scheme (`accountant_of`), refuses at construction what its theorem does not
cover, and names the theorem in `describe`. The noise std is in clip norms throughout.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import singledispatch
from typing import ClassVar, Literal

from anechoic.accounting.laws.tilted import POINT, TiltedPair
from anechoic.accounting.monte_carlo.verified import ATTEMPTS, Verified
from anechoic.errors import UnsupportedError
from anechoic.sampling import Sampling
from anechoic.statement.theorem import Theorem
from anechoic.strategies import Strategy

Accounting = Verified | Literal["deterministic"]

LARGER = "the larger of both directions (with the unit against without, and the reverse)"
CLOSED_FORM = "closed form of the Gaussian mechanism, in logarithms, rounded up; both directions are equal"
CERTAIN = "no sampling error"


@dataclass(frozen=True)
class Accountant(ABC):
    """Base. Subclasses check their conditions in `__post_init__`.

    Args:
        strategy: C.
        sampling: an amplified scheme of as many steps.
        adjacency: "zero_out", "replace_one" or "add_or_remove".
        accounting: "deterministic", or a `Verified` where Monte Carlo is offered.

    Attributes:
        theorem: what proves `epsilon`, with the page of its proof; every accountant states its own.
    """

    theorem: ClassVar[Theorem]

    strategy: Strategy
    sampling: Sampling
    adjacency: str
    accounting: Accounting

    @abstractmethod
    def bound(self, delta: float, std: float) -> float:
        """An upper bound on epsilon without sampling error."""

    @abstractmethod
    def noise_std(self, epsilon: float, delta: float) -> float:
        """About the least noise std at which `epsilon` is at most `epsilon`."""

    @abstractmethod
    def describe(self) -> str:
        """The theorem, and how it is evaluated."""

    def evaluation(self, epsilon: float) -> tuple[str, str]:
        """How `epsilon` was computed, and what may fail, as two sentences for a statement."""
        return f"{LARGER}; what is discretised is rounded towards privacy", CERTAIN

    def epsilon(self, delta: float, std: float) -> float:
        """An upper bound on epsilon: by the accounting that was asked for, and never above `bound`."""
        return self.bound(delta, std)

    def plausible(self, epsilon: float, delta: float, std: float) -> bool:
        """Whether a stated epsilon may be right, by a check that is cheap; no guarantee."""
        return epsilon >= self.epsilon(delta, std) * (1 - 1e-6)


@singledispatch
def accountant_of(
    sampling: Sampling, strategy: Strategy, adjacency: str, accounting: Accounting
) -> Accountant | None:
    """The accountant of an amplified scheme; None for one that is not amplified.

    Raises:
        ValueError: if the accounting is not offered for this scheme.
        UnsupportedError: where no theorem covers the combination.
    """
    if sampling.amplified:
        raise UnsupportedError(f"{type(sampling).__name__} sampling has no accountant here.")
    only_deterministic(sampling, accounting)
    return None


def only_deterministic(sampling: Sampling, accounting: Accounting) -> None:
    """Refuse Monte Carlo where the bound is exact, or close to it.

    Raises:
        ValueError: naming the scheme.
    """
    if accounting != "deterministic":
        raise ValueError(
            f"accounting={accounting!r} under {type(sampling).__name__}: its accounting has no sampling"
            " error to begin with. Leave it 'deterministic'."
        )


@dataclass(frozen=True)
class SampledAccountant(Accountant):
    """Base of those that offer Monte Carlo: a mixture of Gaussians against one."""

    @property
    @abstractmethod
    def pair(self) -> TiltedPair:
        """What dominates the run."""

    def evaluation(self, epsilon: float) -> tuple[str, str]:
        if not isinstance(self.accounting, Verified):
            return super().evaluation(epsilon)
        failure = self.accounting.failure
        return (
            f"{LARGER}; importance sampling with a one-sided confidence bound, no discretisation",
            f"the bound fails with probability at most {failure!r}, which is a part of delta",
        )

    def epsilon(self, delta: float, std: float) -> float:
        least = self.bound(delta, std)
        if not isinstance(self.accounting, Verified) or self.accounting.failure >= delta:
            return least
        record = self.accounting
        found = self.pair.epsilon(
            delta - record.failure,
            std,
            samples=record.samples,
            failure=record.failure / ATTEMPTS,
            seed=record.seed,
        )
        return least if found is None else min(least, found.epsilon)

    def plausible(self, epsilon: float, delta: float, std: float) -> bool:
        if not isinstance(self.accounting, Verified):
            return super().plausible(epsilon, delta, std)
        return self.pair.plausible(epsilon, delta, std, samples=POINT, seed=self.accounting.seed)

    @property
    def _record(self) -> Verified:
        if not isinstance(self.accounting, Verified):
            raise TypeError(f"accounting={self.accounting!r} draws no samples.")
        return self.accounting

    def _noise_std_to_verify(self, epsilon: float, delta: float) -> float:
        record = self._record
        if record.failure >= delta:
            raise ValueError(
                f"failure={record.failure} must be below delta={delta}, of which it is a part: take delta /"
                " 100."
            )
        return self.pair.noise_std_to_verify(
            epsilon,
            delta - record.failure,
            samples=record.samples,
            failure=record.failure / ATTEMPTS,
            seed=record.seed,
        )


def refuse_replacing(sampling: Sampling, adjacency: str) -> None:
    """Refuse replace-one adjacency, which the reduction to a mixture does not cover.

    Raises:
        UnsupportedError: naming the scheme.
    """
    if adjacency == "replace_one":
        raise UnsupportedError(
            f"adjacency='replace_one' under {type(sampling).__name__}: the reduction to a mixture of"
            " Gaussians is proved for an example against none. Use 'zero_out' or 'add_or_remove', or"
            " CyclicPoisson."
        )
