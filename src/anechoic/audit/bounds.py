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


def epsilon_by_threshold(
    without: ArrayLike,
    with_canary: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    threshold: float | None = None,
) -> LowerBound:
    """Lower bound on epsilon at `delta`, in both directions, from one threshold on the scores.

    Args:
        without, with_canary: scores, shapes (m0,) and (m1,), in an order that does not depend on them.
        delta: in (0, 1).
        confidence: in (0, 1).
        threshold: fixed before seeing scores; None chooses it on every other score and uses the rest.

    Raises:
        ValueError: if an argument is out of range, or there are too few scores to split.
    """
    low, high = _checked(without, with_canary)
    delta, confidence = fraction("delta", delta), fraction("confidence", confidence)
    failure = (1.0 - confidence) / 2
    method = "Clopper-Pearson at one threshold; no assumption on the scores' law"
    if threshold is None:
        if min(len(low), len(high)) < 4:
            raise ValueError(
                f"{len(low)} and {len(high)} scores cannot be split in halves: take more canaries, or give"
                " a threshold."
            )
        threshold = _best_threshold(low[::2], high[::2], delta, failure)
        low, high = low[1::2], high[1::2]
        method = "Clopper-Pearson at a threshold chosen on the other half of the scores"
    true = lower_proportion(int((high > threshold).sum()), len(high), failure)
    false = upper_proportion(int((low > threshold).sum()), len(low), failure)
    return LowerBound(float(_epsilon(true, false, delta)), confidence, method)


def _epsilon(true: Array, false: Array, delta: float) -> Array:
    """The epsilon that rates of at least `true` and at most `false` show, whichever direction shows more."""
    with np.errstate(divide="ignore", invalid="ignore"):
        remove = np.log(np.maximum(true - delta, 0.0) / false)
        add = np.log(np.maximum(1.0 - false - delta, 0.0) / (1.0 - true))
    return np.maximum(0.0, np.fmax(remove, add))


def _best_threshold(low: Array, high: Array, delta: float, failure: float) -> float:
    found = np.unique(np.concatenate([low, high]))
    candidates = np.concatenate([[found[0] - 1.0], 0.5 * (found[1:] + found[:-1])])
    above = [
        len(scores) - np.searchsorted(np.sort(scores), candidates, side="right") for scores in (low, high)
    ]
    false = upper_proportion(np.arange(len(low) + 1), len(low), failure)[above[0]]
    true = lower_proportion(np.arange(len(high) + 1), len(high), failure)[above[1]]
    return float(candidates[int(np.argmax(_epsilon(true, false, delta)))])


def noncentral_tail(t: float, freedom: int, shift: float) -> float:
    """Pr[T >= t] of the noncentral t law, by averaging over the variance: exact to about 1e-6."""
    return float(ndtr(shift - t * _deviations(freedom)).mean())


def noncentrality_bound(t: float, freedom: int, confidence: float) -> float:
    """Lower confidence bound on the shift of a noncentral t law that gave the statistic t."""
    target = 1.0 - confidence
    deviations = _deviations(freedom)

    def excess(shift: float) -> float:
        tail = math.log(max(float(ndtr(shift - t * deviations).mean()), 1e-300))
        return tail - math.log(target)

    reach = 10.0 + 10.0 * abs(t) / math.sqrt(freedom)
    return float(scipy.optimize.brentq(excess, t - reach, t + reach, xtol=1e-9))


@lru_cache(maxsize=256)
def _deviations(freedom: int) -> Array:
    """Sample standard deviations at 4,000 equally likely points."""
    points = (np.arange(4000) + 0.5) / 4000
    return np.asarray(np.sqrt(scipy.stats.chi2.ppf(points, freedom) / freedom))


def _checked(without: ArrayLike, with_canary: ArrayLike) -> tuple[Array, Array]:
    return finite_array("without", without), finite_array("with_canary", with_canary)
