"""Laws of participation of the schemes that amplify, with what each one's likelihood ratio is.

e_t stands for (2 y_t - ||C[:, t]||^2) / (2 s^2). Formulas with it are for orthogonal columns.
"""

from __future__ import annotations

import math

import numpy as np
import scipy
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
from anechoic.sampling import (
    BallsInBins,
    CyclicPoisson,
    FixedSize,
    MinSepSampling,
    Poisson,
    RandomAllocation,
)

#: Most differences of places in two epochs that are counted.
_MOST_LAGS = 2000


@law_of.register(Poisson)
@law_of.register(CyclicPoisson)
class PoissonLaw(ParticipationLaw):
    """A coin at every step of the group, of probability q.

    The log ratio is the sum over these steps of log(1 - q + q exp(e_t)).
    """

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


@law_of.register(FixedSize)
class FixedSizeLaw(PoissonLaw):
    """A coin at every step, of probability q = B / N, but those of other units are not independent of it.

    Of m of the N units as many are in a batch as a hypergeometric law says. To be tested, that number becomes
    a binomial one of the same quantile: some leave, or others join, drawn uniformly. Where batches are drawn
    as promised, units are independent then. Of more than N units each N have batches of their own.
    """

    sampling: FixedSize  # type: ignore[assignment]

    def _blocks(self, table: Mask) -> list[Mask]:
        return np.split(table, range(self.sampling.examples, table.shape[1], self.sampling.examples), axis=1)

    def draw(self, possible: Mask, rng: np.random.Generator) -> Mask:
        part = np.zeros(possible.shape, bool)
        for block in self._blocks(part):
            for row in block:
                places = rng.permutation(self.sampling.examples)[: len(row)]
                row[:] = places < self.sampling.batch_size
        return part

    def hazards(self, part: Mask, possible: Mask) -> Hazards:
        rng, part = np.random.default_rng([0, 1]), part.copy()  # no stream of `draw_test` itself
        for block in self._blocks(part):
            drawn, most = block.sum(axis=1), block.shape[1]
            law = scipy.stats.hypergeom(self.sampling.examples, most, self.sampling.batch_size)
            quantiles = np.minimum(law.cdf(drawn - 1) + rng.random(len(drawn)) * law.pmf(drawn), 1.0)
            wanted = np.maximum(scipy.stats.binom.ppf(quantiles, most, self.rate), 0.0).astype(int)
            for row, now, then in zip(block, drawn.tolist(), wanted.tolist(), strict=True):
                changed = np.flatnonzero(row if then < now else ~row)
                row[rng.permutation(changed)[: abs(then - now)]] ^= True
        return super().hazards(part, possible)


@law_of.register(BallsInBins)
class BinsLaw(ParticipationLaw):
    """One of b bins for the whole run.

    A unit joins step t < b of the first pass with probability 1 / (b - t) where it has joined none; its bin
    is known then. Whatever C, L = log mean_i exp((2 <m_i, Y g> - ||m_i||^2) / (2 s^2)), with m_i the sum of
    the columns of bin i.
    """

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


@law_of.register(RandomAllocation)
class AllocationLaw(ParticipationLaw):
    """One of the b steps of each epoch: with probability 1 / (b - place) where a unit has joined none of it.

    The log ratio is the sum over epochs of log mean_t exp(e_t).
    """

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


@law_of.register(MinSepSampling)
class MinSepLaw(ParticipationLaw):
    """A coin of probability p at every step from b steps after the last participation on.

    At step t < b, where a unit has joined none, it joins with probability p / (1 + (b - 1 - t) p): the
    stationary start. With f_t = (1 - p) f_{t+1} + p exp(e_t) f_{t+b} the log ratio is the log of the
    stationary mean of f_0 … f_{b-1}.
    """

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
