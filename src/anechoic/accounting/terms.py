"""Amplified mechanisms as parts of a composition: epsilon alone, and a pair to compose; epsilon of events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anechoic._validate import fraction, one_of
from anechoic.accounting.loss_distributions import profile as profiles
from anechoic.accounting.loss_distributions.sampled_gaussian import (
    log_tail,
    loss_moments,
    sampled_gaussian_pld,
)
from anechoic.errors import UnsupportedError

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

POINTS = 16  # deltas at which a guarantee is asked for where only (epsilon, delta) is known
TAIL = 1e-4  # part of delta that a profile may leave at infinity


@dataclass(frozen=True)
class Term(ABC):
    """Base.

    Attributes:
        epsilon: of the mechanism alone, at the part of delta that it was asked for.
    """

    epsilon: float

    @property
    @abstractmethod
    def reach(self) -> float:
        """Length of the interval of privacy losses that is kept."""

    @abstractmethod
    def pair(self, width: float) -> tuple[PrivacyLossDistribution, int]:
        """A dominating pair on a grid of privacy losses, and how often one run composes it."""


@dataclass(frozen=True)
class SampledGaussianTerm(Term):
    """Sampled Gaussians, which compose on any grid.

    Args:
        noise_multiplier: sigma > 0.
        rate: sampling probability, in (0, 1).
        adjacency: as in `sampled_gaussian_losses`.
        compositions: of one run, >= 1.
        delta: the part of that of the composition that `epsilon` is for.
    """

    noise_multiplier: float
    rate: float
    adjacency: str
    compositions: int
    delta: float

    @property
    def _tail(self) -> float:
        return log_tail(self.delta, self.compositions)

    @property
    def reach(self) -> float:
        return loss_moments(self.noise_multiplier, self.rate, self.adjacency, self._tail)[1]

    def pair(self, width: float) -> tuple[PrivacyLossDistribution, int]:
        one = sampled_gaussian_pld(self.noise_multiplier, self.rate, self.adjacency, width, self._tail)
        return one, self.compositions


@dataclass(frozen=True)
class ProfileTerm(Term):
    """A run that is known by upper bounds of its privacy profile."""

    profile: profiles.Profile

    @property
    def reach(self) -> float:
        return 2.0 * float(self.profile.epsilons[-1])

    def pair(self, width: float) -> tuple[PrivacyLossDistribution, int]:
        return self.profile.pld(width), 1


def term_of_bounds(
    bounds: list[profiles.Bounds], points: list[tuple[float, float]], epsilon: float, delta: float, mu: float
) -> ProfileTerm:
    """Return the term of a run with these `bounds` of its profile, (epsilon_i, delta_i)-DP at `points`.

    Args:
        epsilon: of the run alone at delta.
        delta: its part of that of the composition.
        mu: such that it is mu-GDP.
    """
    stepped, jumps = profiles.bound_of_points(points)
    every = [profiles.gaussian_bound(mu), *bounds, stepped]
    return ProfileTerm(epsilon, profiles.profile_of_bounds(every, epsilon, delta * TAIL, jumps))


def points_of(bound: Callable[[float], float], delta: float) -> list[tuple[float, float]]:
    """(epsilon, delta_i) at `POINTS` deltas from 0.3 down to far below `delta`, and at `delta` itself."""
    ratio = (0.3 / (delta * TAIL)) ** (1.0 / (POINTS - 1))
    deltas = [0.3 / ratio**place for place in range(POINTS)] + [delta]
    return [(bound(each), each) for each in deltas]


#: Our adjacency, and the relation of `dp_accounting` that it is.
RELATIONS = {
    "zero_out": "REPLACE_SPECIAL",
    "replace_one": "REPLACE_ONE",
    "add_or_remove": "ADD_OR_REMOVE_ONE",
}


def epsilon_of(event: DpEvent, delta: float, *, adjacency: str = "add_or_remove") -> float:
    """Bound epsilon of an event of `dp_accounting`, by its privacy loss distributions, rounded up.

    Args:
        event: of Gaussian, Laplace, sampled and composed mechanisms, as `Mechanism.dp_event` returns. In a
            `SampledWithoutReplacementDpEvent` noise is over how far replacing one record moves the sum, as
            `RdpAccountant` has it.
        delta: in (0, 1).
        adjacency: "zero_out", "replace_one" or "add_or_remove".

    Raises:
        ValueError: for an argument out of range.
        UnsupportedError: for an event of which no privacy loss distribution is known.

    Example:
        >>> import dp_accounting
        >>> from anechoic.accounting import epsilon_of
        >>> epsilon_of(dp_accounting.GaussianDpEvent(1.0), 1e-5) < 4.38
        True
    """
    from dp_accounting import GaussianDpEvent, NeighboringRelation, UnsupportedEventError
    from dp_accounting import SampledWithoutReplacementDpEvent as FixedSizeEvent
    from dp_accounting.pld import PLDAccountant

    class WithFixedSize(PLDAccountant):  # type: ignore[misc]
        def _maybe_compose(self, event: DpEvent, count: int, do_compose: bool) -> Any:
            fixed = isinstance(event, FixedSizeEvent) and isinstance(event.event, GaussianDpEvent)
            if not fixed or adjacency == "add_or_remove":
                return super()._maybe_compose(event, count, do_compose)
            sigma, rate = 2.0 * event.event.noise_multiplier, event.sample_size / event.source_dataset_size
            if not 0.0 < rate <= 1.0:
                raise ValueError(f"sample_size / source_dataset_size={rate} must be above 0 and at most 1.")
            if sigma == 0.0 or rate == 1.0:
                return super()._maybe_compose(GaussianDpEvent(sigma), count, do_compose)
            if do_compose:
                law, width = f"{adjacency}_fixed_size", self._value_discretization_interval
                found = sampled_gaussian_pld(sigma, rate, law, width).self_compose(count)
                self._pld = self._pld.compose(found)  # type: ignore[has-type]
            return None

    delta = fraction("delta", delta)
    relation = NeighboringRelation[RELATIONS[one_of("adjacency", adjacency, tuple(RELATIONS))]]
    try:
        return float(WithFixedSize(relation).compose(event).get_epsilon(delta))
    except UnsupportedEventError as error:
        raise UnsupportedError(
            f"no privacy loss distribution is known here: {error}; batches without replacement have one under"
            " adjacency='zero_out' and 'replace_one'."
        ) from error
