"""Random allocation: the law of participation, and the likelihood ratio.

In each epoch a unit joins with probability 1 / (b - place) where it has joined none of it. With
e_t = (2 y_t - ||C[:, t]||^2) / (2 s^2) and orthogonal columns the log-likelihood ratio is the sum over epochs
of log mean_t exp(e_t).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from anechoic._validate import Array
from anechoic.audit.counts import Counts, counts_of, in_batches
from anechoic.audit.hazards import Hazards, Mask, draw_participation, draw_units, hazards, joined_before
from anechoic.audit.ratios import StrategyColumns, log_ratio
from anechoic.audit.sampler_power import Fault, by_pairs, sampler_faults
from anechoic.sampling import RandomAllocation

#: Most differences of places in two epochs that are counted.
_MOST_LAGS = 2000


@hazards.register
def _(sampling: RandomAllocation, part: Mask, possible: Mask) -> Hazards:
    n, period = len(part), sampling.period
    trials = np.zeros(part.shape, bool)
    for start in range(0, n, period):
        trials[start : start + period] = ~joined_before(part[start : start + period])
    return Hazards.of(part, trials, 1.0 / (period - np.arange(n) % period))


@draw_units.register
def _(sampling: RandomAllocation, possible: Mask, rng: np.random.Generator) -> Mask:
    n, m = possible.shape
    drawn = rng.integers(sampling.period, size=(-(-n // sampling.period), m))
    places = np.repeat(drawn, sampling.period, axis=0)[:n]
    return np.asarray(np.arange(n)[:, None] % sampling.period == places)


@counts_of.register
def _(sampling: RandomAllocation, part: Mask, possible: Mask) -> Counts:
    n, m = part.shape
    period, names = sampling.period, in_batches(n)
    counts, trials = [*part.sum(axis=1)], [m] * n
    place = _places(part, period)
    for apart in range(1, min(len(place), _MOST_LAGS // period + 2)):
        moved = (place[apart:] - place[:-apart]) % period
        counts += np.bincount(moved.ravel(), minlength=period).tolist()
        trials += [moved.size] * period
        names += [f"{shift} places after that of {apart} epochs before" for shift in range(period)]
    return Counts(np.array(counts), np.array(trials), 1 / period, names)


@log_ratio.register
def _(sampling: RandomAllocation, columns: StrategyColumns, moved: Array) -> Array:
    columns.refuse_overlap(sampling)
    return _by_epoch(moved - columns.energy, sampling.period)


@sampler_faults.register
def _(sampling: RandomAllocation) -> dict[str, Fault]:
    def equal_epochs(count: int, rng: np.random.Generator) -> tuple[Mask, Mask]:
        part, possible = draw_participation(sampling, count, rng)
        return np.asarray(part[np.arange(len(part)) % sampling.period]), possible

    if sampling.period == 1:
        return {}
    return {"coins shared by pairs": by_pairs(sampling), "equal epochs": equal_epochs}


def _by_epoch(exponents: Array, period: int) -> Array:
    n, m = exponents.shape
    epochs = -(-n // period)
    padded = np.zeros((epochs * period, m))  # steps beyond n release nothing
    padded[:n] = exponents
    whole = logsumexp(padded.reshape(epochs, period, m), axis=1) - math.log(period)
    return np.asarray(whole.sum(axis=0))


def _places(part: Mask, period: int) -> NDArray[np.int64]:
    """Place of each canary in each whole epoch, shape (epochs, m)."""
    whole = len(part) // period
    return np.asarray(part[: whole * period].reshape(whole, period, part.shape[1]).argmax(axis=1))
