"""Law of participation of (cyclic) Poisson sampling.

A unit joins each step of its group with probability q. With e_t = (2 y_t - ||C[:, t]||^2) / (2 s^2) and
orthogonal columns the log-likelihood ratio is the sum over the steps of the group of
log(1 - q + q exp(e_t)).
"""

from __future__ import annotations

import numpy as np

from anechoic._validate import Array
from anechoic.audit.participation_law import (
    Counts,
    Hazards,
    Mask,
    ParticipationLaw,
    StrategyColumns,
    law_of,
    log_mix,
)
from anechoic.sampling import CyclicPoisson, Poisson


@law_of.register(Poisson)
@law_of.register(CyclicPoisson)
class PoissonLaw(ParticipationLaw):
    """A coin at every step of the group."""

    sampling: Poisson | CyclicPoisson

    @property
    def rate(self) -> float:
        return self.sampling.rate

    def hazard(self, past: Mask) -> tuple[Mask, float]:
        return np.ones(past.shape[1], bool), self.rate

    def counts(self, hazards: Hazards) -> Counts:
        counts, trials, _, names = super().counts(hazards)
        counts, trials = np.append(counts, counts.sum()), np.append(trials, trials.sum())
        return Counts(counts, trials, self.rate, [*names, "in all batches"])

    def log_ratio(self, columns: StrategyColumns, moved: Array) -> Array:
        columns.refuse_overlap(self.sampling)
        exponents = moved - columns.energy
        terms = log_mix(self.rate, np.zeros(exponents.shape), exponents)
        return np.asarray(np.where(columns.possible, terms, 0.0).sum(axis=0))
