"""(Cyclic) Poisson sampling: the law of participation, and the likelihood ratio.

A unit joins each step of its group with probability q. With e_t = (2 y_t - ||C[:, t]||^2) / (2 s^2) and
orthogonal columns the log-likelihood ratio is the sum over the steps of the group of
log(1 - q + q exp(e_t)).

Where columns overlap that a unit can touch together, participations interact: |sum of columns|^2 has products
of any two. The sum over all patterns goes from step to step with the last few participations as its state, as
many as interact; beyond `MOST_STATES` older ones are left out, and the score, which is then no likelihood
ratio, is a valid one still: bounds hold for any.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import logsumexp

from anechoic._validate import Array
from anechoic.audit.counts import Counts, counts_of, in_batches
from anechoic.audit.hazards import Hazards, Mask, draw_participation, draw_units, hazards
from anechoic.audit.ratios import StrategyColumns, log_mix, log_ratio, log_rest
from anechoic.audit.sampler_power import Fault, by_pairs, sampler_faults
from anechoic.sampling import CyclicPoisson, Poisson

#: Participations that the state of an overlapping chain holds, at most.
MOST_STATES = 8


@hazards.register(Poisson)
@hazards.register(CyclicPoisson)
def _(sampling: Poisson | CyclicPoisson, part: Mask, possible: Mask) -> Hazards:
    return Hazards.of(part, possible, np.full(len(part), sampling.rate), sampling.rate)


@draw_units.register(Poisson)
@draw_units.register(CyclicPoisson)
def _(sampling: Poisson | CyclicPoisson, possible: Mask, rng: np.random.Generator) -> Mask:
    return np.asarray(possible & (rng.random(possible.shape) < sampling.rate))


@counts_of.register(Poisson)
@counts_of.register(CyclicPoisson)
def _(sampling: Poisson | CyclicPoisson, part: Mask, possible: Mask) -> Counts:
    counts, trials = part.sum(axis=1), possible.sum(axis=1)
    return Counts(
        np.append(counts, counts.sum()),
        np.append(trials, trials.sum()),
        sampling.rate,
        [*in_batches(len(part)), "in all batches"],
    )


@log_ratio.register(Poisson)
@log_ratio.register(CyclicPoisson)
def _(sampling: Poisson | CyclicPoisson, columns: StrategyColumns, moved: Array) -> Array:
    exponents, possible = moved - columns.energy, columns.possible
    if columns.overlap(sampling) is not None:
        return _overlapping(exponents, columns.gram / columns.variance, possible, sampling.rate)
    terms = log_mix(sampling.rate, np.zeros(exponents.shape), exponents)
    return np.asarray(np.where(possible, terms, 0.0).sum(axis=0))


@sampler_faults.register(Poisson)
@sampler_faults.register(CyclicPoisson)
def _(sampling: Poisson | CyclicPoisson) -> dict[str, Fault]:
    q = sampling.rate

    def one_coin(count: int, rng: np.random.Generator) -> tuple[Mask, Mask]:
        possible = draw_participation(sampling, count, rng)[1]
        return np.asarray(possible & (rng.random(count) < q)), possible

    def half_never(count: int, rng: np.random.Generator) -> tuple[Mask, Mask]:
        possible = draw_participation(sampling, count, rng)[1]
        chosen = rng.permutation(count) < count // 2
        return np.asarray(possible & chosen & (rng.random(possible.shape) < min(1.0, 2 * q))), possible

    def equal_epochs(count: int, rng: np.random.Generator) -> tuple[Mask, Mask]:
        part, possible = draw_participation(sampling, count, rng)
        length = _period(sampling)
        return np.asarray(part[np.arange(len(part)) % length] & possible), possible

    def fixed_sizes(count: int, rng: np.random.Generator) -> tuple[Mask, Mask]:
        part, possible = draw_participation(sampling, count, rng)
        for t in range(len(part)):
            inside = np.flatnonzero(possible[t])
            part[t] = False
            part[t, rng.permutation(inside)[: round(q * len(inside))]] = True
        return part, possible

    if not 0.0 < q < 1.0:
        return {}
    return {
        "one coin per unit": one_coin,
        "half never drawn": half_never,
        "coins shared by pairs": by_pairs(sampling),
        "equal epochs": equal_epochs,
        "fixed sizes": fixed_sizes,
    }


def _period(sampling: Poisson | CyclicPoisson) -> int:
    """Steps of an epoch: about the examples over the batch size, a multiple of the groups."""
    epoch = max(1, round(sampling.examples / sampling.batch_size))
    return max(1, -(-epoch // sampling.groups)) * sampling.groups


def _overlapping(exponents: Array, gram: Array, allowed: Mask, rate: float) -> Array:
    """log E exp(sum_t x_t e_t - sum_{s<t} x_s x_t G_st) over x_t ~ Bern(rate) at allowed steps, (m,)."""
    result = np.zeros(allowed.shape[1])
    packed = np.packbits(allowed, axis=0)
    _, which = np.unique(packed, axis=1, return_inverse=True)
    which = np.asarray(which).ravel()
    for group in range(int(which.max()) + 1):
        members = np.flatnonzero(which == group)
        steps = np.flatnonzero(allowed[:, members[0]])
        result[members] = _chain(exponents[np.ix_(steps, members)], gram[np.ix_(steps, steps)], rate)
    return result


def _chain(exponents: Array, gram: Array, rate: float) -> Array:
    """The same where all of these steps are allowed. Bit k - 1 of a state: participation k steps ago."""
    n, m = exponents.shape
    together = [k for k in range(1, n) if np.abs(gram.diagonal(k)).max() > 0.0]
    kept = min(max(together, default=0), MOST_STATES)
    states = np.arange(2**kept)
    bits = (states[:, None] >> np.arange(kept)) & 1
    logs = np.full((2**kept, m), -math.inf)
    logs[0] = 0.0
    rest, join = log_rest(rate), math.log(rate)
    after = (states << 1) & (2**kept - 1)
    for t in range(n):
        before = np.zeros(kept)
        before[: min(kept, t)] = gram[t, t - 1 :: -1][: min(kept, t)] if t else 0.0
        joined = logs + join + exponents[t] - (bits @ before)[:, None]
        moved = np.full_like(logs, -math.inf)
        if not kept:
            logs = np.logaddexp(logs + rest, joined)
            continue
        for half in (slice(0, 2 ** (kept - 1)), slice(2 ** (kept - 1), None)):  # the oldest bit falls out
            moved[after[half]] = np.logaddexp(moved[after[half]], logs[half] + rest)
            moved[after[half] | 1] = np.logaddexp(moved[after[half] | 1], joined[half])
        logs = moved
    return np.asarray(logsumexp(logs, axis=0))
