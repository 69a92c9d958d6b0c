"""Min-sep sampling: the law of participation, and the likelihood ratio.

A unit joins with probability p from b steps after its last participation on; and with p / (1 + (b - 1 - t) p)
at step t < b where it has joined none, which is the stationary start. With
e_t = (2 y_t - ||C[:, t]||^2) / (2 s^2) and orthogonal columns f_t = (1 - p) f_{t+1} + p exp(e_t) f_{t+b}, and
the log-likelihood ratio is the log of the stationary mean of f_0 … f_{b-1}.
"""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp

from anechoic._validate import Array
from anechoic.audit.counts import Counts, counts_of, in_batches
from anechoic.audit.hazards import Hazards, Mask, draw_participation, draw_units, hazards
from anechoic.audit.ratios import StrategyColumns, log_mix, log_ratio
from anechoic.audit.sampler_power import Fault, by_pairs, sampler_faults
from anechoic.sampling import MinSepSampling


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
    return Hazards.of(part, trials, rates, p)


@draw_units.register
def _(sampling: MinSepSampling, possible: Mask, rng: np.random.Generator) -> Mask:
    n, canaries = possible.shape
    weights = np.full(sampling.separation, sampling.rate)
    weights[0] = 1.0
    wait = np.asarray(rng.choice(sampling.separation, size=canaries, p=weights / weights.sum()))
    drawn = np.zeros((n, canaries), bool)
    for row in drawn:
        row[:] = (wait == 0) & (rng.random(canaries) < sampling.rate)
        wait = np.where(row, sampling.separation - 1, np.maximum(wait - 1, 0))
    return drawn


@counts_of.register
def _(sampling: MinSepSampling, part: Mask, possible: Mask) -> Counts:
    n, m = part.shape
    share = sampling.rate / (1 + (sampling.separation - 1) * sampling.rate)
    return Counts(part.sum(axis=1), np.full(n, m), share, in_batches(n))


@log_ratio.register
def _(sampling: MinSepSampling, columns: StrategyColumns, moved: Array) -> Array:
    columns.refuse_overlap(sampling)
    return _chain(moved - columns.energy, sampling.rate, sampling.separation)


@sampler_faults.register
def _(sampling: MinSepSampling) -> dict[str, Fault]:
    def periodic(count: int, rng: np.random.Generator) -> tuple[Mask, Mask]:
        possible = draw_participation(sampling, count, rng)[1]
        period = max(sampling.separation, round(sampling.separation - 1 + 1 / sampling.rate))
        offsets = rng.integers(period, size=count)
        return np.asarray(np.arange(sampling.steps)[:, None] % period == offsets), possible

    if sampling.rate >= 1.0:
        return {}
    return {"periodic": periodic, "coins shared by pairs": by_pairs(sampling)}


def _chain(exponents: Array, rate: float, separation: int) -> Array:
    n, m = exponents.shape
    log_f = np.zeros((n + separation, m))
    for t in range(n - 1, -1, -1):
        log_f[t] = log_mix(rate, log_f[t + 1], exponents[t] + log_f[t + separation])
    weights = np.full((separation, 1), rate)
    weights[0] = 1.0
    return np.asarray(logsumexp(log_f[:separation], b=weights / weights.sum(), axis=0))
