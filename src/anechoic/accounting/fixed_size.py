"""The accountant of batches of a fixed size, drawn without replacement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from anechoic.accounting.accountant import Accountant, Accounting, accountant_of, only_deterministic
from anechoic.accounting.gaussian import gaussian_event
from anechoic.accounting.poisson.accountant import PoissonAccountant
from anechoic.accounting.poisson.epsilon import least_noise_from, noise_guess
from anechoic.errors import UnsupportedError
from anechoic.sampling import FixedSize
from anechoic.statement.theorem import Theorem
from anechoic.strategies.base import Strategy

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent


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
