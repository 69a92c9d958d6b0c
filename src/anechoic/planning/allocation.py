"""The noise of random allocation for many candidates: by secants where the accountant bisects."""

from __future__ import annotations

import math
from functools import lru_cache

from anechoic.accounting.gaussian import gaussian_mu
from anechoic.accounting.least_noise import least_noise
from anechoic.accounting.poisson_search import poisson_noise_multiplier_estimate
from anechoic.accounting.random_allocation import LEAST_NOISE, random_allocation_epsilon

_TOLERANCE = 1e-4


@lru_cache(maxsize=4096)
def allocation_noise_multiplier(
    epsilon: float, delta: float, period: int, steps: int, tolerance: float = _TOLERANCE
) -> float:
    """A noise multiplier, within `tolerance` of the least, at which `random_allocation_epsilon` <= epsilon.

    Args:
        epsilon: > 0.
        delta: in (0, 1).
        period: steps in one epoch, >= 1.
        steps: n >= 1.
        tolerance: relative, > 0.
    """
    high = math.sqrt(-(-steps // period)) / gaussian_mu(epsilon, delta) * (1 + 1e-9)  # without sampling
    if period == 1 or high <= LEAST_NOISE:
        return high
    guess = poisson_noise_multiplier_estimate(epsilon, delta, 1 / period, steps)
    return min(
        high,
        least_noise(
            lambda sigma: random_allocation_epsilon(delta, sigma, period, steps), epsilon, guess, tolerance
        ),
    )
