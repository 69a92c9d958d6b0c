"""Law of participation of balls in bins.

Of b bins a unit joins step t < b of the first pass with probability 1 / (b - t) where it has joined none; its
bin is known then. Whatever C, L = log mean_i exp((2 <m_i, Y g> - ||m_i||^2) / (2 s^2)), with m_i the sum of
bin i's columns.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import logsumexp

from anechoic._validate import Array
from anechoic.audit.participation_law import Counts, Hazards, Mask, ParticipationLaw, StrategyColumns, law_of
from anechoic.sampling import BallsInBins


@law_of.register(BallsInBins)
class BinsLaw(ParticipationLaw):
    """One of b bins for the whole run."""

    sampling: BallsInBins

    def hazard(self, past: Mask) -> tuple[Mask, float]:
        left = self.sampling.bins - len(past)
        if left > 0:
            return np.asarray(~past.any(axis=0)), 1.0 / left
        return past[-self.sampling.bins], 1.0  # the bin comes again

    def draw(self, possible: Mask, rng: np.random.Generator) -> Mask:
        n, m = possible.shape
        bins = self.sampling.bins
        return np.asarray(np.arange(n)[:, None] % bins == rng.integers(bins, size=m))

    def counts(self, hazards: Hazards) -> Counts:
        n, m = hazards.part.shape
        shown = hazards.part[: self.sampling.bins].sum(axis=1)
        names = [f"in bin {i}" for i in range(n)]
        return Counts(shown, np.full(len(shown), m), 1 / self.sampling.bins, names)

    def log_ratio(self, columns: StrategyColumns, moved: Array) -> Array:
        n, bins = len(moved), self.sampling.bins
        steps_of = (np.arange(n)[:, None] % bins == np.arange(bins)).astype(np.float64)
        energy = np.square(columns.strategy.multiply(steps_of)).sum(axis=0)[:, None] / (2 * columns.variance)
        return np.asarray(logsumexp(steps_of.T @ moved - energy, axis=0) - math.log(bins))
