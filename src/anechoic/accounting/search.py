"""The least noise at which an accountant shows an epsilon, by few evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import scipy

_ATTEMPTS = 60
_LONGEST = 1.0  # step of log noise
_HIGHEST = 700.0  # log noise: e^709 is the largest float
_LEAST = 1e-300  # delta
_BITS = 33  # of a noise that was searched for


def least_noise(
    epsilon_at: Callable[[float], float], epsilon: float, guess: float, tolerance: float, slope: float = -1.0
) -> float:
    """Return a noise at which `epsilon_at` is at most `epsilon`, about `tolerance` above the least or less.

    Secants in log noise and log epsilon, held in a bracket. Epsilon falls about as fast as 1 / noise, or
    faster, so that noise is close where epsilon is.

    Args:
        epsilon_at: falls in the noise.
        epsilon: > 0.
        guess: a noise to begin with, > 0.
        tolerance: > 0.
        slope: of log epsilon by log noise near the guess, < 0.

    Raises:
        ValueError: if epsilon is not shown at any noise within the range of floats.
    """
    least, most = min(1e-12, 1e-3 * epsilon), max(1e12, 1e3 * epsilon)  # whose logarithms are taken
    low, high = -math.inf, math.inf  # logarithms; epsilon is shown at `high`
    x = math.log(guess)
    before: tuple[float, float] | None = None
    shown_at = lru_cache(lambda log_noise: epsilon_at(rounded_up(math.exp(log_noise))))
    for _ in range(_ATTEMPTS):
        excess = math.log(min(max(shown_at(x), least), most) / epsilon)
        low, high = (x, high) if excess > 0 else (low, x)
        if -tolerance <= excess <= 0 or high - low < tolerance / 8:
            break
        if before is not None and before[0] != x:
            slope = min(-0.5, (excess - before[1]) / (x - before[0]))
        before = (x, excess)
        step = -(tolerance / 4 + excess) / slope
        x += max(-_LONGEST, min(_LONGEST, step))
        if not low < x < high:
            x = 0.5 * (low + high)
    if math.isinf(high):
        high = low
    step = tolerance / 8
    while shown_at(high) > epsilon:
        high, step = high + step, 2 * step
        if high > _HIGHEST:
            raise ValueError(
                f"epsilon={epsilon} is not shown at any noise: choose a larger epsilon or delta."
            )
    return rounded_up(math.exp(high))


def rounded_up(noise: float) -> float:
    """Rounded up by at most 2e-10: elsewhere a search ends some 1e-15 apart, and a plan should not.

    What is rounded stays as it is, also by way of its logarithm.
    """
    mantissa, exponent = math.frexp(noise)
    return math.ldexp(math.ceil(mantissa * 2**_BITS - 1e-4), exponent - _BITS)


def smallest_epsilon(delta_at: Callable[[float], float], delta: float, high: float) -> float:
    """About the least epsilon in [0, high] at which `delta_at`, which falls, is at most delta.

    `high` is returned where `delta_at` does not say so: it is known from elsewhere.
    """

    @lru_cache  # the search comes back to its ends
    def excess(epsilon: float) -> float:
        return math.log(max(delta_at(epsilon), _LEAST) / delta)

    if excess(0.0) <= 0.0:
        return 0.0
    if excess(high) > 0.0:  # the bound that `high` comes from is the better one
        return high
    found = float(scipy.optimize.brentq(excess, 0.0, high, xtol=4e-11, rtol=4e-8))
    while excess(found) > 0.0:
        found += 8e-8 * max(found, 1e-3)
    return min(found, high)


def smallest(
    holds: Callable[[float], bool], low: float, high: float, tolerance: float, floor: float = 0.0
) -> float:
    """About the smallest argument at which a condition holds, on the side where it does: it holds at `high`.

    Args:
        holds: holds from some argument on.
        low, high: the ends.
        tolerance: relative, of what is returned, or of `floor` where that is more.
        floor: >= 0.
    """
    while high - low > tolerance * max(high, floor):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
