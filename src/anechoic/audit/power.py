"""Power of the tests of an audit, and how many canaries a given power takes.

An audit that finds nothing says something only with its power: the probability with which it would have
found a mechanism whose noise is smaller than claimed by a given factor.
"""

from __future__ import annotations

import numpy as np
import scipy

from anechoic._validate import fraction, positive_float, positive_int
from anechoic.audit.bounds import noncentral_tail

#: Most canaries that a search for their number goes to.
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


def canaries_needed(
    claimed: float, *, factor: float = 1.2, confidence: float = 0.95, power: float = 0.95
) -> int | None:
    """Canaries (half of them put in) with which `mu_by_fit` finds a true mu of factor * claimed with `power`.

    Returns:
        An even number, to within 2 %; None where it is above `MOST`.

    Raises:
        ValueError: if an argument is out of range.
    """
    mu, power = _factor(factor) * positive_float("claimed", claimed), fraction("power", power)
    high = 4
    while fit_power(mu, claimed, high, confidence=confidence) < power:
        high *= 2
        if high > MOST:
            return None
    low = high // 2
    while high - low > max(2, high // 50):
        middle = (low + high) // 4 * 2  # both are even, and 4 apart at least
        enough = fit_power(mu, claimed, middle, confidence=confidence) >= power
        low, high = (low, middle) if enough else (middle, high)
    return high


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


def _factor(factor: float) -> float:
    if positive_float("factor", factor) <= 1:
        raise ValueError(f"factor={factor!r} must exceed 1: it is how much noise is missing.")
    return float(factor)
