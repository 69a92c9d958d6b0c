"""The accountant of (cyclic) Poisson sampling."""

from __future__ import annotations

from dataclasses import dataclass

from anechoic.accounting.accountants.base import Accountant, Accounting, accountant_of, only_deterministic
from anechoic.accounting.poisson import poisson_epsilon, poisson_noise_multiplier
from anechoic.errors import UnsupportedError
from anechoic.sampling import CyclicPoisson, Poisson
from anechoic.strategies import Strategy


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


@accountant_of.register(Poisson)
@accountant_of.register(CyclicPoisson)
def _(
    sampling: Poisson | CyclicPoisson, strategy: Strategy, adjacency: str, accounting: Accounting
) -> Accountant:
    return PoissonAccountant(strategy, sampling, adjacency, accounting)
