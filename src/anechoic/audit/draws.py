"""Are canaries drawn into batches as the scheme promises? Amplification rests on the law of participation.

Canaries are drawn independently of one another, so that every count below is binomial, and its p-value exact:

* (cyclic) Poisson sampling: participations at one step, and at all steps together;
* balls in bins: canaries in each bin;
* random allocation: participations at one step, and how often a canary takes the same place in two epochs
  one after the other (the draws of an epoch are uniform and new, so these are independent events);
* min-sep sampling: participations at one step, where a canary takes part with the stationary probability.

A pattern that the scheme cannot draw at all has the p-value 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

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


class DrawTest(NamedTuple):
    """What `draw_test` found.

    Attributes:
        p_value: of all counts together (Bonferroni).
        note: the count with the least p-value, or the pattern that cannot be.
    """

    p_value: float
    note: str


def draw_test(sampling: Sampling, participation: ArrayLike, possible: ArrayLike | None = None) -> DrawTest:
    """Whether observed participation follows the law of an amplified scheme.

    Args:
        sampling: an amplified scheme.
        participation: whether canary j is in batch t, shape (n, m).
        possible: steps that sample the canary's group under cyclic Poisson sampling; None for all.

    Raises:
        UnsupportedError: for a scheme whose batches are not drawn.
    """
    part = np.asarray(participation, dtype=bool)
    allowed = np.ones(part.shape, bool) if possible is None else np.asarray(possible, dtype=bool)
    n, m = part.shape
    everyone = np.full(n, m)
    if isinstance(sampling, BallsInBins):
        unlike = _not_of_one_bin(part, sampling.bins)
        shown = part[: sampling.bins]
        return _judged(unlike, shown.sum(axis=1), everyone[: len(shown)], 1 / sampling.bins, "bin")
    if isinstance(sampling, RandomAllocation):
        place, unlike = _places(part, sampling.period)
        counts = np.append(part.sum(axis=1), (place[1:] == place[:-1]).sum())
        trials = np.append(everyone, max(0, len(place) - 1) * m)
        last = "at the place of the epoch before"
        return _judged(unlike, counts, trials, 1 / sampling.period, "batch", last)
    if isinstance(sampling, MinSepSampling):
        share = sampling.rate / (1 + (sampling.separation - 1) * sampling.rate)
        return _judged(_too_close(part, sampling.separation), part.sum(axis=1), everyone, share, "batch")
    if isinstance(sampling, (Poisson, CyclicPoisson)):
        counts = np.append(part.sum(axis=1), part.sum())
        trials = np.append(allowed.sum(axis=1), allowed.sum())
        unlike = (part & ~allowed).any(axis=0)
        return _judged(unlike, counts, trials, sampling.rate, "batch", "in all batches")
    raise UnsupportedError(f"{type(sampling).__name__} sampling draws no batches: there is no law to test.")


def _judged(
    impossible: Mask,
    counts: NDArray[np.int64],
    trials: NDArray[np.int64],
    rate: float,
    what: str,
    last: str = "",
) -> DrawTest:
    """Of counts in batches or bins (`what`); the last one may be another."""
    if impossible.any():
        return DrawTest(0.0, f"the scheme cannot draw the pattern of canary {int(impossible.argmax())}")
    p_values = two_sided_binomial(counts, trials, rate)
    worst = int(p_values.argmin())
    where = last if last and worst == len(counts) - 1 else f"in {what} {worst}"
    note = f"least: {counts[worst]} of {trials[worst]} {where}, promised {rate:.4g}"
    return DrawTest(min(1.0, float(p_values[worst]) * len(p_values)), note)


def two_sided_binomial(counts: ArrayLike, trials: ArrayLike, rate: float) -> Array:
    """p-values of counts: twice the smaller tail, at most 1."""
    k, n = np.asarray(counts, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    tails = np.minimum(stats.binom.cdf(k, n, rate), stats.binom.sf(k - 1, n, rate))
    return np.asarray(np.minimum(1.0, 2.0 * tails))


def _not_of_one_bin(part: Mask, bins: int) -> Mask:
    """Canaries whose steps are not those of one bin, shape (m,)."""
    n = len(part)
    seen = part.any(axis=0)
    own = np.arange(n)[:, None] % bins == part.argmax(axis=0)
    return np.asarray(np.where(seen, (part != own).any(axis=0) | (part.argmax(axis=0) >= bins), n >= bins))


def _places(part: Mask, period: int) -> tuple[NDArray[np.int64], Mask]:
    """Place in each whole epoch, shape (epochs, m), and the canaries that are not drawn once an epoch."""
    n, m = part.shape
    whole, rest = divmod(n, period)
    epochs = part[: whole * period].reshape(whole, period, m)
    unlike = (epochs.sum(axis=1) != 1).any(axis=0)
    if rest:
        unlike |= part[whole * period :].sum(axis=0) > 1
    return epochs.argmax(axis=1), np.asarray(unlike)


def _too_close(part: Mask, separation: int) -> Mask:
    """Canaries with two participations less than `separation` steps apart, shape (m,)."""
    counts = np.cumsum(np.vstack([np.zeros((1, part.shape[1]), dtype=np.int64), part]), axis=0)
    width = min(separation, len(part))
    return np.asarray((counts[width:] - counts[:-width] > 1).any(axis=0))
