"""How much an audit can see: the power of its tests, and how many canaries or entries a given power takes.

An audit that finds nothing says something only with its power: the probability with which it would have
found a mechanism whose noise is smaller than claimed by a given factor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import scipy
from scipy.special import ndtr, ndtri

from anechoic._validate import Array, fraction, one_of, positive_float, positive_int
from anechoic.audit.bounds import epsilon_by_threshold, lower_proportion, noncentral_tail, upper_proportion
from anechoic.audit.draws import draw_test
from anechoic.audit.law import law_of
from anechoic.audit.ratios import likelihood_ratios
from anechoic.sampling.base import Sampling
from anechoic.strategies.base import Strategy

#: Scores of canaries left out and put in, from their number (of each), the lack of noise, and randomness.
Draw = Callable[[int, float, np.random.Generator], tuple[Array, Array]]
#: Most canaries, or entries, that a search for their number goes to.
MOST = 10**9


def fit_power(mu: float, claimed: float, canaries: int, *, confidence: float = 0.95) -> float:
    """Probability that `mu_by_fit` exceeds `claimed`, where mu is the truth; half the canaries are put in.

    Args:
        mu, claimed: > 0.
        canaries: >= 4, in and out together.
        confidence: of the bound.
    """
    mu, claimed = positive_float("mu", mu), positive_float("claimed", claimed)
    canaries = positive_int("canaries", canaries, minimum=4)
    freedom, spread = canaries - 2, np.sqrt(canaries) / 2
    critical = _critical(claimed * spread, freedom, fraction("confidence", confidence))
    return noncentral_tail(critical, freedom, mu * spread)


def threshold_power(mu: float, claimed: float, canaries: int, *, confidence: float = 0.95) -> float:
    """Probability that `mu_by_threshold`, at half the claimed mu, exceeds `claimed`, where mu is the truth.

    Args:
        mu, claimed: > 0.
        canaries: >= 2, in and out together, half of each.
        confidence: of the bound.
    """
    mu, claimed = positive_float("mu", mu), positive_float("claimed", claimed)
    half = positive_int("canaries", canaries, minimum=2) // 2
    failure = (1.0 - fraction("confidence", confidence)) / 2
    rates = float(ndtr(mu - claimed / 2)), float(ndtr(-claimed / 2))
    true, false = (_likely(rate, half) for rate in rates)
    reach = ndtri(lower_proportion(true, half, failure))
    limit = ndtri(upper_proportion(false, half, failure)) + claimed
    # for each count of false alarms, the least count of hits that shows a violation
    least = np.searchsorted(reach, limit, side="right")
    hits = np.append(scipy.stats.binom.sf(true - 1, half, rates[0]), 0.0)
    return float(np.clip((scipy.stats.binom.pmf(false, half, rates[1]) * hits[least]).sum(), 0.0, 1.0))


def canaries_needed(
    claimed: float,
    *,
    factor: float = 1.2,
    confidence: float = 0.95,
    power: float = 0.95,
    method: Literal["fit", "threshold"] = "fit",
) -> int | None:
    """Canaries (half of them put in) with which a true mu of factor * claimed is found with `power`.

    Returns:
        An even number, to within 2 %; None where no number suffices (a threshold shows at most what the
        claimed law leaves to be seen).

    Raises:
        ValueError: if an argument is out of range.
    """
    one_of("method", method, ("fit", "threshold"))
    found = fit_power if method == "fit" else threshold_power
    mu = _factor(factor) * positive_float("claimed", claimed)
    most = MOST if method == "fit" else 4_000_000
    return _least(lambda m: found(mu, claimed, m, confidence=confidence), fraction("power", power), most)


def scale_power(entries: int, *, factor: float = 1.2, failure: float = 0.05) -> float:
    """Probability that a two-sided chi-squared test over `entries` numbers finds a std that is 1/factor.

    Args:
        entries: >= 1.
        factor: > 1, claimed std over the true one.
        failure: level of the test.
    """
    entries, scale = positive_int("entries", entries), _factor(factor) ** 2
    failure = fraction("failure", failure)
    low, high = scipy.stats.chi2.ppf(failure / 2, entries), scipy.stats.chi2.isf(failure / 2, entries)
    return float(scipy.stats.chi2.cdf(low * scale, entries) + scipy.stats.chi2.sf(high * scale, entries))


def entries_needed(*, factor: float = 1.2, failure: float = 0.05, power: float = 0.95) -> int | None:
    """Noise entries (steps times coordinates) with which `scale_power` reaches `power`, to within 2 %."""
    return _least(lambda k: scale_power(k, factor=factor, failure=failure), fraction("power", power), MOST)


def epsilon_power(
    draw: Draw,
    *,
    claimed: float,
    delta: float,
    canaries: int,
    factor: float = 1.2,
    confidence: float = 0.95,
    repeats: int = 100,
    seed: int = 0,
) -> float:
    """Fraction of simulated audits in which `epsilon_by_threshold` exceeds `claimed`.

    Args:
        draw: scores of one audit, such as `functools.partial(draw_ratios, strategy, sampling, noise_std)`.
        claimed: epsilon at `delta`.
        delta: in (0, 1).
        canaries: >= 16, half of them put in.
        factor: > 0, how many times too small the noise is; 1 for the claimed mechanism itself.
        confidence: of the bound.
        repeats: simulated audits.
        seed: of the simulation.
    """
    rng = np.random.default_rng(seed)
    half = positive_int("canaries", canaries, minimum=16) // 2
    positive_float("factor", factor)
    found = 0
    for _ in range(positive_int("repeats", repeats)):
        without, with_canary = draw(half, factor, rng)
        bound = epsilon_by_threshold(without, with_canary, delta=delta, confidence=confidence)
        found += bound.value > claimed
    return found / repeats


def draw_gaussian(mu: float, half: int, factor: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Scores of `half` canaries left out and put in, without amplification."""
    return rng.standard_normal(half), factor * mu + rng.standard_normal(half)


def draw_ratios(
    strategy: Strategy,
    sampling: Sampling,
    noise_std: float,
    half: int,
    factor: float,
    rng: np.random.Generator,
) -> tuple[Array, Array]:
    """Log-likelihood ratios, by the claimed noise, of `half` canaries left out and put in."""
    pattern, possible = law_of(sampling).draw_units(2 * half, rng)
    pattern[:, :half] = False
    white = rng.standard_normal(pattern.shape) * (noise_std / factor)
    rows = strategy.correlate(white) + pattern
    scores = likelihood_ratios(strategy, sampling, rows, noise_std, possible=possible)
    return scores[:half], scores[half:]


def sampling_power(
    sampling: Sampling, canaries: int, *, failure: float, repeats: int = 40, seed: int = 0
) -> dict[str, float]:
    """Fraction of simulated runs in which `draw_test` has a p-value below `failure`, by fault.

    Args:
        sampling: an amplified scheme.
        canaries: m >= 2.
        failure: level of the test.
        repeats: simulated runs of each fault.
        seed: of the simulation.
    """
    rng = np.random.default_rng(seed)
    count, failure = positive_int("canaries", canaries, minimum=2), fraction("failure", failure)
    repeats = positive_int("repeats", repeats)
    return {
        name: sum(draw_test(sampling, *fault(count, rng)).p_value < failure for _ in range(repeats)) / repeats
        for name, fault in law_of(sampling).faults().items()
    }


def _critical(shift: float, freedom: int, confidence: float) -> float:
    """The least t statistic whose lower bound on the shift exceeds `shift`."""
    # the spread of T under a given shift is about sqrt(1 + shift^2 / (2 freedom)), its tail heavier
    reach = 20.0 * np.sqrt(1.0 + shift**2 / (2.0 * freedom)) + 20.0 * (1.0 + shift) / freedom
    failure = 1.0 - confidence
    while noncentral_tail(shift + reach, freedom, shift) > failure:
        reach *= 2.0
    return float(
        scipy.optimize.brentq(
            lambda t: noncentral_tail(t, freedom, shift) - failure, shift - reach, shift + reach
        )
    )


def _likely(rate: float, trials: int) -> Array:
    """Counts that occur with more than negligible probability."""
    low, high = scipy.stats.binom.ppf([1e-9, 1 - 1e-9], trials, rate)
    return np.arange(max(0.0, low - 1), min(trials, high + 1) + 1)


def _least(power: Callable[[int], float], target: float, most: int) -> int | None:
    high = 4
    while power(high) < target:
        high *= 2
        if high > most:
            return None
    low = high // 2
    while high - low > max(2, high // 50):
        middle = (low + high) // 4 * 2
        if middle in (low, high):
            break
        low, high = (low, middle) if power(middle) >= target else (middle, high)
    return high


def _factor(factor: float) -> float:
    if positive_float("factor", factor) <= 1:
        raise ValueError(f"factor={factor!r} must exceed 1: it is how much noise is missing.")
    return float(factor)
