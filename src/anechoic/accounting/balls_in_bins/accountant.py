"""The accountant of balls-in-bins sampling."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from anechoic.accounting.accountant import (
    Accountant,
    Accounting,
    MonteCarloAccountant,
    accountant_of,
    refuse_replacing,
)
from anechoic.accounting.balls_in_bins.bound import BinsBound, bins_bound, check_nonnegative
from anechoic.accounting.balls_in_bins.mixture import Mixture
from anechoic.accounting.loss_distributions.importance_sampling import TiltedPair
from anechoic.accounting.loss_distributions.profile import Bounds
from anechoic.accounting.monte_carlo.verified import Verified
from anechoic.sampling import BallsInBins
from anechoic.statement.theorem import Theorem
from anechoic.strategies.base import Strategy


@dataclass(frozen=True)
class BallsInBinsAccountant(MonteCarloAccountant):
    """Balls in bins with any entrywise non-negative C (arXiv 2410.06266, Lemma 3.2)."""

    theorem: ClassVar[Theorem] = Theorem(
        "Balls in bins (arXiv 2410.06266, Lemma 3.2)", "amplification.md#balls-in-bins"
    )

    sampling: BallsInBins

    def __post_init__(self) -> None:
        refuse_replacing(self.sampling, self.adjacency)
        check_nonnegative(self.strategy, "balls-in-bins sampling")

    @property
    def deterministic(self) -> BinsBound:
        """The bound without sampling error."""
        return bins_bound(self.strategy, self.sampling.bins)

    @cached_property
    def pair(self) -> TiltedPair:
        return Mixture(self.deterministic.gram)

    @property
    def taking_part(self) -> float:
        return min(1.0, self.strategy.n / self.sampling.bins)

    def amplified_bound(self, delta: float, std: float) -> float:
        return self.deterministic.epsilon(delta, std)

    def profile_bounds(self, delta: float, std: float) -> list[Bounds]:
        return self.deterministic.profile_bounds(delta, std)

    def amplified_noise_std(self, epsilon: float, delta: float) -> float:
        if isinstance(self.accounting, Verified):
            std = self._noise_std_to_verify(epsilon, delta)
            if self.bound(delta, std) > epsilon:
                return std
        return self.deterministic.noise_std(epsilon, delta)

    def describe(self) -> str:
        theorem = (
            "(epsilon, delta)-DP, amplified by bins that are drawn in secret. Theorem: arXiv 2410.06266,"
            " Lemma 3.2, for entrywise non-negative C, larger of both directions"
        )
        if isinstance(self.accounting, Verified):
            return f"{theorem}. Evaluated by {self.accounting.describe()}"
        return (
            f"{theorem}. Evaluated without sampling error, as the least of three upper bounds: one-of-k"
            " random allocation within classes of bins, Gauss-Markov chains that dominate the bins, and"
            " Renyi divergences"
        )


@accountant_of.register
def _(sampling: BallsInBins, strategy: Strategy, adjacency: str, accounting: Accounting) -> Accountant:
    return BallsInBinsAccountant(strategy, sampling, adjacency, accounting)
