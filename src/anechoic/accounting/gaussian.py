"""The exact Gaussian mechanism: (epsilon, delta) of a mu-GDP release, rounded towards privacy.

A release of x + N(0, s^2 I) with l2-sensitivity D is mu-GDP with mu = D / s (monograph, Section 1.1).
Adaptivity does not change it (Theorem 1.11).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from scipy.special import log_ndtr

from anechoic._validate import LARGEST, fraction, positive_float, real_number

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

#: From this epsilon on amplification is not accounted: nothing is private there.
UNSAMPLED_FROM = 1e5

# Units in the last place by which each logarithm of `gaussian_delta` may be off (scipy: a few).
_ULPS = 4 * 2.3e-16
# From this mu, and this sqrt(epsilon), on mu / 2 - epsilon / mu is lost in rounding. Delta is below the least
# float from epsilon = mu^2 / 2 (1 + _BEYOND) on: Phi(-mu _BEYOND / 2) is, where mu _BEYOND is 100.
_EXACT_UP_TO, _BEYOND = 1e14, 1e-12


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Return the smallest delta for which a mu-GDP Gaussian release is (epsilon, delta)-DP, rounded up.

    It is $Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)$ (Balle and Wang 2018).

    Args:
        epsilon: >= 0.
        mu: > 0.

    Raises:
        ValueError: if an argument is out of range.
    """
    epsilon, mu = real_number("epsilon", epsilon), positive_float("mu", mu)
    if not 0.0 <= epsilon < math.inf:
        raise ValueError(f"epsilon={epsilon} must be finite and at least 0.")
    return hockey_stick(epsilon, mu)


def hockey_stick(epsilon: float, mu: float) -> float:
    """The same at any finite epsilon, below 0 too, for proofs that come there; no argument is checked."""
    if mu > _EXACT_UP_TO or epsilon > _EXACT_UP_TO**2:
        return 1.0 if epsilon < 0.5 * mu * mu * (1 + _BEYOND) else math.ulp(0.0)
    upper = float(log_ndtr(mu / 2 - epsilon / mu))
    if upper == -math.inf:
        return math.ulp(0.0)
    lower = float(log_ndtr(-mu / 2 - epsilon / mu)) + epsilon
    slack = _ULPS * (2.0 + abs(upper) + abs(lower) + epsilon)
    return min(1.0, math.exp(upper) * (max(0.0, -math.expm1(min(lower - upper, 0.0))) + slack))


def gaussian_epsilon(delta: float, mu: float) -> float:
    """Return the least epsilon >= 0 for which a mu-GDP Gaussian release is (epsilon, delta)-DP, rounded up.

    Args:
        delta: in (0, 1).
        mu: > 0.

    Raises:
        ValueError: if an argument is out of range.
    """
    delta, mu = fraction("delta", delta), positive_float("mu", mu)
    if hockey_stick(0.0, mu) <= delta:
        return 0.0
    if mu > LARGEST:  # epsilon is about mu^2 / 2
        return math.inf
    high = 1.0
    while hockey_stick(high, mu) > delta:
        high *= 2
    return _smallest(lambda epsilon: hockey_stick(epsilon, mu) <= delta, 0.0, high)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu for which a mu-GDP Gaussian release is (epsilon, delta)-DP, rounded down.

    Args:
        epsilon: > 0.
        delta: in (0, 1).

    Raises:
        ValueError: if an argument is out of range, or both so small that mu is below the range of floats.
    """
    epsilon, delta = positive_float("epsilon", epsilon), fraction("delta", delta)
    # search over s = 1 / mu, the noise multiplier: more noise is safe
    high = 1.0
    while hockey_stick(epsilon, 1.0 / high) > delta:
        high *= 2
        if math.isinf(high):
            raise ValueError(
                f"epsilon={epsilon} and delta={delta} need noise beyond the range of floats:"
                " choose larger ones."
            )
    low = high / 2
    while hockey_stick(epsilon, 1.0 / low) <= delta:
        low /= 2
    mu = 1.0 / _smallest(lambda s: hockey_stick(epsilon, 1.0 / s) <= delta, low, high)
    while hockey_stick(epsilon, mu) > delta:
        mu = math.nextafter(mu, 0.0)
    return mu


def _smallest(holds, low: float, high: float) -> float:  # type: ignore[no-untyped-def]
    """Smallest double found in (low, high] at which the monotone condition `holds`; it holds at `high`."""
    for _ in range(1100):  # more halvings than there are between any two doubles
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def gaussian_event(noise_multiplier: float, *, rate: float = 1.0, compositions: int = 1) -> DpEvent:
    """Return the event of Gaussian releases, each of a Poisson sample.

    Args:
        noise_multiplier: noise std over the sensitivity of one record, not doubled for replace-one.
        rate: sampling probability, in (0, 1].
        compositions: how often, >= 1.
    """
    from dp_accounting import dp_event

    event: DpEvent = dp_event.GaussianDpEvent(noise_multiplier)
    if rate < 1.0:
        event = dp_event.PoissonSampledDpEvent(rate, event)
    return event if compositions == 1 else dp_event.SelfComposedDpEvent(event, compositions)
