"""The accountants of (cyclic) Poisson sampling, by Theorem 3.21, and of batches of a fixed size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from anechoic.accounting.accountant import (
    CERTAIN,
    CLOSED_FORM,
    LARGER,
    Accountant,
    Accounting,
    accountant_of,
    only_deterministic,
)
from anechoic.accounting.gaussian import UNSAMPLED_FROM, gaussian_event
from anechoic.accounting.poisson.epsilon import (
    INTERVALS,
    least_noise_from,
    noise_guess,
    sampled_epsilon,
    taking_part,
)
from anechoic.accounting.poisson.search import poisson_noise_multiplier
from anechoic.accounting.terms import SampledGaussianTerm, Term
from anechoic.errors import UnsupportedError
from anechoic.sampling import CyclicPoisson, FixedSize, Poisson
from anechoic.statement.theorem import Theorem
from anechoic.strategies.base import Strategy

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent


@dataclass(frozen=True)
class PoissonAccountant(Accountant):
    """(Cyclic) Poisson sampling of a strategy with at most as many bands as groups (Theorem 3.21)."""

    theorem: ClassVar[Theorem] = Theorem(
        "Cyclic Poisson sampling (monograph, Theorem 3.21)", "amplification.md#poisson-sampling"
    )

    sampling: Poisson | CyclicPoisson

    def __post_init__(self) -> None:
        only_deterministic(self.sampling, self.accounting)
        bands, groups = self.strategy.structure.bands, self.sampling.groups
        if bands > groups:
            raise UnsupportedError(
                f"{self.strategy.describe()} has bands={bands}, which exceeds groups={groups} of"
                f" {type(self.sampling).__name__}: Theorem 3.21 is proved for no more bands than groups."
                f" Use a strategy of at most {groups} bands, CyclicPoisson with groups={bands} or more,"
                " BallsInBins (any non-negative strategy), or FixedOrder (without amplification)."
            )

    @property
    def _compositions(self) -> int:
        return -(-self.strategy.n // self.sampling.public_groups)

    @property
    def _law(self) -> str:
        """The adjacency, as `sampled_gaussian_losses` names it."""
        return self.adjacency

    @property
    def taking_part(self) -> float:
        return taking_part(self.sampling.rate, self._compositions)

    def amplified_bound(self, delta: float, std: float) -> float:
        sigma = std / self.strategy.largest_column_norm()
        rate = self.sampling.rate
        return sampled_epsilon(delta, sigma, rate, self._compositions, adjacency=self._law)

    @property
    def hides(self) -> bool:
        return self.sampling.rate < 1.0

    def dp_event(self, std: float) -> DpEvent:
        sigma = std / self.strategy.largest_column_norm()
        return gaussian_event(sigma, rate=self.sampling.rate, compositions=self._compositions)

    def term(self, delta: float, std: float, mu: float, *, verified: bool = True) -> Term:
        sigma, rate = std / self.strategy.largest_column_norm(), self.sampling.rate
        epsilon, count = self.bound(delta, std), self._compositions
        return SampledGaussianTerm(epsilon, sigma, rate, self._law, count, delta)

    def amplified_noise_std(self, epsilon: float, delta: float) -> float:
        sigma = poisson_noise_multiplier(
            epsilon, delta, self.sampling.rate, self._compositions, adjacency=self.adjacency
        )
        return sigma * self.strategy.largest_column_norm()

    def evaluation(self, epsilon: float) -> tuple[str, str]:
        if epsilon >= UNSAMPLED_FROM or self.sampling.rate == 1.0:
            return CLOSED_FORM, CERTAIN
        width = next(interval for interval, enough in INTERVALS if epsilon >= enough)
        return f"{LARGER}; privacy losses on a dominating grid of width {width:g} or finer", CERTAIN

    def describe(self) -> str:
        return (
            "(epsilon, delta)-DP, amplified by secret Poisson sampling: monograph, Theorem 3.21, evaluated as"
            " a pessimistic privacy loss distribution"
        )


@accountant_of.register(Poisson)
@accountant_of.register(CyclicPoisson)
def _(
    sampling: Poisson | CyclicPoisson, strategy: Strategy, adjacency: str, accounting: Accounting
) -> Accountant:
    return PoissonAccountant(strategy, sampling, adjacency, accounting)


@dataclass(frozen=True)
class FixedSizeAccountant(PoissonAccountant):
    """Batches of a fixed size with independent noise: who is not drawn leaves the place to another unit."""

    theorem: ClassVar[Theorem] = Theorem(
        "Batches of a fixed size (joint convexity and Kahane's inequality)",
        "amplification.md#batches-of-a-fixed-size",
    )

    sampling: FixedSize  # type: ignore[assignment]

    def __post_init__(self) -> None:
        only_deterministic(self.sampling, self.accounting)
        if self.strategy.structure.bands > 1:
            raise UnsupportedError(
                f"bands={self.strategy.structure.bands} under FixedSize: its amplification is proved for"
                " independent noise (one band) only. Use Identity; or, for correlated noise, BallsInBins or"
                " CyclicPoisson."
            )

    @property
    def _law(self) -> str:
        return f"{self.adjacency}_fixed_size"

    def dp_event(self, std: float) -> DpEvent:
        from dp_accounting import dp_event

        # the sensitivity of this event is that of replacing
        gaussian = gaussian_event(std / self.strategy.largest_column_norm() / 2.0)
        size = self.sampling.examples, self.sampling.batch_size
        one = dp_event.SampledWithoutReplacementDpEvent(*size, gaussian)
        return dp_event.SelfComposedDpEvent(one, self._compositions)

    def amplified_noise_std(self, epsilon: float, delta: float) -> float:
        asked = epsilon, delta, self.sampling.rate, self._compositions
        guess = noise_guess(*asked, adjacency=self._law)
        return least_noise_from(guess, *asked, adjacency=self._law) * self.strategy.largest_column_norm()

    def describe(self) -> str:
        return (
            "(epsilon, delta)-DP, amplified by secret batches of a fixed size, evaluated as a pessimistic"
            " privacy loss distribution"
        )


@accountant_of.register
def _(sampling: FixedSize, strategy: Strategy, adjacency: str, accounting: Accounting) -> Accountant:
    return FixedSizeAccountant(strategy, sampling, adjacency, accounting)
