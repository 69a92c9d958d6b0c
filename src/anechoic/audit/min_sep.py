"""Law of participation of min-sep sampling.

A unit joins with probability p from b steps after its last participation on; and with p / (1 + (b - 1 - t) p)
at step t < b where it has joined none, which is the stationary start. With
e_t = (2 y_t - ||C[:, t]||^2) / (2 s^2) and orthogonal columns f_t = (1 - p) f_{t+1} + p exp(e_t) f_{t+b}, and
the log-likelihood ratio is the log of the stationary mean of f_0 … f_{b-1}.
"""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp

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
from anechoic.sampling import MinSepSampling


@law_of.register(MinSepSampling)
class MinSepLaw(ParticipationLaw):
    """A coin at every step from b steps after the last participation on."""

    sampling: MinSepSampling

    @property
    def rate(self) -> float:
        return self.sampling.rate

    @property
    def _weights(self) -> Array:
        """Of the steps that a unit has to wait at the start, shape (b,)."""
        weights = np.full(self.sampling.separation, self.rate)
        weights[0] = 1.0
        return np.asarray(weights / weights.sum())

    def hazard(self, past: Mask) -> tuple[Mask, float]:
        before = self.sampling.separation - 1  # steps that keep a unit out
        recent = past[max(0, len(past) - before) :]
        return np.asarray(~recent.any(axis=0)), self.rate / (1.0 + max(0, before - len(past)) * self.rate)

    def draw(self, possible: Mask, rng: np.random.Generator) -> Mask:
        n, m = possible.shape
        wait = np.asarray(rng.choice(self.sampling.separation, size=m, p=self._weights))
        drawn = np.zeros((n, m), bool)
        for row in drawn:
            row[:] = (wait == 0) & (rng.random(m) < self.rate)
            wait = np.where(row, self.sampling.separation - 1, np.maximum(wait - 1, 0))
        return drawn

    def counts(self, hazards: Hazards) -> Counts:
        n, m = hazards.part.shape
        share = self.rate / (1 + (self.sampling.separation - 1) * self.rate)
        return super().counts(hazards)._replace(trials=np.full(n, m), rate=share)

    def log_ratio(self, columns: StrategyColumns, moved: Array) -> Array:
        columns.refuse_overlap(self.sampling)
        n, separation = len(moved), self.sampling.separation
        exponents, log_f = moved - columns.energy, np.zeros((n + separation, moved.shape[1]))
        for t in range(n - 1, -1, -1):
            log_f[t] = log_mix(self.rate, log_f[t + 1], exponents[t] + log_f[t + separation])
        return np.asarray(logsumexp(log_f[:separation], b=self._weights[:, None], axis=0))
