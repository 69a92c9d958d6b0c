"""One amplified mechanism as a part of a composition: its epsilon alone, and a pair that can be composed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anechoic.accounting.loss_distributions import profile as profiles
from anechoic.accounting.loss_distributions.sampled_gaussian import (
    log_tail,
    loss_moments,
    sampled_gaussian_pld,
)

if TYPE_CHECKING:
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
