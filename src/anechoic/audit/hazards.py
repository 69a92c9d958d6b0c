"""The law of every amplified scheme, one draw after the other: with what probability a unit joins batch t.

Given its own past, and independently of all others, a unit that may still join does so with probability

* (cyclic) Poisson sampling: q at the steps of its group;
* balls in bins: 1 / (b - t) at step t < b of the first pass where it has joined none; its bin is known then;
* random allocation: 1 / (b - place) in each epoch where it has joined none of it;
* min-sep sampling: p from b steps after the last participation on; and p / (1 + (b - 1 - t) p) at step t < b
  where it has joined none, which is the stationary start.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array
from anechoic.errors import UnsupportedError
from anechoic.sampling import (
    BallsInBins,
    CyclicPoisson,
    MinSepSampling,
    Poisson,
    RandomAllocation,
    Sampling,
)

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Hazards:
    """The probabilities of observed draws.

    Attributes:
        trials: whether canary j may join batch t, given its past, shape (n, m).
        rates: probability with which each of these does, shape (n,).
        rate: the one that holds at most steps; 0 where there is none such.
        impossible: canaries whose pattern cannot be drawn, shape (m,).
        log_probability: of the pattern of each canary, shape (m,).
    """

    trials: Mask
    rates: Array
    rate: float
    impossible: Mask
    log_probability: Array

    @property
    def constant(self) -> bool:
        """Whether draws are repeated at one rate."""
        return 0.0 < self.rate < 1.0

    @property
    def equal(self) -> Mask:
        """Draws at that rate, shape (n, m)."""
        return np.asarray(self.trials & (self.rates == self.rate)[:, None])


def _hazards(part: Mask, trials: Mask, rates: Array, rate: float = 0.0) -> Hazards:
    sure = trials & (rates >= 1.0)[:, None]
    impossible = np.asarray(((part & ~trials) | (sure & ~part)).any(axis=0))
    with np.errstate(divide="ignore"):
        joins, stays = np.log(rates), np.log1p(-np.minimum(rates, 1.0))
    logs = np.where(part, joins[:, None], np.where(sure, 0.0, np.where(rates < 1.0, stays, 0.0)[:, None]))
    return Hazards(trials, rates, rate, impossible, np.where(trials, logs, 0.0).sum(axis=0))


@singledispatch
def hazards(sampling: Sampling, part: Mask, possible: Mask) -> Hazards:
    """The law of the observed patterns.

    Args:
        sampling: an amplified scheme.
        part: whether canary j is in batch t, shape (n, m).
        possible: steps that sample the canary's group.

    Raises:
        UnsupportedError: for a scheme whose batches are not drawn.
    """
    raise UnsupportedError(f"{type(sampling).__name__} sampling draws no batches: there is no law to test.")


@hazards.register(Poisson)
@hazards.register(CyclicPoisson)
def _(sampling: Poisson | CyclicPoisson, part: Mask, possible: Mask) -> Hazards:
    return _hazards(part, possible, np.full(len(part), sampling.rate), sampling.rate)


@hazards.register
def _(sampling: BallsInBins, part: Mask, possible: Mask) -> Hazards:
    n, bins = len(part), sampling.bins
    rates = np.ones(n)
    rates[:bins] = 1.0 / (bins - np.arange(min(n, bins)))
    trials = np.zeros(part.shape, bool)
    trials[:bins] = ~_before(part[:bins])
    for t in range(bins, n):  # the bin comes again
        trials[t] = part[t - bins]
    return _hazards(part, trials, rates)


@hazards.register
def _(sampling: RandomAllocation, part: Mask, possible: Mask) -> Hazards:
    n, period = len(part), sampling.period
    trials = np.zeros(part.shape, bool)
    for start in range(0, n, period):
        trials[start : start + period] = ~_before(part[start : start + period])
    return _hazards(part, trials, 1.0 / (period - np.arange(n) % period))


@hazards.register
def _(sampling: MinSepSampling, part: Mask, possible: Mask) -> Hazards:
    n, b, p = len(part), sampling.separation, sampling.rate
    trials = np.ones(part.shape, bool)
    for lag in range(1, min(b, n)):
        trials[lag:] &= ~part[:-lag]
    rates = np.full(n, p)
    start = np.arange(min(b, n))
    rates[: len(start)] = p / (1.0 + (b - 1 - start) * p)
    if n >= b:
        rates[b - 1] = p
    return _hazards(part, trials, rates, p)


def draw_units(sampling: Sampling, possible: Mask, rng: np.random.Generator) -> Mask:
    """Participation of as many units as `possible` has columns, drawn as the scheme promises.

    Raises:
        UnsupportedError: for a scheme that is not amplified.
    """
    n, m = possible.shape
    steps = np.arange(n)[:, None]
    if isinstance(sampling, BallsInBins):
        return np.asarray(steps % sampling.period == rng.integers(sampling.period, size=m))
    if isinstance(sampling, RandomAllocation):
        drawn = rng.integers(sampling.period, size=(-(-n // sampling.period), m))
        return np.asarray(steps % sampling.period == np.repeat(drawn, sampling.period, axis=0)[:n])
    if isinstance(sampling, MinSepSampling):
        return _draw_min_sep(sampling, m, rng)
    if isinstance(sampling, (Poisson, CyclicPoisson)):
        return np.asarray(possible & (rng.random((n, m)) < sampling.rate))
    raise UnsupportedError(
        f"{type(sampling).__name__}: no likelihood ratio is implemented for this scheme. Without"
        " amplification use canary_scores."
    )


def _draw_min_sep(sampling: MinSepSampling, canaries: int, rng: np.random.Generator) -> Mask:
    weights = np.full(sampling.separation, sampling.rate)
    weights[0] = 1.0
    wait = rng.choice(sampling.separation, size=canaries, p=weights / weights.sum())
    drawn = np.zeros((sampling.steps, canaries), bool)
    for row in drawn:
        row[:] = (wait == 0) & (rng.random(canaries) < sampling.rate)
        wait = np.where(row, sampling.separation - 1, np.maximum(wait - 1, 0))
    return drawn


def places(part: Mask, period: int) -> NDArray[np.int64]:
    """Place of each canary in each whole epoch, shape (epochs, m)."""
    whole = len(part) // period
    return np.asarray(part[: whole * period].reshape(whole, period, part.shape[1]).argmax(axis=1))


def _before(part: Mask) -> Mask:
    """Whether a canary joined an earlier batch."""
    counts: NDArray[np.int64] = np.cumsum(part, axis=0) - part
    return np.asarray(counts > 0)
