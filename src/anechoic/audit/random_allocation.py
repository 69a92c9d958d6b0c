"""Law of participation of random allocation.

In each epoch a unit joins with probability 1 / (b - place) where it has joined none of it. With
e_t = (2 y_t - ||C[:, t]||^2) / (2 s^2) and orthogonal columns the log-likelihood ratio is the sum over epochs
of log mean_t exp(e_t).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import logsumexp

from anechoic._validate import Array
from anechoic.audit.participation_law import Counts, Hazards, Mask, ParticipationLaw, StrategyColumns, law_of
from anechoic.sampling import RandomAllocation

#: Most differences of places in two epochs that are counted.
_MOST_LAGS = 2000


@law_of.register(RandomAllocation)
class AllocationLaw(ParticipationLaw):
    """One of the b steps of each epoch."""

    sampling: RandomAllocation

    def hazard(self, past: Mask) -> tuple[Mask, float]:
        place = len(past) % self.sampling.period
        return np.asarray(~past[len(past) - place :].any(axis=0)), 1.0 / (self.sampling.period - place)

    def draw(self, possible: Mask, rng: np.random.Generator) -> Mask:
        n, m = possible.shape
        period = self.sampling.period
        drawn = rng.integers(period, size=(-(-n // period), m))
        return np.asarray(np.arange(n)[:, None] % period == np.repeat(drawn, period, axis=0)[:n])

    def counts(self, hazards: Hazards) -> Counts:
        n, m = hazards.part.shape
        period, whole = self.sampling.period, n // self.sampling.period
        by_step = super().counts(hazards)
        counts, trials, names = by_step.counts.tolist(), [m] * n, by_step.names
        place = hazards.part[: whole * period].reshape(whole, period, m).argmax(axis=1)
        for apart in range(1, min(whole, _MOST_LAGS // period + 2)):
            moved = (place[apart:] - place[:-apart]) % period
            counts += np.bincount(moved.ravel(), minlength=period).tolist()
            trials += [moved.size] * period
            names += [f"{shift} places after that of {apart} epochs before" for shift in range(period)]
        return Counts(np.array(counts), np.array(trials), 1 / period, names)

    def log_ratio(self, columns: StrategyColumns, moved: Array) -> Array:
        columns.refuse_overlap(self.sampling)
        (n, m), period = moved.shape, self.sampling.period
        epochs = -(-n // period)
        padded = np.zeros((epochs * period, m))  # steps beyond n release nothing
        padded[:n] = moved - columns.energy
        whole = logsumexp(padded.reshape(epochs, period, m), axis=1) - math.log(period)
        return np.asarray(whole.sum(axis=0))
