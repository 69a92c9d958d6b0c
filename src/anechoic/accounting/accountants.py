"""One accountant for each amplified sampling scheme: conditions, epsilon from noise, noise from epsilon.

An accountant is chosen by the scheme (`accountant_of`), refuses at construction what its theorem does not
cover, and names the theorem in `describe`. The noise std is in clip norms throughout.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property, singledispatch
from typing import Literal

from anechoic._validate import Array
from anechoic.accounting.balls_in_bins import (
    Domination,
    best_bound,
    bins_gram,
    check_nonnegative,
    dominations,
    noise_std_of,
)
from anechoic.accounting.gaussian import gaussian_epsilon, gaussian_mu
from anechoic.accounting.min_sep_sampling import MinSepPair, check_bands
from anechoic.accounting.mixture import Mixture
from anechoic.accounting.poisson import poisson_epsilon, poisson_noise_multiplier
from anechoic.accounting.random_allocation import (
    random_allocation_epsilon,
    random_allocation_noise_multiplier,
)
from anechoic.accounting.tilted import POINT, TiltedPair
from anechoic.accounting.verified import ATTEMPTS, Verified
from anechoic.errors import UnsupportedError
from anechoic.sampling import BallsInBins, CyclicPoisson, MinSepSampling, Poisson, RandomAllocation, Sampling
from anechoic.strategies import Strategy

Accounting = Verified | Literal["deterministic"]


@dataclass(frozen=True)
class Accountant(ABC):
    """Base. Subclasses check their conditions in `__post_init__`.

    Args:
        strategy: C.
        sampling: an amplified scheme of as many steps.
        adjacency: "zero_out", "replace_one" or "add_or_remove".
        accounting: "deterministic", or a `Verified` where Monte Carlo is offered.
    """

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
class PoissonAccountant(Accountant):
    """(Cyclic) Poisson sampling of a strategy with at most as many bands as groups (Theorem 3.21)."""

    sampling: Poisson | CyclicPoisson

    def __post_init__(self) -> None:
        only_deterministic(self.sampling, self.accounting)
        if self.strategy.structure.bands > self.sampling.groups:
            raise UnsupportedError(
                f"bands={self.strategy.structure.bands} exceeds groups={self.sampling.groups}: amplification"
                " by (cyclic) Poisson sampling is proved only for at most as many bands as groups (Theorem"
                " 3.21). Use fewer bands, more groups, BallsInBins, or FixedOrder."
            )

    @property
    def _compositions(self) -> int:
        return -(-self.strategy.n // self.sampling.groups)

    def bound(self, delta: float, std: float) -> float:
        sigma = std / self.strategy.largest_column_norm()
        rate = self.sampling.rate
        return poisson_epsilon(delta, sigma, rate, self._compositions, adjacency=self.adjacency)

    def noise_std(self, epsilon: float, delta: float) -> float:
        sigma = poisson_noise_multiplier(
            epsilon, delta, self.sampling.rate, self._compositions, adjacency=self.adjacency
        )
        return sigma * self.strategy.largest_column_norm()

    def describe(self) -> str:
        return (
            "(epsilon, delta)-DP, amplified by secret Poisson sampling: monograph, Theorem 3.21, evaluated as"
            " a pessimistic privacy loss distribution by dp-accounting"
        )


@dataclass(frozen=True)
class SampledAccountant(Accountant):
    """Base of those that offer Monte Carlo: a mixture of Gaussians against one."""

    @property
    @abstractmethod
    def pair(self) -> TiltedPair:
        """What dominates the run."""

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


@dataclass(frozen=True)
class BallsInBinsAccountant(SampledAccountant):
    """Balls in bins with any entrywise non-negative C (arXiv 2410.06266, Lemma 3.2)."""

    sampling: BallsInBins

    def __post_init__(self) -> None:
        _refuse_replacing(self.sampling, self.adjacency)
        check_nonnegative(self.strategy, "balls-in-bins sampling")

    @cached_property
    def _gram(self) -> Array:
        return bins_gram(self.strategy, self.sampling.bins)

    @cached_property
    def _candidates(self) -> list[Domination]:
        return dominations(self._gram)

    @cached_property
    def pair(self) -> TiltedPair:
        return Mixture(self._gram)

    def bound(self, delta: float, std: float) -> float:
        return best_bound(self._candidates, delta, std)[0]

    def noise_std(self, epsilon: float, delta: float) -> float:
        std = noise_std_of(self._candidates, epsilon, delta)
        if isinstance(self.accounting, Verified):
            std = min(std, self._noise_std_to_verify(epsilon, delta))
        return std

    def describe(self) -> str:
        theorem = (
            "(epsilon, delta)-DP, amplified by the secret bins: arXiv 2410.06266, Lemma 3.2, for entrywise"
            " non-negative C, larger of both directions"
        )
        if isinstance(self.accounting, Verified):
            return f"{theorem}, evaluated by {self.accounting.describe()}"
        return (
            f"{theorem}, bounded without sampling error by one-of-k random allocation within classes of bins"
        )


@dataclass(frozen=True)
class MinSepAccountant(SampledAccountant):
    """b-min-sep sampling of a non-negative strategy with at most b bands (arXiv 2602.09338)."""

    sampling: MinSepSampling

    def __post_init__(self) -> None:
        _refuse_replacing(self.sampling, self.adjacency)
        check_bands(self.strategy, self.sampling.separation)
        if not isinstance(self.accounting, Verified):
            raise UnsupportedError(
                f"accounting={self.accounting!r} under MinSepSampling: no amplified bound without sampling"
                " error is known. Use accounting='verified' in calibrate, a Verified in Mechanism, or"
                " BallsInBins."
            )

    @cached_property
    def pair(self) -> TiltedPair:
        return MinSepPair(self.strategy, self.sampling)

    def bound(self, delta: float, std: float) -> float:
        return gaussian_epsilon(delta, math.sqrt(self.pair.largest) / std)

    def noise_std(self, epsilon: float, delta: float) -> float:
        unsampled = math.sqrt(self.pair.largest) / gaussian_mu(epsilon, delta)
        return min(unsampled, self._noise_std_to_verify(epsilon, delta))

    def describe(self) -> str:
        return (
            "(epsilon, delta)-DP, amplified by secret min-sep sampling: arXiv 2602.09338, for entrywise"
            " non-negative C of at most as many bands as the separation, larger of both directions,"
            f" evaluated by {self._record.describe()}"
        )


@dataclass(frozen=True)
class RandomAllocationAccountant(Accountant):
    """Random allocation, redrawn every epoch, with independent noise (arXiv 2502.08202)."""

    sampling: RandomAllocation

    def __post_init__(self) -> None:
        only_deterministic(self.sampling, self.accounting)
        _refuse_replacing(self.sampling, self.adjacency)
        if self.strategy.structure.bands > 1:
            raise UnsupportedError(
                f"bands={self.strategy.structure.bands} under RandomAllocation: its amplification is computed"
                " for independent noise (one band) only, since two participations of an example may be"
                " neighbours. Use Identity, or BallsInBins."
            )

    def bound(self, delta: float, std: float) -> float:
        sigma = std / self.strategy.largest_column_norm()
        return random_allocation_epsilon(delta, sigma, self.sampling.period, self.sampling.steps)

    def noise_std(self, epsilon: float, delta: float) -> float:
        sigma = random_allocation_noise_multiplier(epsilon, delta, self.sampling.period, self.sampling.steps)
        return sigma * self.strategy.largest_column_norm()

    def describe(self) -> str:
        return (
            "(epsilon, delta)-DP, amplified by the secret allocation: arXiv 2502.08202, its likelihood ratio"
            " summed on a grid in convex order, both directions"
        )


@accountant_of.register(Poisson)
@accountant_of.register(CyclicPoisson)
def _(
    sampling: Poisson | CyclicPoisson, strategy: Strategy, adjacency: str, accounting: Accounting
) -> Accountant:
    return PoissonAccountant(strategy, sampling, adjacency, accounting)


@accountant_of.register
def _(sampling: BallsInBins, strategy: Strategy, adjacency: str, accounting: Accounting) -> Accountant:
    return BallsInBinsAccountant(strategy, sampling, adjacency, accounting)


@accountant_of.register
def _(sampling: MinSepSampling, strategy: Strategy, adjacency: str, accounting: Accounting) -> Accountant:
    return MinSepAccountant(strategy, sampling, adjacency, accounting)


@accountant_of.register
def _(sampling: RandomAllocation, strategy: Strategy, adjacency: str, accounting: Accounting) -> Accountant:
    return RandomAllocationAccountant(strategy, sampling, adjacency, accounting)


def _refuse_replacing(sampling: Sampling, adjacency: str) -> None:
    if adjacency == "replace_one":
        raise UnsupportedError(
            f"adjacency='replace_one' under {type(sampling).__name__}: the reduction to a mixture of"
            " Gaussians is proved for an example against none. Use 'zero_out' or 'add_or_remove', or"
            " CyclicPoisson."
        )
