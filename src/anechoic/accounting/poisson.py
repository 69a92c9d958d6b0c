"""Amplification by (cyclic) Poisson sampling, through privacy loss distributions.

Under cyclic Poisson sampling with b groups and a strategy of at most b bands, each group touches
disjoint rows of C G + Z, so the run is no less private than ceil(n / b) adaptive compositions of
one Poisson-sampled Gaussian at rate B b / N, whose noise multiplier is the noise std over the
largest column norm of C (monograph, Theorem 3.21). Poisson sampling with C = I is b = 1.

One release is discretised by `accounting.sampled_gaussian`, in both directions, and composed by
`accounting.composed`.
Connecting the dots of a grid of width h adds h^2 / 6 or so to the variance of each loss, whence the noise
multiplier comes out too large by about (h / std of the loss)^2 / 12 (relative).
"""

from __future__ import annotations

import math
from functools import lru_cache

from anechoic._validate import fraction, positive_float, positive_int
from anechoic.accounting.composed import composed_epsilon
from anechoic.accounting.gaussian import gaussian_epsilon, gaussian_mu
from anechoic.accounting.least_noise import least_noise
from anechoic.accounting.sampled_gaussian import MOST_CELLS, loss_moments, sampled_gaussian_pld

#: The widest grid of privacy losses, and the epsilon from which it is fine enough. The estimate is
#: pessimistic on every grid. `FINENESS` makes it narrower where many releases share epsilon among them.
INTERVALS = (
    (10.0, 3.3e4),
    (1.0, 3.3e3),
    (1e-1, 330.0),
    (1e-2, 33.0),
    (1e-3, 3.3),
    (1e-4, 0.07),
    (1e-5, 0.0),
)
#: From this epsilon on the bound without sampling is given: it is valid, and nothing is private there.
UNSAMPLED_FROM = 1e5
#: Width of the grid in standard deviations of the loss of one release, at most.
FINENESS = 0.015
_MOST_POINTS = 2**16  # of the grid of one release by this rule, or in units of the root of the releases
_MOST_BY_RELEASES = 2000
_ROUNDING = 1e-12  # relative, of the probability of taking part at all
_TIGHT = 8e-5  # a noise multiplier is good where its epsilon is as near as this to the one asked for


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
    if -math.expm1(compositions * _log_absent(rate)) * (1 + _ROUNDING) <= delta:
        return 0.0  # who takes part in nothing is not seen: the two laws have that much in common
    unsampled = epsilon = gaussian_epsilon(delta, _unsampled_mu(noise_multiplier, compositions, adjacency))
    if rate == 1.0:
        return unsampled
    _, reach = loss_moments(noise_multiplier, rate, adjacency)
    if reach > _MOST_POINTS * INTERVALS[0][0]:  # next to no noise
        return unsampled
    for interval, enough in INTERVALS:
        if epsilon < enough:  # too coarse, as sampling only lowers epsilon
            continue
        found = _pld_epsilon(delta, noise_multiplier, rate, compositions, adjacency, interval)
        epsilon = min(epsilon, found)
        if epsilon >= enough or epsilon == 0.0:
            break
    return unsampled if epsilon >= UNSAMPLED_FROM else epsilon


def poisson_noise_multiplier(
    epsilon: float, delta: float, rate: float, compositions: int, *, adjacency: str = "zero_out"
) -> float:
    """A noise multiplier at which `poisson_epsilon` <= epsilon, at most 1e-4 (relative) above the least.

    The least is that of the exact composition; where the loss of one release would need more than 2^16 points
    (large losses at a tiny rate) the grid is wider and the excess may be larger.

    Raises:
        ValueError: if an argument is out of range.
    """
    epsilon, delta = positive_float("epsilon", epsilon), fraction("delta", delta)
    compositions = positive_int("compositions", compositions)
    mu = gaussian_mu(epsilon, delta) / (2.0 if adjacency == "replace_one" else 1.0)
    unsampled = math.sqrt(compositions) / mu
    if not 0 < rate < 1:
        guess = unsampled
    else:  # in the limit of many releases a run is Gaussian with mu = rate sqrt(T (e^(1/s^2) - 1))
        guess = min(unsampled, 1.0 / math.sqrt(math.log1p((mu / rate) ** 2 / compositions)))
    return least_noise_from(guess, epsilon, delta, rate, compositions, adjacency=adjacency)


def least_noise_from(
    guess: float, epsilon: float, delta: float, rate: float, compositions: int, *, adjacency: str
) -> float:
    """`poisson_noise_multiplier`, searched from a guess."""

    def epsilon_at(sigma: float) -> float:
        return poisson_epsilon(delta, sigma, rate, compositions, adjacency=adjacency)

    return least_noise(epsilon_at, epsilon, guess, _TIGHT)


def _log_absent(rate: float) -> float:
    """log of the probability of not taking part in one release."""
    return math.log1p(-rate) if rate < 1 else -math.inf


def _unsampled_mu(noise_multiplier: float, compositions: int, adjacency: str) -> float:
    return (2.0 if adjacency == "replace_one" else 1.0) * math.sqrt(compositions) / noise_multiplier


def _pld_epsilon(
    delta: float, noise_multiplier: float, rate: float, compositions: int, adjacency: str, widest: float
) -> float:
    """Epsilon on a grid that is at most `widest` wide."""
    spread, reach = loss_moments(noise_multiplier, rate, adjacency)
    points = max(_MOST_POINTS, _MOST_BY_RELEASES * math.sqrt(compositions))
    width = min(widest, max(FINENESS * spread, reach / points)) if compositions > 1 else widest
    # the finest grid of a release with little noise would not fit: a coarser one is a bound too
    width = max(width, reach / MOST_CELLS)
    return _composed(delta, noise_multiplier, rate, compositions, adjacency, width)


@lru_cache(maxsize=4096)
def _composed(
    delta: float, noise_multiplier: float, rate: float, compositions: int, adjacency: str, width: float
) -> float:
    one = sampled_gaussian_pld(noise_multiplier, rate, adjacency, width)
    return composed_epsilon([(one, compositions)], delta)
