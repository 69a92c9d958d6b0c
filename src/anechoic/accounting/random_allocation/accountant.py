"""The accountant of random allocation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from anechoic.accounting.accountant import (
    Accountant,
    Accounting,
    accountant_of,
    only_deterministic,
    refuse_replacing,
)
from anechoic.accounting.loss_distributions.likelihood_ratio import tail_of
from anechoic.accounting.loss_distributions.profile import Bounds
from anechoic.accounting.random_allocation.epsilon import (
    LEAST_NOISE,
    allocation_ratio,
    random_allocation_epsilon,
    random_allocation_noise_multiplier,
)
from anechoic.accounting.terms import Term, term_of_bounds
from anechoic.errors import UnsupportedError
from anechoic.sampling import RandomAllocation
from anechoic.statement.theorem import Theorem
from anechoic.strategies.base import Strategy


@dataclass(frozen=True)
class RandomAllocationAccountant(Accountant):
    """Random allocation, redrawn every epoch, with independent noise (arXiv 2502.08202)."""

    theorem: ClassVar[Theorem] = Theorem(
        "Random allocation (arXiv 2502.08202)", "amplification.md#random-allocation"
    )

    sampling: RandomAllocation

    def __post_init__(self) -> None:
        only_deterministic(self.sampling, self.accounting)
        refuse_replacing(self.sampling, self.adjacency)
        if self.strategy.structure.bands > 1:
            raise UnsupportedError(
                f"bands={self.strategy.structure.bands} under RandomAllocation: its amplification is computed"
                " for independent noise (one band) only, since two participations of an example may be"
                " neighbours. Use Identity, or BallsInBins."
            )

    @property
    def taking_part(self) -> float:
        return min(1.0, self.sampling.steps / self.sampling.period)

    def amplified_bound(self, delta: float, std: float) -> float:
        sigma = std / self.strategy.largest_column_norm()
        return random_allocation_epsilon(delta, sigma, self.sampling.period, self.sampling.steps)

    def term(self, delta: float, std: float, mu: float, *, verified: bool = True) -> Term:
        sigma, period = std / self.strategy.largest_column_norm(), self.sampling.period
        bounds: list[Bounds] = []
        if period > 1 and sigma >= LEAST_NOISE:
            ratio = allocation_ratio(sigma, period, self.sampling.steps, tail_of(delta))
            bounds = [lambda epsilon: (ratio.remove(epsilon), ratio.add(epsilon))]
        return term_of_bounds(bounds, [], self.bound(delta, std), delta, mu)

    def amplified_noise_std(self, epsilon: float, delta: float) -> float:
        sigma = random_allocation_noise_multiplier(epsilon, delta, self.sampling.period, self.sampling.steps)
        return sigma * self.strategy.largest_column_norm()

    def describe(self) -> str:
        return (
            "(epsilon, delta)-DP, amplified by the secret allocation: arXiv 2502.08202, its likelihood ratio"
            " summed on a grid in convex order, both directions"
        )


@accountant_of.register
def _(sampling: RandomAllocation, strategy: Strategy, adjacency: str, accounting: Accounting) -> Accountant:
    return RandomAllocationAccountant(strategy, sampling, adjacency, accounting)
