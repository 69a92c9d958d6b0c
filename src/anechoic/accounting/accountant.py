"""One accountant for each amplified sampling scheme: conditions, epsilon from noise, noise from epsilon.

An accountant is chosen by the scheme (`accountant_of`), refuses at construction what its theorem does not
cover, and names the theorem in `describe`. The noise std is in clip norms throughout.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property, singledispatch
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from anechoic.accounting.gaussian import UNSAMPLED_FROM, gaussian_epsilon, gaussian_mu
from anechoic.accounting.loss_distributions.importance_sampling import POINT, TiltedPair
from anechoic.accounting.loss_distributions.profile import Bounds
from anechoic.accounting.monte_carlo.verified import ATTEMPTS, Verified
from anechoic.accounting.terms import Term, points_of, term_of_bounds
from anechoic.errors import UnsupportedError
from anechoic.sampling.base import Sampling
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.statement.theorem import Theorem
from anechoic.strategies.base import Strategy

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

Accounting = Verified | Literal["deterministic"]

LARGER = "the larger of both directions (with the unit against without, and the reverse)"
CLOSED_FORM = "closed form of the Gaussian mechanism, in logarithms, rounded up; both directions are equal"
CERTAIN = "no sampling error"

_SAMPLED_POINTS = (1.0, 0.3, 0.1)  # parts of delta at which Monte Carlo is asked


@dataclass(frozen=True)
class Accountant(ABC):
    """Base. Subclasses check their conditions in `__post_init__`, and say what the draw amplifies.

    What is stated is never more than without amplification, and 0 where delta is at least the probability of
    taking part at all: then the two laws have that much in common.

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
    def amplified_bound(self, delta: float, std: float) -> float:
        """An upper bound on epsilon by the theorem, without sampling error."""

    @abstractmethod
    def amplified_noise_std(self, epsilon: float, delta: float) -> float:
        """About the least noise std at which the theorem shows `epsilon`."""

    @property
    def taking_part(self) -> float:
        """Probability that a unit takes part in any step, or more; 1 where none is known."""
        return 1.0

    @cached_property
    def unamplified(self) -> float:
        """mu such that the run at noise std 1 is mu-GDP, whatever is drawn."""
        length = sensitivity(self.strategy, self.sampling.participation).value
        return adjacency_factor(self.adjacency) * length

    def bound(self, delta: float, std: float) -> float:
        """An upper bound on epsilon without sampling error: the least that is proved."""
        if self.taking_part <= delta:
            return 0.0
        plain = gaussian_epsilon(delta, self.unamplified / std)
        if plain == 0.0:
            return 0.0
        if (delta, std) not in self._bounds:  # a statement asks for several, in each of its formats
            self._bounds[delta, std] = self.amplified_bound(delta, std)
        return min(plain, self._bounds[delta, std])

    @cached_property
    def _bounds(self) -> dict[tuple[float, float], float]:
        return {}

    def noise_std(self, epsilon: float, delta: float) -> float:
        """About the least noise std at which `epsilon` is at most `epsilon`.

        Raises:
            ValueError: if delta is at least the probability of taking part at all.
        """
        refuse_any_noise(delta, self.taking_part)
        plain = self.unamplified / gaussian_mu(epsilon, delta)
        return plain if epsilon >= UNSAMPLED_FROM else min(plain, self.amplified_noise_std(epsilon, delta))

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

    @property
    def hides(self) -> bool:
        """Whether the draw hides anything: it does not where everybody is in every batch."""
        return True

    def dp_event(self, std: float) -> DpEvent:
        """Return the run as an event of `dp_accounting`.

        Raises:
            UnsupportedError: where it has none.
        """
        raise UnsupportedError(
            f"dp_accounting has no event for {type(self.sampling).__name__} sampling. Compose here, by"
            " anechoic.compose; or compose GaussianDpEvent(1 / mechanism.gdp()), which is not amplified."
        )

    def term(self, delta: float, std: float, mu: float, *, verified: bool = True) -> Term:
        """The run as a part of a composition; where nothing more is known, by `bound` at several deltas.

        Args:
            delta: its part of the delta of the composition.
            std: of the noise.
            mu: such that the run is mu-GDP.
            verified: whether what Monte Carlo verified may be used; the composition pays for its failure.
        """
        points = points_of(lambda each: self.bound(each, std), delta)
        return term_of_bounds([], points, self.bound(delta, std), delta, mu)


def adjacency_factor(adjacency: str) -> float:
    """How far one unit moves its contributions, in clip norms."""
    # replacing moves each contribution from one point of the unit ball to another: twice as far
    return 2.0 if adjacency == "replace_one" else 1.0


def refuse_any_noise(delta: float, taking_part: float) -> None:
    """Refuse a delta at which nothing has to be hidden.

    Raises:
        ValueError: if it is at least the probability of taking part at all.
    """
    if taking_part <= delta:
        raise ValueError(
            f"delta={delta} is at least {taking_part:.12g}, the probability of taking part in any step: any"
            " noise would do, and the guarantee would say nothing. Choose a smaller delta."
        )


@singledispatch
def accountant_of(
    sampling: Sampling, strategy: Strategy, adjacency: str, accounting: Accounting
) -> Accountant | None:
    """Return the accountant of an amplified scheme; None for one that is not amplified.

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
class MonteCarloAccountant(Accountant):
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
            f"the bound fails with probability at most {failure!r}, a part of delta",
        )

    def epsilon(self, delta: float, std: float) -> float:
        least = self.bound(delta, std)
        if not isinstance(self.accounting, Verified) or self.accounting.failure >= delta:
            return least
        # samples would show no less, or that a single participation hides nothing
        if least == 0.0 or least >= UNSAMPLED_FROM * self.strategy.n:
            return least
        return min(least, *self.pair.epsilons([delta - self.accounting.failure], std, **self._draws))

    def profile_bounds(self, delta: float, std: float) -> list[Bounds] | None:
        """Bounds of the privacy profile without sampling error, sharp at `delta`; None for none known."""
        return None

    def term(self, delta: float, std: float, mu: float, *, verified: bool = True) -> Term:
        epsilon, profile_bounds = self.bound(delta, std), self.profile_bounds(delta, std)
        points = points_of(lambda each: self.bound(each, std), delta) if profile_bounds is None else []
        if verified and isinstance(self.accounting, Verified):
            shown = self._verified_points(self.accounting, delta, std)
            points += shown
            epsilon = min([epsilon, *(found for found, at in shown if at <= delta)])
        return term_of_bounds(profile_bounds or [], points, epsilon, delta, mu)

    def _verified_points(self, verified: Verified, delta: float, std: float) -> list[tuple[float, float]]:
        """(epsilon, delta) by Monte Carlo; all hold at once but for the failure probability of `verified`.

        Deltas are fixed before anything is drawn. Larger ones, which the other parts need, take fewer
        samples.
        """
        groups = [([delta * ratio for ratio in _SAMPLED_POINTS], verified.samples)]
        above = [0.1 / 3.0**place for place in range(40) if 0.1 / 3.0**place > 2.0 * delta]
        groups += [(above[i : i + 4], max(1000, verified.samples // 8)) for i in range(0, len(above), 4)]
        total, points = sum(len(deltas) for deltas, _ in groups), list[tuple[float, float]]()
        for deltas, samples in groups:
            failure = verified.failure / ATTEMPTS * len(deltas) / total
            found = self.pair.epsilons(deltas, std, samples=samples, failure=failure, seed=verified.seed)
            points += list(zip(found, deltas, strict=True))
        return points

    def plausible(self, epsilon: float, delta: float, std: float) -> bool:
        if not isinstance(self.accounting, Verified):
            return super().plausible(epsilon, delta, std)
        return self.pair.plausible(epsilon, delta, std, samples=POINT, seed=self.accounting.seed)

    @property
    def _record(self) -> Verified:
        if not isinstance(self.accounting, Verified):
            raise TypeError(f"accounting={self.accounting!r} draws no samples.")
        return self.accounting

    @property
    def _draws(self) -> dict[str, Any]:
        """What is drawn for one claim."""
        record = self._record
        return {"samples": record.samples, "failure": record.failure / ATTEMPTS, "seed": record.seed}

    def _noise_std_to_verify(self, epsilon: float, delta: float) -> float:
        record = self._record
        if record.failure >= delta:
            raise ValueError(
                f"failure={record.failure} must be below delta={delta}, of which it is a part: take delta /"
                " 100."
            )
        return self.pair.noise_std_to_verify(epsilon, delta - record.failure, **self._draws)


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
