"""Lower confidence bounds on mu and epsilon from scores of canaries left out and put in.

A threshold on the score is a test between two neighbouring data sets. If the release is mu-GDP, then
Phi^-1(TPR) - Phi^-1(FPR) <= mu; if it is (epsilon, delta)-DP, then TPR <= e^epsilon FPR + delta, and the same
for the complements. Rates are replaced by their Clopper-Pearson bounds, so nothing is assumed of the scores
but that those of different canaries are independent. Any score will do: a bad one gives a weak bound, not a
wrong one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from anechoic._validate import Array, finite_array, fraction

#: Most thresholds from either side, of which each has a part of the probability of failure.
_RANKS = 10


@dataclass(frozen=True)
class LowerBound:
    """A lower confidence bound.

    Attributes:
        value: the bound, >= 0.
        confidence: probability that a mechanism which keeps `value` or less stays below the bound.
        method: how it was found, and what it assumes.
        estimate: the point estimate that it lies below, where there is one.
    """

    value: float
    confidence: float
    method: str
    estimate: float | None = None


def lower_proportion(successes: ArrayLike, trials: int, failure: float) -> Array:
    """Clopper-Pearson: lies above the true probability with probability at most `failure`.

    The counts may also be of independent trials whose probabilities all stay below one bound: the bound
    found here then holds for that bound.

    Args:
        successes: counts in 0 … trials, any shape.
        trials: >= 1.
        failure: in (0, 1).
    """
    counts = np.asarray(successes, dtype=np.float64)
    found = scipy.stats.beta.ppf(failure, np.maximum(counts, 1.0), trials - counts + 1.0)
    return np.where(counts > 0, found, 0.0)


def upper_proportion(successes: ArrayLike, trials: int, failure: float) -> Array:
    """Clopper-Pearson: lies below the true probability with probability at most `failure`."""
    return 1.0 - lower_proportion(trials - np.asarray(successes, dtype=np.float64), trials, failure)


def mu_by_threshold(
    without: ArrayLike, with_canary: ArrayLike, *, threshold: float, confidence: float = 0.95
) -> LowerBound:
    """Lower bound on the mu of a mu-GDP release, from one threshold that was fixed before seeing scores.

    Args:
        without: scores of canaries left out, shape (m0,).
        with_canary: scores of canaries put in, shape (m1,).
        threshold: a score above it says "put in".
        confidence: in (0, 1).

    Raises:
        ValueError: if an argument is out of range.
    """
    low, high = _checked(without, with_canary)
    failure = (1.0 - fraction("confidence", confidence)) / 2
    true = lower_proportion(int((high > threshold).sum()), len(high), failure)
    false = upper_proportion(int((low > threshold).sum()), len(low), failure)
    value = max(0.0, float(ndtri(true) - ndtri(false)))
    return LowerBound(value, confidence, "Clopper-Pearson at one threshold; no assumption on the scores' law")


def mu_by_fit(scores: ArrayLike, signal: ArrayLike, *, confidence: float = 0.95) -> LowerBound:
    """Lower bound on mu = slope / std of scores = a + slope * signal + N(0, std^2), all three unknown.

    Exact under that model (the t statistic of the slope is noncentral t); labelled as a model's bound, as
    nothing checks the model.

    Args:
        scores: shape (m,), m >= 4.
        signal: shape (m,): 0 where a canary is left out, and 1 for one of full strength that is put in.
        confidence: in (0, 1).

    Raises:
        ValueError: if an argument is out of range, or all signals are equal.
    """
    y = finite_array("scores", scores)
    x = finite_array("signal", signal, length=len(y))
    confidence = fraction("confidence", confidence)
    if len(y) < 4:
        raise ValueError(f"{len(y)} scores are too few for a fit: use at least 4 canaries.")
    centred = x - x.mean()
    spread = float(np.sqrt(np.square(centred).sum()))
    if spread <= 1e-12 * max(1.0, float(np.abs(x).max())):
        raise ValueError("all signals are equal: leave some canaries out, and put others in.")
    slope = float(centred @ y) / spread**2
    freedom = len(y) - 2
    std = float(np.sqrt(np.square(y - y.mean() - slope * centred).sum() / freedom))
    if std <= 1e-12 * abs(slope):
        raise ValueError("the scores carry no noise at all: nothing was private, and there is no fit.")
    method = "noncentral t of a Gaussian fit; assumes Gaussian scores of one variance"
    found = noncentrality_bound(slope * spread / std, freedom, confidence) / spread
    return LowerBound(max(0.0, found), confidence, method, slope / std)


def bounds_by_ranks(
    without: ArrayLike, with_canary: ArrayLike, *, delta: float, confidence: float = 0.95
) -> tuple[LowerBound, LowerBound]:
    """Lower bounds on epsilon at `delta`, in both directions, and on mu, by thresholds that are scores.

    Args:
        without, with_canary: scores, shapes (m0,) and (m1,).
        delta: in (0, 1).
        confidence: in (0, 1).

    Raises:
        ValueError: if an argument is out of range.
    """
    low, high = _checked(without, with_canary)
    delta, confidence = fraction("delta", delta), fraction("confidence", confidence)
    true, false = proved_rates(low, high, 1.0 - confidence)
    with np.errstate(divide="ignore", invalid="ignore"):
        remove = np.log(np.maximum(true - delta, 0.0) / false)
        add = np.log(np.maximum(1.0 - false - delta, 0.0) / (1.0 - true))
    value = float(np.fmax(np.fmax(remove, add), 0.0).max())
    method = "rates at scores of some ranks; no assumption on the scores' law"
    mu = LowerBound(max(0.0, float((ndtri(true) - ndtri(false)).max())), confidence, "the same rates")
    return LowerBound(value, confidence, method), mu


def proved_rates(low: Array, high: Array, failure: float) -> tuple[Array, Array]:
    """Return true positive rates that are at least so large, and false ones at most, at several thresholds.

    A threshold is the score of a rank that was fixed before, 1, 2, 4, … from the outer end: the share of its
    own law beyond it is a Beta variable whatever the law, and counts of the other scores are binomial. With
    ties the share beyond is smaller.

    Args:
        low, high: scores of canaries left out and put in.
        failure: probability that any of the rates is wrong.
    """
    ranked = [2 ** np.arange(max(1, min(_RANKS, len(own).bit_length() - 1))) for own in (low, high)]
    each = failure / (2 * sum(map(len, ranked)))
    found = []
    for ranks, own, other in zip(ranked, (low, -high), (high, -low), strict=True):
        thresholds = np.sort(own)[::-1][ranks - 1]
        beyond = (other[:, None] > thresholds).sum(axis=0)
        found.append(
            (lower_proportion(beyond, len(other), each), upper_proportion(ranks - 1, len(own), each))
        )
    (true, false), (rejected, missed) = found
    return np.concatenate([true, 1.0 - missed]), np.concatenate([false, 1.0 - rejected])


def noncentral_tail(t: float, freedom: int, shift: float) -> float:
    """Pr[T >= t] of the noncentral t law, by averaging over the variance: exact to about 1e-6."""
    return float(ndtr(shift - t * _deviations(freedom)).mean())


def noncentrality_bound(t: float, freedom: int, confidence: float) -> float:
    """Lower confidence bound on the shift of a noncentral t law that gave the statistic t."""
    reach = 10.0 + 10.0 * abs(t) / math.sqrt(freedom)
    return float(
        scipy.optimize.brentq(
            lambda shift: noncentral_tail(t, freedom, shift) - (1.0 - confidence),
            t - reach,
            t + reach,
            xtol=1e-9,
        )
    )


@lru_cache(maxsize=256)
def _deviations(freedom: int) -> Array:
    """Sample standard deviations at 4,000 equally likely points."""
    points = (np.arange(4000) + 0.5) / 4000
    return np.asarray(np.sqrt(scipy.stats.chi2.ppf(points, freedom) / freedom))


def _checked(without: ArrayLike, with_canary: ArrayLike) -> tuple[Array, Array]:
    return finite_array("without", without), finite_array("with_canary", with_canary)
