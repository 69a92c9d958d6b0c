"""Amplification by (cyclic) Poisson sampling, through privacy loss distributions.

Under cyclic Poisson sampling with b groups and a strategy of at most b bands, each group touches
disjoint rows of C G + Z, so the run is no less private than ceil(n / b) adaptive compositions of
one Poisson-sampled Gaussian at rate B b / N, whose noise multiplier is the noise std over the
largest column norm of C (monograph, Theorem 3.21). Poisson sampling with C = I is b = 1.

One release is discretised and composed by `sampled_gaussian` and `composition` of `loss_distributions`.
Connecting the dots of a grid of width h adds h^2 / 6 or so to the variance of each loss, whence the noise
multiplier comes out too large by about (h / std of the loss)^2 / 12 (relative).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from anechoic._validate import fraction, one_of, positive_float, positive_int, real_number
from anechoic.accounting.gaussian import UNSAMPLED_FROM, gaussian_epsilon, gaussian_mu
from anechoic.accounting.loss_distributions import sampled_gaussian
from anechoic.accounting.loss_distributions.composition import PrivacyLosses, direction_epsilon
from anechoic.accounting.search import least_noise

ADJACENCIES = ("zero_out", "replace_one", "add_or_remove")
#: The widest grid of privacy losses, and the epsilon from which it is fine enough. The estimate is
#: pessimistic on every grid. `FINENESS` makes it narrower where many releases share epsilon among them.
INTERVALS = ((10.0, 3.3e4), (1.0, 3.3e3), (1e-1, 330.0), (1e-2, 33.0), (1e-3, 3.3), (1e-4, 0.07), (1e-5, 0.0))
#: Width of the grid in standard deviations of the loss of one release, at most.
FINENESS = 0.015
_MOST_POINTS = 2**16  # of the grid of one release by this rule, or in units of the root of the releases
_MOST_BY_RELEASES = 2000
MOST_COMPOSED = 2**21  # points of the composed loss, of which about WINDOW standard deviations are kept
WINDOW = 24.0
ROUNDING = 1e-12  # relative, of the probability of taking part at all
_TIGHT = 8e-5  # a noise multiplier is good where its epsilon is as near as this to the one asked for


def poisson_epsilon(
    delta: float, noise_multiplier: float, rate: float, compositions: int, *, adjacency: str = "zero_out"
) -> float:
    """Return an upper bound on epsilon of composed Poisson-sampled Gaussians (pessimistic PLD).

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
    one_of("adjacency", adjacency, ADJACENCIES)
    return sampled_epsilon(delta, noise_multiplier, rate, compositions, adjacency=adjacency)


def sampled_epsilon(
    delta: float, noise_multiplier: float, rate: float, compositions: int, *, adjacency: str
) -> float:
    """`poisson_epsilon`, also by the other adjacencies of `sampled_gaussian_losses`."""
    delta = fraction("delta", delta)
    noise_multiplier = positive_float("noise_multiplier", noise_multiplier)
    compositions, rate = positive_int("compositions", compositions), sampling_rate(rate)
    if taking_part(rate, compositions) <= delta:
        return 0.0  # who takes part in nothing is not seen: the two laws have that much in common
    unsampled = epsilon = gaussian_epsilon(delta, _unsampled_mu(noise_multiplier, compositions, adjacency))
    if rate == 1.0:
        return unsampled
    tail = sampled_gaussian.log_tail(delta, compositions)
    _, reach = sampled_gaussian.loss_moments(noise_multiplier, rate, adjacency, tail)
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


def noise_guess(epsilon: float, delta: float, rate: float, compositions: int, *, adjacency: str) -> float:
    """A noise multiplier to begin with, at most the one without sampling.

    In the limit of many releases a run is Gaussian with mu = rate sqrt(T (e^(1 / s^2) - 1)).
    """
    unsampled = unsampled_noise(epsilon, delta, compositions, adjacency=adjacency)
    if not 0 < rate < 1:
        return unsampled
    part = math.log(unsampled) + math.log(rate)  # log of rate sqrt(T) / mu
    return min(unsampled, math.exp(part if part > 15.0 else -0.5 * math.log(np.logaddexp(0.0, -2 * part))))


def unsampled_noise(epsilon: float, delta: float, compositions: int, *, adjacency: str) -> float:
    """The noise multiplier that is enough at any rate."""
    return _unsampled_mu(gaussian_mu(epsilon, delta), compositions, adjacency)


def taking_part(rate: float, compositions: int) -> float:
    """Probability of taking part in any release, rounded up."""
    absent = math.log1p(-rate) if rate < 1 else -math.inf
    return -math.expm1(compositions * absent) * (1 + ROUNDING)


def least_noise_from(
    guess: float, epsilon: float, delta: float, rate: float, compositions: int, *, adjacency: str
) -> float:
    """A noise multiplier at which `sampled_epsilon` is at most epsilon, searched from a guess.

    Raises:
        ValueError: if delta is at least the probability of taking part at all.
    """
    likely = taking_part(rate, compositions) if 0 < rate <= 1 else 1.0
    if likely <= delta:
        raise ValueError(
            f"delta={delta} is at least {likely:.12g}, the probability of taking part in any of"
            f" {compositions} releases at rate={rate}: any noise would do, and the guarantee would say"
            " nothing. Choose a smaller delta."
        )

    def epsilon_at(sigma: float) -> float:
        return sampled_epsilon(delta, sigma, rate, compositions, adjacency=adjacency)

    if epsilon >= UNSAMPLED_FROM:  # sampling is not accounted there
        unsampled = unsampled_noise(epsilon, delta, compositions, adjacency=adjacency)
        while epsilon_at(unsampled) > epsilon:  # by rounding
            unsampled *= 1 + 1e-12
        return unsampled
    return least_noise(epsilon_at, epsilon, guess, _TIGHT)


def sampling_rate(rate: float) -> float:
    """`rate`, if it lies in (0, 1].

    Raises:
        ValueError: if it does not.
    """
    number = real_number("rate", rate)
    if not 0 < number <= 1:
        raise ValueError(f"rate={rate!r} is a sampling probability and must lie in (0, 1].")
    return number


def _unsampled_mu(noise_multiplier: float, compositions: int, adjacency: str) -> float:
    return (2.0 if adjacency.startswith("replace_one") else 1.0) * math.sqrt(compositions) / noise_multiplier


def _pld_epsilon(
    delta: float, noise_multiplier: float, rate: float, compositions: int, adjacency: str, widest: float
) -> float:
    """Epsilon on a grid that is at most `widest` wide."""
    tail = sampled_gaussian.log_tail(delta, compositions)
    spread, reach = sampled_gaussian.loss_moments(noise_multiplier, rate, adjacency, tail)
    points = max(_MOST_POINTS, _MOST_BY_RELEASES * math.sqrt(compositions))
    fine, width = FINENESS * spread, widest
    if compositions > 1:
        width = max(fine, min(widest, max(fine, reach / points)))
    # the finest grid of a release with little noise would not fit: a coarser one is a bound too
    fewest = max(width, reach / sampled_gaussian.MOST_CELLS)
    width = max(fewest, WINDOW * spread * math.sqrt(compositions) / MOST_COMPOSED)
    return _composed(delta, noise_multiplier, rate, compositions, adjacency, width)


@lru_cache(maxsize=4096)
def _composed(
    delta: float, noise_multiplier: float, rate: float, compositions: int, adjacency: str, width: float
) -> float:
    tail = sampled_gaussian.log_tail(delta, compositions)
    laws = sampled_gaussian.sampled_gaussian_losses(noise_multiplier, rate, adjacency, width, tail)
    return max(direction_epsilon([(PrivacyLosses.of(width, *law), compositions)], delta) for law in laws)
