"""Amplification by (cyclic) Poisson sampling, through dp-accounting's privacy loss distributions.

Under cyclic Poisson sampling with b groups and a strategy of at most b bands, each group touches
disjoint rows of C G + Z, so the run is no less private than ceil(n / b) adaptive compositions of
one Poisson-sampled Gaussian at rate B b / N, whose noise multiplier is the noise std over the
largest column norm of C (monograph, Theorem 3.21). Poisson sampling with C = I is b = 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from anechoic._validate import fraction, positive_float, positive_int
from anechoic.accounting.gaussian import gaussian_epsilon

#: Widths of the grid of privacy losses, and the epsilon from which each is fine enough. The estimate is
#: pessimistic on every grid; on these it lies within about 1e-4 (relative) of the limit.
INTERVALS = (
    (10.0, 3.3e4),
    (1.0, 3.3e3),
    (1e-1, 330.0),
    (1e-2, 33.0),
    (1e-3, 3.3),
    (1e-4, 0.07),
    (1e-5, 0.0),
)
#: From this epsilon on the bound without sampling is returned: it is valid, and nothing is private there.
UNSAMPLED_FROM = 1e5

_RELATIONS = {
    "zero_out": "REPLACE_SPECIAL",
    "replace_one": "REPLACE_ONE",
    "add_or_remove": "ADD_OR_REMOVE_ONE",
}


def poisson_epsilon(
    delta: float, noise_multiplier: float, rate: float, compositions: int, *, adjacency: str = "zero_out"
) -> float:
    """An upper bound on epsilon of composed Poisson-sampled Gaussians (pessimistic PLD).

    Args:
        delta: in (0, 1).
        noise_multiplier: noise std over the sensitivity of one record's contribution (not doubled for
            replace-one: dp-accounting's relation accounts for it), > 0.
        rate: sampling probability in (0, 1].
        compositions: >= 1.
        adjacency: "zero_out", "replace_one" or "add_or_remove".

    Raises:
        ValueError: if an argument is out of range.
    """
    delta = fraction("delta", delta)
    noise_multiplier = positive_float("noise_multiplier", noise_multiplier)
    compositions = positive_int("compositions", compositions)
    if not 0 < rate <= 1:
        raise ValueError(f"rate={rate!r} is a sampling probability and must lie in (0, 1].")
    epsilon = gaussian_epsilon(delta, _unsampled_mu(noise_multiplier, compositions, adjacency))
    if rate == 1.0 or epsilon >= UNSAMPLED_FROM:
        return epsilon
    for interval, enough in INTERVALS:
        if epsilon < enough:  # too coarse, as sampling only lowers epsilon
            continue
        found = _pld_epsilon(delta, noise_multiplier, rate, compositions, adjacency, interval)
        epsilon = min(epsilon, found)
        if epsilon >= enough:
            break
    return epsilon


def poisson_noise_multiplier(
    epsilon: float, delta: float, rate: float, compositions: int, *, adjacency: str = "zero_out"
) -> float:
    """A noise multiplier, about 1e-4 (relative) above the least, at which `poisson_epsilon` <= epsilon.

    Raises:
        ValueError: if an argument is out of range.
    """
    epsilon = positive_float("epsilon", epsilon)

    def coarse(s: float) -> float:
        width = max(min(1e-3, epsilon / 100), epsilon / 3300)
        return _pld_epsilon(delta, s, rate, compositions, adjacency, width)

    def fine(s: float) -> float:
        return poisson_epsilon(delta, s, rate, compositions, adjacency=adjacency)

    near = _crossing(fine if rate == 1.0 else coarse, epsilon, low=0.5, high=1.0, tolerance=1e-4)
    sigma = _crossing(fine, epsilon, low=near * 0.998, high=near * 1.0005, tolerance=2e-5)
    while fine(sigma) > epsilon:
        sigma *= 1 + 2e-5
    return sigma


def _crossing(
    function: Callable[[float], float], target: float, *, low: float, high: float, tolerance: float
) -> float:
    """Where the falling `function` of s crosses `target`, to a relative `tolerance`; the bracket may grow."""
    from scipy.optimize import brentq

    def excess(log_s: float) -> float:
        value = function(math.exp(log_s))
        return math.log(min(max(value, 1e-12), 1e12) / target)

    ratio = high / low
    while excess(math.log(high)) > 0:
        low, high = high, high * ratio
        ratio *= 2
    while excess(math.log(low)) <= 0:
        low, high = low / ratio, low
        ratio *= 2
    return math.exp(brentq(excess, math.log(low), math.log(high), xtol=tolerance, rtol=1e-14))


def _unsampled_mu(noise_multiplier: float, compositions: int, adjacency: str) -> float:
    return (2.0 if adjacency == "replace_one" else 1.0) * math.sqrt(compositions) / noise_multiplier


@lru_cache(maxsize=4096)
def _pld_epsilon(
    delta: float, noise_multiplier: float, rate: float, compositions: int, adjacency: str, interval: float
) -> float:
    import dp_accounting
    from dp_accounting.pld import privacy_loss_distribution

    pld = privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=noise_multiplier,
        pessimistic_estimate=True,
        value_discretization_interval=interval,
        sampling_prob=rate,
        neighboring_relation=getattr(dp_accounting.NeighboringRelation, _RELATIONS[adjacency]),
    )
    return float(pld.self_compose(compositions).get_epsilon_for_delta(delta))
