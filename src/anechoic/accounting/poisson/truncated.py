"""(Cyclic) Poisson sampling whose batches are cut: a run that is not cut, and the probability that it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from anechoic.accounting.accountant import Accountant, Accounting, accountant_of, only_deterministic
from anechoic.sampling.poisson import Truncated, least_size
from anechoic.statement.theorem import Theorem
from anechoic.strategies.base import Strategy

#: Parts of delta that are left to the run that is not cut; the first that is enough is taken.
SHARES = (0.9999, 0.999, 0.99, 0.9, 0.5)


@dataclass(frozen=True)
class TruncatedAccountant(Accountant):
    """By coupling: with tau the probability that a batch is cut, delta grows by (1 + e^epsilon) tau.

    The bound without amplification holds too, since who is drawn and kept depends on no data.
    """

    theorem: ClassVar[Theorem] = Theorem("Poisson sampling whose batches are cut", "truncated-poisson.md")

    sampling: Truncated

    def __post_init__(self) -> None:
        only_deterministic(self.sampling, self.accounting)
        self._inner  # noqa: B018 - refuses what its theorem does not cover

    @cached_property
    def _inner(self) -> Accountant:
        """That of the run that is not cut."""
        found = accountant_of(self.sampling.inner, self.strategy, self.adjacency, self.accounting)
        if found is None:
            raise TypeError(f"{type(self.sampling.inner).__name__} sampling is not amplified.")
        return found

    @property
    def taking_part(self) -> float:
        return self._inner.taking_part

    @property
    def hides(self) -> bool:
        return self._inner.hides

    def _lost(self, epsilon: float) -> float:
        """What being cut adds to delta at `epsilon`."""
        if self.sampling.overflow == 0.0:
            return 0.0
        try:
            return self.sampling.overflow * (1 + math.exp(epsilon)) * (1 + 2.0**-50)
        except OverflowError:
            return math.inf

    def amplified_bound(self, delta: float, std: float) -> float:
        for share in SHARES:
            epsilon = self._inner.bound(share * delta, std)
            if self._lost(epsilon) <= (1 - share) * delta:
                return epsilon
        return math.inf

    def amplified_noise_std(self, epsilon: float, delta: float) -> float:
        for share in SHARES:
            if self._lost(epsilon) <= (1 - share) * delta:
                return self._inner.noise_std(epsilon, share * delta)
        enough = least_size(self.sampling.inner, (1 - SHARES[0]) * delta / (1 + math.exp(epsilon)))
        raise ValueError(
            f"max_batch_size={self.sampling.max_batch_size}: a batch is cut with probability up to"
            f" {self.sampling.overflow:.3g}, which adds {self._lost(epsilon):.3g} to delta={delta:g} at"
            f" epsilon={epsilon:g}. Take max_batch_size={enough}."
        )

    def evaluation(self, epsilon: float) -> tuple[str, str]:
        method, confidence = self._inner.evaluation(epsilon)
        return f"{method}; delta holds {self._lost(epsilon):.3g} for batches that are cut", confidence

    def describe(self) -> str:
        return (
            f"{self._inner.describe()}; for batches that are cut, delta + (1 + e^epsilon) P(a batch is cut)"
        )


@accountant_of.register
def _(sampling: Truncated, strategy: Strategy, adjacency: str, accounting: Accounting) -> Accountant:
    return TruncatedAccountant(strategy, sampling, adjacency, accounting)
