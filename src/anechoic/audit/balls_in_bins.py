"""Balls in bins: the law of participation, and the likelihood ratio.

Of b bins a unit joins step t < b of the first pass with probability 1 / (b - t) where it has joined none; its
bin is known then. Whatever C, L = log mean_i exp((2 <m_i, Y g> - ||m_i||^2) / (2 s^2)), with m_i the sum of
bin i's columns.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import logsumexp

from anechoic._validate import Array
from anechoic.audit.counts import Counts, counts_of
from anechoic.audit.hazards import Hazards, Mask, draw_participation, draw_units, hazards, joined_before
from anechoic.audit.ratios import StrategyColumns, log_ratio
from anechoic.audit.sampler_power import Fault, sampler_faults
from anechoic.sampling import BallsInBins


@hazards.register
def _(sampling: BallsInBins, part: Mask, possible: Mask) -> Hazards:
    n, bins = len(part), sampling.bins
    rates = np.ones(n)
    rates[:bins] = 1.0 / (bins - np.arange(min(n, bins)))
    trials = np.zeros(part.shape, bool)
    trials[:bins] = ~joined_before(part[:bins])
    for t in range(bins, n):  # the bin comes again
        trials[t] = part[t - bins]
    return Hazards.of(part, trials, rates)


@draw_units.register
def _(sampling: BallsInBins, possible: Mask, rng: np.random.Generator) -> Mask:
    n, m = possible.shape
    return np.asarray(np.arange(n)[:, None] % sampling.bins == rng.integers(sampling.bins, size=m))


@counts_of.register
def _(sampling: BallsInBins, part: Mask, possible: Mask) -> Counts:
    n, m = part.shape
    shown = part[: sampling.bins].sum(axis=1)
    return Counts(shown, np.full(len(shown), m), 1 / sampling.bins, [f"in bin {i}" for i in range(n)])


@log_ratio.register
def _(sampling: BallsInBins, columns: StrategyColumns, moved: Array) -> Array:
    n, bins = len(moved), sampling.bins
    steps_of = (np.arange(n)[:, None] % bins == np.arange(bins)).astype(np.float64)
    energy = np.square(columns.strategy.multiply(steps_of)).sum(axis=0)[:, None] / (2 * columns.variance)
    return np.asarray(logsumexp(steps_of.T @ moved - energy, axis=0) - math.log(bins))


@sampler_faults.register
def _(sampling: BallsInBins) -> dict[str, Fault]:
    def fixed_sizes(count: int, rng: np.random.Generator) -> tuple[Mask, Mask]:
        possible = draw_participation(sampling, count, rng)[1]
        bins = rng.permutation(count) % sampling.bins
        return np.asarray(np.arange(sampling.steps)[:, None] % sampling.bins == bins), possible

    return {"fixed sizes": fixed_sizes} if sampling.bins > 1 else {}
