"""Test whether canaries are drawn into batches as the scheme promises: amplification rests on it.

Canaries are drawn independently of one another, and given its own past a canary joins batch t with a
probability that the scheme fixes (`audit.participation_law`). That gives tests:

* batches: participations at one step, at all steps together, in a bin, at the place of an earlier epoch: the
  counts are binomial, and their p-values exact;
* sizes: the sizes of all batches vary as much as they should, neither more nor less. Each size is binomial
  given the past; made uniform by randomisation, and normal by its quantile, their squares are chi-squared;
* units: how often single canaries are drawn, all of them and the strangest one;
* lags: how often a canary is drawn again so many steps after an earlier participation.

Units and lags are bets against the promised probability: given the past, what another law says
of each draw (or pattern) over what the promised one says of it has the mean 1. The product over any that were
chosen by the past alone, and the average of such products, exceed 1/a with probability at most a (Markov). A
pattern that the scheme cannot draw at all has the p-value 0.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike
from scipy.special import betaln, logsumexp, ndtri

from anechoic._validate import Array
from anechoic.audit.participation_law import Hazards, law_of
from anechoic.sampling.base import Sampling

#: Numbers of draws that a prior of a bet is worth; the bets are averaged.
_PRIORS = (2.0, 8.0, 32.0)
#: Most lags that are looked at.
_MOST_LAGS = 2000


class DrawTest(NamedTuple):
    """What `draw_test` found.

    Attributes:
        p_value: of all tests together (Bonferroni).
        note: the test with the least p-value, or the pattern that cannot be.
        p_values: of each test by name.
    """

    p_value: float
    note: str
    p_values: dict[str, float]


def draw_test(
    sampling: Sampling, participation: ArrayLike, possible: ArrayLike | None = None, *, seed: int = 0
) -> DrawTest:
    """Whether observed participation follows the law of an amplified scheme.

    Args:
        sampling: an amplified scheme.
        participation: whether canary j is in batch t, shape (n, m).
        possible: steps that sample the canary's group under cyclic Poisson sampling; None for all.
        seed: of the randomisation of "sizes", which makes a discrete law continuous.

    Raises:
        UnsupportedError: for a scheme whose batches are not drawn.
    """
    part = np.asarray(participation, dtype=bool)
    allowed = np.ones(part.shape, bool) if possible is None else np.asarray(possible, dtype=bool)
    law = law_of(sampling)
    hazards = law.hazards(part, allowed)
    impossible = hazards.impossible
    if impossible.any():
        first = int(impossible.argmax())
        return DrawTest(0.0, f"the scheme cannot draw the pattern of canary {first}", {"patterns": 0.0})
    count = law.counts(hazards)
    p_values = two_sided_binomial(count.counts, count.trials, count.rate)
    rates = np.broadcast_to(count.rate, p_values.shape)
    worst, random = int(p_values.argmin()), max(1, int((rates < 1.0).sum()))
    found = {"batches": min(1.0, float(p_values[worst]) * random)}
    notes = {
        "batches": f"{count.counts[worst]} of {count.trials[worst]} {count.names[worst]},"
        f" promised {rates[worst]:.4g}"
    }
    found["sizes"], notes["sizes"] = _sizes(hazards, np.random.default_rng(seed))
    if hazards.constant:
        found["units"], notes["units"] = _units(hazards)
        found["lags"], notes["lags"] = _lags(hazards)
    name = min(found, key=lambda name: found[name])
    made = "" if hazards.part is part else ", where units are made independent"
    return DrawTest(min(1.0, len(found) * found[name]), f"least: {notes[name]}{made}", found)


def two_sided_binomial(counts: ArrayLike, trials: ArrayLike, rate: ArrayLike) -> Array:
    """p-values of counts: twice the smaller tail, at most 1."""
    k, n = np.asarray(counts, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    tails = np.minimum(scipy.stats.binom.cdf(k, n, rate), scipy.stats.binom.sf(k - 1, n, rate))
    return np.asarray(np.minimum(1.0, 2.0 * tails))


def _sizes(hazards: Hazards, rng: np.random.Generator) -> tuple[float, str]:
    """Dispersion of the sizes of batches, each given the past."""
    trials, sizes = hazards.trials.sum(axis=1), hazards.part.sum(axis=1)
    drawn = (trials > 0) & (hazards.rates < 1.0) & (hazards.rates > 0.0)
    trials, sizes, rates = trials[drawn], sizes[drawn], hazards.rates[drawn]
    if not len(sizes):
        return 1.0, "no size is random"
    below = scipy.stats.binom.cdf(sizes - 1, trials, rates)
    uniform = below + rng.random(len(sizes)) * scipy.stats.binom.pmf(sizes, trials, rates)
    squares = float(np.square(ndtri(np.clip(uniform, 1e-300, 1.0 - 1e-16))).sum())
    freedom = len(sizes)
    tails = scipy.stats.chi2.cdf(squares, freedom), scipy.stats.chi2.sf(squares, freedom)
    return (
        min(1.0, 2.0 * float(min(tails))),
        f"sizes of batches vary {math.sqrt(squares / freedom):.3g} times as much as promised",
    )


def _bets(successes: ArrayLike, trials: ArrayLike, rate: float, prior: float) -> Array:
    """log of the product over draws of a Beta mixture's probability over the promised one."""
    k, n = np.asarray(successes, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    one, other = prior * rate, prior * (1.0 - rate)
    mixed = betaln(k + one, n - k + other) - betaln(one, other)
    return np.asarray(mixed - k * math.log(rate) - (n - k) * math.log1p(-rate))


def _won(logs: ArrayLike) -> float:
    found = np.asarray(logs, dtype=np.float64).ravel()
    return float(np.exp(min(0.0, math.log(len(found)) - float(logsumexp(found))))) if len(found) else 1.0


def _units(hazards: Hazards) -> tuple[float, str]:
    """Draws of single canaries, where the promised probability is the same."""
    equal = hazards.equal
    totals, trials = (hazards.part & equal).sum(axis=0), equal.sum(axis=0)
    each = [_bets(totals, trials, hazards.rate, prior) for prior in _PRIORS]
    together = [float(bets.sum()) for bets in each]  # canaries are independent
    p_value = min(1.0, 2.0 * min(_won(together), _won(np.concatenate(each))))
    strangest = int(each[0].argmax())
    return p_value, (
        f"canary {strangest} is drawn {totals[strangest]} of {trials[strangest]} times, promised"
        f" {hazards.rate:.4g}; {int((totals == 0).sum())} canaries never"
    )


def _lags(hazards: Hazards) -> tuple[float, str]:
    """Draws so many steps after an earlier participation."""
    part, equal = hazards.part, hazards.equal
    n = len(part)
    lags = np.unique(np.linspace(1, n - 1, min(n - 1, _MOST_LAGS)).round().astype(int))
    trials = np.array([int((equal[lag:] & part[:-lag]).sum()) for lag in lags])
    again = np.array([int((part[lag:] & equal[lag:] & part[:-lag]).sum()) for lag in lags])
    kept = np.flatnonzero(trials)
    if not len(kept):
        return 1.0, "nobody could be drawn again"
    bets = np.array([_bets(again[kept], trials[kept], hazards.rate, prior) for prior in (*_PRIORS, 512.0)])
    worst = int(kept[int(bets.max(axis=0).argmax())])
    return _won(bets), (
        f"{again[worst]} of {trials[worst]} {lags[worst]} steps after a participation, promised"
        f" {hazards.rate:.4g}"
    )
