"""Random allocation: each example takes part in one of t steps, drawn uniformly, in every epoch.

For independent noise (C diagonal) one epoch is dominated by P = (1/t) sum_i N(e_i, s^2 I) against
Q = N(0, s^2 I) (arXiv 2502.08202), whose likelihood ratio is the mean of t independent log-normal ones:
`accounting.loss_distributions.likelihood_ratio` sums them in convex order. Epochs compose: positions are new.
Feldman and Shenfeld (arXiv 2602.17284) compute the same law of losses, for any mechanism.
"""

from __future__ import annotations

import math
from functools import lru_cache, partial, reduce

from anechoic._validate import fraction, positive_float, positive_int
from anechoic.accounting.gaussian import UNSAMPLED_FROM, gaussian_epsilon, gaussian_mu
from anechoic.accounting.loss_distributions.likelihood_ratio import (
    TAIL,
    Ratio,
    gaussian_ratio,
    product_of,
    sum_of,
    tail_of,
)
from anechoic.accounting.poisson.search import poisson_noise_multiplier_estimate
from anechoic.accounting.search import least_noise, smallest_epsilon

#: Ratios of less noise than this are not summed: the bound without sampling is returned.
LEAST_NOISE = 0.05
#: Steps beyond which float64 does not hold the sum of their ratios: the same bound is returned.
MOST = 10**9


def random_allocation_epsilon(delta: float, noise_multiplier: float, period: int, steps: int) -> float:
    """An upper bound on epsilon of `steps` releases in epochs of `period` steps, zero-out adjacency.

    Args:
        delta: in (0, 1).
        noise_multiplier: noise std over the largest column norm, > 0.
        period: steps in one epoch, >= 1.
        steps: n, >= 1; the last epoch may be incomplete.

    Raises:
        ValueError: if an argument is out of range.
    """
    delta = fraction("delta", delta)
    noise_multiplier = positive_float("noise_multiplier", noise_multiplier)
    period, steps = positive_int("period", period), positive_int("steps", steps)
    if steps <= delta * period:
        return 0.0  # who takes part in nothing is not seen: the two laws have that much in common
    plain = gaussian_epsilon(delta, math.sqrt(-(-steps // period)) / noise_multiplier)
    summed = period > 1 and max(period, steps) <= MOST and noise_multiplier >= LEAST_NOISE
    if not summed or plain == 0.0 or plain >= UNSAMPLED_FROM * period:
        return plain
    ratio = allocation_ratio(noise_multiplier, period, steps, tail_of(delta))
    return smallest_epsilon(ratio.delta, delta, plain)


@lru_cache(maxsize=4096)
def random_allocation_noise_multiplier(
    epsilon: float, delta: float, period: int, steps: int, tolerance: float = 1e-5
) -> float:
    """A noise multiplier at which `random_allocation_epsilon` <= epsilon, within `tolerance` of the least.

    Raises:
        ValueError: if an argument is out of range.
    """
    epsilon, delta = positive_float("epsilon", epsilon), fraction("delta", delta)
    period, steps = positive_int("period", period), positive_int("steps", steps)
    high = math.sqrt(-(-steps // period)) / gaussian_mu(epsilon, delta) * (1 + 1e-9)  # without sampling
    if period == 1 or high <= LEAST_NOISE or max(period, steps) > MOST:
        return high
    guess = poisson_noise_multiplier_estimate(epsilon, delta, 1 / period, steps)
    bound = partial(random_allocation_epsilon, delta, period=period, steps=steps)
    return min(high, least_noise(bound, epsilon, guess, tolerance))


@lru_cache(maxsize=64)
def one_of(count: int, noise_multiplier: float, made: int | None = None, tail: float = TAIL) -> Ratio:
    """The ratio of one participation in one of `count` steps, of which the first `made` are released."""
    made = count if made is None else made
    total = sum_of(gaussian_ratio(noise_multiplier, tail), made)
    return total.over(count) if made == count else total.among(made, count)


@lru_cache(maxsize=64)
def allocation_ratio(noise_multiplier: float, period: int, steps: int, tail: float = TAIL) -> Ratio:
    """The ratio of `steps` releases in epochs of `period` steps."""
    whole, rest = divmod(steps, period)
    epochs = [product_of(one_of(period, noise_multiplier, tail=tail), whole)] if whole else []
    last = [one_of(period, noise_multiplier, rest, tail)] if rest else []
    return reduce(Ratio.times, epochs + last)
