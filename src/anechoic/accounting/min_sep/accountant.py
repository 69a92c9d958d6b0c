"""The accountant of min-sep sampling."""

from __future__ import annotations

import math
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
from anechoic.accounting.loss_distributions.importance_sampling import TiltedPair
from anechoic.accounting.min_sep.pair import MinSepPair, check_bands
from anechoic.accounting.monte_carlo.verified import Verified
from anechoic.errors import UnsupportedError
from anechoic.sampling import MinSepSampling
from anechoic.statement.theorem import Theorem
from anechoic.strategies.base import Strategy


@dataclass(frozen=True)
class MinSepAccountant(MonteCarloAccountant):
    """b-min-sep sampling of a non-negative strategy with at most b bands (arXiv 2602.09338)."""

    theorem: ClassVar[Theorem] = Theorem(
        "Min-sep sampling (arXiv 2602.09338)", "amplification.md#minimum-separation"
    )

    sampling: MinSepSampling

    def __post_init__(self) -> None:
        refuse_replacing(self.sampling, self.adjacency)
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

    @property
    def taking_part(self) -> float:
        p, b, n = self.sampling.rate, self.sampling.separation, self.strategy.n
        first = 1 + (b - 1) * p  # over the probability of being eligible at a step
        # eligible from the first step on, or after 1, …, b - 1 more
        absent = (1 - p) ** n + p * math.fsum((1 - p) ** max(0, n - free) for free in range(1, b))
        return min(1.0, max(0.0, 1.0 - absent / first) + 1e-12)

    def amplified_bound(self, delta: float, std: float) -> float:
        return math.inf  # samples alone show less than without amplification

    def amplified_noise_std(self, epsilon: float, delta: float) -> float:
        return self._noise_std_to_verify(epsilon, delta)

    def describe(self) -> str:
        return (
            "(epsilon, delta)-DP, amplified by secret min-sep sampling: arXiv 2602.09338, for entrywise"
            " non-negative C of at most as many bands as the separation, larger of both directions,"
            f" evaluated by {self._record.describe()}"
        )


@accountant_of.register
def _(sampling: MinSepSampling, strategy: Strategy, adjacency: str, accounting: Accounting) -> Accountant:
    return MinSepAccountant(strategy, sampling, adjacency, accounting)
