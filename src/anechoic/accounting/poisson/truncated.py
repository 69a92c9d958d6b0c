"""(Cyclic) Poisson sampling whose batches are cut: by a run that is not cut, or step by step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from anechoic.accounting.accountant import Accountant, Accounting, accountant_of, only_deterministic
from anechoic.accounting.poisson.unlike import compose_sampled
from anechoic.accounting.search import least_noise
from anechoic.sampling.poisson import Truncated, binomial_tail, last_place, least_size
from anechoic.statement.theorem import Theorem
from anechoic.strategies.base import Strategy

#: Parts of delta that are left to the run that is not cut; the first that is enough is taken.
SHARES = (0.9999, 0.999, 0.99, 0.9, 0.5)
#: Part of delta for more steps with one place left than are counted.
RARE = 1e-3
#: A noise is good where its epsilon is as near as this to the one asked for.
_TIGHT = 8e-5


@dataclass(frozen=True)
class TruncatedAccountant(Accountant):
    """The least of three bounds.

    By coupling: with tau the probability that a batch is cut, delta grows by (1 + e^epsilon) tau. By places,
    where C has at most as many bands as there are groups: whoever knows the others knows in which steps they
    left one place; there a unit is drawn at a higher rate. Without amplification: who is drawn and kept
    depends on no data.
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
        return min(self._by_coupling(delta, std), self._by_places(delta, std))

    def _by_coupling(self, delta: float, std: float) -> float:
        for share in SHARES:
            epsilon = self._inner.bound(share * delta, std)
            if self._lost(epsilon) <= (1 - share) * delta:
                return epsilon
        return math.inf

    def _by_places(self, delta: float, std: float) -> float:
        """By composition: steps as they are without a cut, and a few in which one place is left."""
        scheme = self.sampling
        place = last_place(scheme.inner, scheme.max_batch_size)
        if place is None or self.strategy.structure.bands > scheme.groups:
            return math.inf
        weight, rate = place
        steps, sigma = -(-self.strategy.n // scheme.groups), std / self.strategy.largest_column_norm()
        few = next(j for j in range(steps + 1) if binomial_tail(steps, weight, j) <= RARE * delta)
        kinds = [(sigma, scheme.rate, steps - few), (sigma, rate, few)]
        counted = [kind for kind in kinds if kind[2]]
        return compose_sampled(counted, delta * (1 - RARE), adjacency=self.adjacency)

    def amplified_noise_std(self, epsilon: float, delta: float) -> float:
        if self._lost(epsilon) <= (1 - SHARES[1]) * delta:
            share = next(share for share in SHARES if self._lost(epsilon) <= (1 - share) * delta)
            return self._inner.noise_std(epsilon, share * delta)
        guess = self._inner.noise_std(epsilon, SHARES[-1] * delta)
        if self.amplified_bound(delta, 2 * guess) <= epsilon:
            return least_noise(lambda std: self.amplified_bound(delta, std), epsilon, guess, _TIGHT)
        enough = least_size(self.sampling.inner, (1 - SHARES[1]) * delta / (1 + math.exp(epsilon)))
        raise ValueError(
            f"max_batch_size={self.sampling.max_batch_size}: a batch is cut with probability up to"
            f" {self.sampling.overflow:.3g}, and twice the noise of a run that is not cut does not show"
            f" epsilon={epsilon:g} at delta={delta:g}. With max_batch_size={enough} next to no"
            " more is needed."
        )

    def evaluation(self, epsilon: float) -> tuple[str, str]:
        return self._inner.evaluation(epsilon)

    def describe(self) -> str:
        return f"{self._inner.describe()}; batches that are cut are paid for by a part of delta"


@accountant_of.register
def _(sampling: Truncated, strategy: Strategy, adjacency: str, accounting: Accounting) -> Accountant:
    return TruncatedAccountant(strategy, sampling, adjacency, accounting)
