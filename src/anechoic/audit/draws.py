"""Are canaries drawn into batches as the scheme promises? Amplification rests on the law of participation.

Canaries are drawn independently of one another, and given its own past a canary joins batch t with a
probability that the scheme fixes (`audit.hazards`). That gives tests of what amplification rests on:

* batches: participations at one step, at all steps together, in a bin, at the place of an earlier epoch: the
  counts are binomial, and their p-values exact;
* sizes: the sizes of all batches vary as much as they should, neither more nor less. Each size is binomial
  given the past; made uniform by randomisation, and normal by its quantile, their squares are chi-squared;
* units: how often single canaries are drawn, all of them and the strangest one;
* pairs: canaries with the same pattern: more of them than there may be among patterns too rare to be drawn
  twice, or, where patterns are few, than in simulated runs;
* lags, gaps: how often a canary is drawn again so many steps after an earlier, or its last, participation.

Units, lags and gaps are bets against the promised probability p: given the past, what a mixture of Bernoulli
laws says of each draw over what p says of it has the mean 1. The product over any draws that were chosen by
the past alone, and the average of such products, exceed 1/a with probability at most a (Markov). A pattern
that the scheme cannot draw at all has the p-value 0.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike
from scipy.special import betaln, logsumexp, ndtri

from anechoic._validate import Array
from anechoic.audit.counts import counts_of
from anechoic.audit.hazards import Hazards, Mask, draw_units, hazards
from anechoic.sampling import Sampling

#: Numbers of draws that a prior of a bet is worth; the bets are averaged.
_PRIORS = (2.0, 8.0, 32.0)
#: Pairs of canaries that are expected to share a pattern by chance, at most, among the rare patterns.
_CHANCE = 0.1
#: Runs that are simulated where patterns are few, and draws that they may take.
_SIMULATED, _MOST_DRAWS = 2000, 3e8
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
    law = hazards(sampling, part, allowed)
    if law.impossible.any():
        first = int(law.impossible.argmax())
        return DrawTest(0.0, f"the scheme cannot draw the pattern of canary {first}", {"patterns": 0.0})
    count = counts_of(sampling, part, allowed)
    p_values = two_sided_binomial(count.counts, count.trials, count.rate)
    worst = int(p_values.argmin())
    found = {"batches": min(1.0, float(p_values[worst]) * len(p_values))}
    notes = {
        "batches": f"{count.counts[worst]} of {count.trials[worst]} {count.names[worst]},"
        f" promised {count.rate:.4g}"
    }
    found["sizes"], notes["sizes"] = _sizes(law, part, np.random.default_rng(seed))
    found["pairs"], notes["pairs"] = _pairs(sampling, law, part, allowed)
    if law.constant:
        found["units"], notes["units"] = _units(law, part)
        found["lags"], notes["lags"] = _lags(law, part)
        found["gaps"], notes["gaps"] = _gaps(law, part)
    name = min(found, key=lambda name: found[name])
    return DrawTest(min(1.0, len(found) * found[name]), f"least: {notes[name]}", found)


def two_sided_binomial(counts: ArrayLike, trials: ArrayLike, rate: float) -> Array:
    """p-values of counts: twice the smaller tail, at most 1."""
    k, n = np.asarray(counts, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    tails = np.minimum(scipy.stats.binom.cdf(k, n, rate), scipy.stats.binom.sf(k - 1, n, rate))
    return np.asarray(np.minimum(1.0, 2.0 * tails))


def _sizes(law: Hazards, part: Mask, rng: np.random.Generator) -> tuple[float, str]:
    """Dispersion of the sizes of batches, each given the past."""
    trials, sizes = law.trials.sum(axis=1), part.sum(axis=1)
    drawn = (trials > 0) & (law.rates < 1.0) & (law.rates > 0.0)
    trials, sizes, rates = trials[drawn], sizes[drawn], law.rates[drawn]
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


def _pairs(sampling: Sampling, law: Hazards, part: Mask, allowed: Mask) -> tuple[float, str]:
    """Pairs of canaries with the same pattern.

    Where patterns are so many that hardly any two are alike: two of m canaries share a pattern of probability
    at most r with probability at most r, and three with at most r^2. The number of such pairs has the second
    moment m2 = s + s^2 + m^3 r^2 at most, s = m^2 r / 2, and exceeds k with probability at most m2 / k^2.
    Elsewhere pairs count by how rare their pattern is, and their sum is compared with that of simulated runs.
    Which of the two it is depends on the scheme alone.
    """
    m = part.shape[1]
    rare = _CHANCE / max(1.0, m * (m - 1) / 2)
    groups, sizes = np.unique(np.packbits(allowed, axis=0), axis=1, return_counts=True)
    simulated = _alike_by_chance(sampling, len(part), groups.tobytes(), tuple(sizes.tolist()), math.log(rare))
    count, weight = _alike(part, law.log_probability, math.inf if len(simulated) else math.log(rare))
    if len(simulated):
        above = int((np.array(simulated) >= weight * (1 - 1e-12)).sum())
        return (1 + above) / (1 + len(simulated)), f"{count} pairs of canaries share a pattern"
    note = f"{count} pairs of canaries share a pattern of probability below {rare:.2g}"
    second = _CHANCE + _CHANCE**2 + m**3 * rare**2
    return (min(1.0, second / count**2) if count else 1.0), note


def _alike(part: Mask, logs: Array, most: float) -> tuple[int, float]:
    """Pairs with one pattern of log probability at most `most`, and the sum of its negative over them."""
    chosen = logs <= most
    if not chosen.any():
        return 0, 0.0
    # a pattern as the sum of random 64-bit numbers: two are confused with probability 2^-64
    words = np.random.default_rng(1).integers(2**64, size=(len(part), 1), dtype=np.uint64)
    keys = np.where(part[:, chosen], words, np.uint64(0)).sum(axis=0)
    _, first, alike = np.unique(keys, return_index=True, return_counts=True)
    pairs = alike * (alike - 1) // 2
    return int(pairs.sum()), float(-(pairs @ logs[chosen][first]))


@lru_cache(maxsize=32)
def _alike_by_chance(
    sampling: Sampling, n: int, groups: bytes, sizes: tuple[int, ...], most: float
) -> tuple[float, ...]:
    """What `_alike` gives in simulated runs; nothing where most patterns are rare, or the runs too large."""
    packed = np.frombuffer(groups, dtype=np.uint8).reshape(-(-n // 8), len(sizes))
    allowed = np.repeat(np.unpackbits(packed, axis=0, count=n).astype(bool), sizes, axis=1)
    rng = np.random.default_rng(0)

    def drawn() -> tuple[Mask, Array]:
        part = draw_units(sampling, allowed, rng)
        return part, hazards(sampling, part, allowed).log_probability

    if (drawn()[1] <= most).mean() >= 0.5 or allowed.size * _SIMULATED > _MOST_DRAWS:
        return ()
    return tuple(_alike(*drawn(), math.inf)[1] for _ in range(_SIMULATED))


def _bets(successes: ArrayLike, trials: ArrayLike, rate: float, prior: float) -> Array:
    """log of the product over draws of a Beta mixture's probability over the promised one."""
    k, n = np.asarray(successes, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    one, other = prior * rate, prior * (1.0 - rate)
    mixed = betaln(k + one, n - k + other) - betaln(one, other)
    return np.asarray(mixed - k * math.log(rate) - (n - k) * math.log1p(-rate))


def _won(logs: ArrayLike) -> float:
    """p-value of the average of bets, given their logarithms."""
    found = np.asarray(logs, dtype=np.float64).ravel()
    return float(np.exp(min(0.0, math.log(len(found)) - float(logsumexp(found))))) if len(found) else 1.0


def _units(law: Hazards, part: Mask) -> tuple[float, str]:
    """Draws of single canaries, where the promised probability is the same."""
    totals, trials = (part & law.equal).sum(axis=0), law.equal.sum(axis=0)
    each = [_bets(totals, trials, law.rate, prior) for prior in _PRIORS]
    together = [float(bets.sum()) for bets in each]  # canaries are independent
    p_value = min(1.0, 2.0 * min(_won(together), _won(np.concatenate(each))))
    strangest = int(each[0].argmax())
    return p_value, (
        f"canary {strangest} is drawn {totals[strangest]} of {trials[strangest]} times, promised"
        f" {law.rate:.4g}; {int((totals == 0).sum())} canaries never"
    )


def _lags(law: Hazards, part: Mask) -> tuple[float, str]:
    """Draws so many steps after an earlier participation."""
    n = len(part)
    lags: list[int] = []
    if n > 1:
        lags = np.unique(np.linspace(1, n - 1, min(n - 1, _MOST_LAGS)).round().astype(int)).tolist()
    trials = [int((law.equal[lag:] & part[:-lag]).sum()) for lag in lags]
    again = [int((part[lag:] & law.equal[lag:] & part[:-lag]).sum()) for lag in lags]
    return _strangest(again, trials, law.rate, [f"{lag} steps after a participation" for lag in lags])


def _gaps(law: Hazards, part: Mask) -> tuple[float, str]:
    """Draws so many steps after the last participation, or after the start."""
    n, m = part.shape
    ages, age, born = np.zeros((n, m), dtype=np.int64), np.zeros(m, dtype=np.int64), np.zeros(m, bool)
    for t in range(n):
        age = age + 1
        ages[t] = np.where(born, age, 0)
        age, born = np.where(part[t], 0, age), born | part[t]
    longest = min(n, _MOST_LAGS)
    trials = np.bincount(ages[law.equal], minlength=longest + 1)[1 : longest + 1]
    again = np.bincount(ages[law.equal & part], minlength=longest + 1)[1 : longest + 1]
    names = [f"{gap} steps after the last participation" for gap in range(1, longest + 1)]
    return _strangest(again, trials, law.rate, names)


def _strangest(again: ArrayLike, trials: ArrayLike, rate: float, names: list[str]) -> tuple[float, str]:
    k, n = np.asarray(again), np.asarray(trials)
    kept = np.flatnonzero(n > 0)
    if not len(kept):
        return 1.0, "nobody could be drawn again"
    bets = np.array([_bets(k[kept], n[kept], rate, prior) for prior in (*_PRIORS, 512.0)])
    worst = int(kept[int(bets.max(axis=0).argmax())])
    return _won(bets), f"{k[worst]} of {n[worst]} {names[worst]}, promised {rate:.4g}"
