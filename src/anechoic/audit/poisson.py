"""(Cyclic) Poisson sampling: the law of participation.

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
from anechoic.audit.law import (
    Counts,
    Fault,
    Hazards,
    Mask,
    ParticipationLaw,
    StrategyColumns,
    law_of,
    log_mix,
    log_rest,
)
from anechoic.sampling import CyclicPoisson, Poisson

#: Participations that the state of an overlapping chain holds, at most.
MOST_STATES = 8


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
        exponents, possible = moved - columns.energy, columns.possible
        if columns.overlap(self.sampling) is not None:
            return _overlapping(exponents, columns.gram / columns.variance, possible, self.rate)
        terms = log_mix(self.rate, np.zeros(exponents.shape), exponents)
        return np.asarray(np.where(possible, terms, 0.0).sum(axis=0))

    def faults(self) -> dict[str, Fault]:
        if not 0.0 < self.rate < 1.0:
            return {}
        return {
            "one coin per unit": self._one_coin,
            "half never drawn": self._half_never,
            "coins shared by pairs": self.draw_pairs,
            "equal epochs": self._equal_epochs,
            "fixed sizes": self._fixed_sizes,
        }

    def _one_coin(self, count: int, rng: np.random.Generator) -> tuple[Mask, Mask]:
        _, possible = self.draw_units(count, rng)
        return np.asarray(possible & (rng.random(count) < self.rate)), possible

    def _half_never(self, count: int, rng: np.random.Generator) -> tuple[Mask, Mask]:
        _, possible = self.draw_units(count, rng)
        chosen = rng.permutation(count) < count // 2
        twice = rng.random(possible.shape) < min(1.0, 2 * self.rate)
        return np.asarray(possible & chosen & twice), possible

    def _equal_epochs(self, count: int, rng: np.random.Generator) -> tuple[Mask, Mask]:
        part, possible = self.draw_units(count, rng)
        epoch = max(1, round(self.sampling.examples / self.sampling.batch_size))
        epoch = -(-epoch // self.sampling.groups) * self.sampling.groups
        return np.asarray(part[np.arange(len(part)) % epoch] & possible), possible

    def _fixed_sizes(self, count: int, rng: np.random.Generator) -> tuple[Mask, Mask]:
        part, possible = self.draw_units(count, rng)
        for t in range(len(part)):
            inside = np.flatnonzero(possible[t])
            part[t] = False
            part[t, rng.permutation(inside)[: round(self.rate * len(inside))]] = True
        return part, possible


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
