"""The exact Gaussian mechanism: (epsilon, delta) of a mu-GDP release, rounded towards privacy.

A release of x + N(0, s^2 I) with l2-sensitivity D is mu-GDP with mu = D / s (monograph, Section 1.1).
Adaptivity does not change it (Theorem 1.11).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from scipy.special import log_ndtr

from anechoic._validate import LARGEST, fraction, one_of, positive_float, real_number
from anechoic.accounting.loss_distributions.sampled_gaussian import sampled_gaussian_pld
from anechoic.errors import UnsupportedError

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent


#: From this epsilon on amplification is not accounted: nothing is private there.
UNSAMPLED_FROM = 1e5

# Units in the last place by which each logarithm of `gaussian_delta` may be off (scipy: a few).
_ULPS = 4 * 2.3e-16
# From this mu, and this sqrt(epsilon), on mu / 2 - epsilon / mu is lost in rounding. Delta is below the least
# float from epsilon = mu^2 / 2 (1 + _BEYOND) on: Phi(-mu _BEYOND / 2) is, where mu _BEYOND is 100.
_EXACT_UP_TO, _BEYOND = 1e14, 1e-12

#: Our adjacency, and the relation of `dp_accounting` that it is.
RELATIONS = {
    "zero_out": "REPLACE_SPECIAL",
    "replace_one": "REPLACE_ONE",
    "add_or_remove": "ADD_OR_REMOVE_ONE",
}


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


def epsilon_of(event: DpEvent, delta: float, *, adjacency: str = "add_or_remove") -> float:
    """Bound epsilon of an event of `dp_accounting`, by its privacy loss distributions, rounded up.

    Args:
        event: of Gaussian, Laplace, sampled and composed mechanisms, as `Mechanism.dp_event` returns. In a
            `SampledWithoutReplacementDpEvent` noise is over how far replacing one record moves the sum, as
            `RdpAccountant` has it.
        delta: in (0, 1).
        adjacency: "zero_out", "replace_one" or "add_or_remove".

    Raises:
        ValueError: for an argument out of range.
        UnsupportedError: for an event of which no privacy loss distribution is known.

    Example:
        >>> import dp_accounting
        >>> from anechoic.accounting import epsilon_of
        >>> epsilon_of(dp_accounting.GaussianDpEvent(1.0), 1e-5) < 4.38
        True
    """
    from dp_accounting import NeighboringRelation, UnsupportedEventError, dp_event
    from dp_accounting.pld import PLDAccountant

    class WithFixedSize(PLDAccountant):  # type: ignore[misc]
        def _maybe_compose(self, event: DpEvent, count: int, do_compose: bool) -> Any:
            fixed = isinstance(event, dp_event.SampledWithoutReplacementDpEvent) and isinstance(
                event.event, dp_event.GaussianDpEvent
            )
            if not fixed or adjacency == "add_or_remove":
                return super()._maybe_compose(event, count, do_compose)
            sigma, rate = 2.0 * event.event.noise_multiplier, event.sample_size / event.source_dataset_size
            if sigma == 0.0 or not rate < 1.0:
                return super()._maybe_compose(dp_event.GaussianDpEvent(sigma), count, do_compose)
            if do_compose:
                width = self._value_discretization_interval
                one = sampled_gaussian_pld(sigma, rate, f"{adjacency}_fixed_size", width)
                self._pld = self._pld.compose(one.self_compose(count))  # type: ignore[has-type]
            return None

    delta = fraction("delta", delta)
    relation = RELATIONS[one_of("adjacency", adjacency, tuple(RELATIONS))]
    accountant = WithFixedSize(NeighboringRelation[relation])
    try:
        return float(accountant.compose(event).get_epsilon(delta))
    except UnsupportedEventError as error:
        raise UnsupportedError(
            f"no privacy loss distribution is known here: {error}; batches without replacement have one under"
            " adjacency='zero_out' and 'replace_one'."
        ) from error
