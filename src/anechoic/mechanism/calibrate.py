"""Calibration: from a strategy and an epsilon to the mechanism of least noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

from anechoic._patience import patience
from anechoic._validate import fraction, known_keywords, positive_float
from anechoic.accounting import Verified, gaussian_mu
from anechoic.accounting.accountant import Accounting, accountant_of, adjacency_factor
from anechoic.accounting.monte_carlo.verified import GROWTH
from anechoic.mechanism.compatibility import check_covered, check_strategy
from anechoic.mechanism.has_guarantee import HasGuarantee
from anechoic.mechanism.mechanism import Adjacency, Mechanism
from anechoic.noise.rounding.drift import before_drift
from anechoic.sampling.base import Sampling
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.strategies.base import Strategy

Made = TypeVar("Made", bound=HasGuarantee)


@known_keywords
@patience("calibrating the noise")
def calibrate(
    strategy: Strategy,
    *,
    sampling: Sampling | None = None,
    delta: float,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    clip_norm: float = 1.0,
    adjacency: Adjacency = "zero_out",
    unit: str = "example",
    accounting: Accounting | Literal["verified"] = "deterministic",
    grid_bits: int | None = None,
) -> Mechanism:
    """The mechanism of `strategy` with the least noise that gives (epsilon, delta), or with given noise.

    Unamplified the noise is exact to rounding; under (cyclic) Poisson sampling at most 1e-4 (relative) above
    the least, where epsilon is at least 1e-5. The result is checked: its epsilon is never above the one asked
    for.

    Args:
        strategy, sampling, clip_norm, adjacency, unit: see `Mechanism`.
        delta: in (0, 1).
        epsilon: > 0; give this or `noise_multiplier`.
        noise_multiplier: sigma, in units of the reference sensitivity, > 0.
        accounting: see `Mechanism`; "verified" is a `Verified` that fails with probability delta / 100,
            which takes minutes.
        grid_bits: see `Mechanism`.

    Raises:
        ValueError: without `sampling`; for an argument out of range; where not exactly one of the two is
            given; or where the samples of a `Verified` do not show epsilon.
        UnsupportedError: where no theorem covers the combination.
    """
    check_strategy(strategy)
    if sampling is None:
        raise ValueError(
            "sampling is missing: say how batches are formed, as sampling.FixedOrder or sampling.Poisson do."
            " Where somebody else forms them, or there is no training, promise how often"
            " one unit takes part: sampling.External(participation.Single(), batch_size=1, steps=n)."
        )
    asked, by_epsilon = check_goal(epsilon, noise_multiplier)
    delta = fraction("delta", delta)
    how: Accounting = Verified.within(delta) if accounting == "verified" else accounting
    check_covered(strategy, sampling, adjacency, how)

    def with_std(std: float) -> Mechanism:
        return Mechanism(strategy, sampling, std, clip_norm, adjacency, unit, delta, how, grid_bits)

    if not by_epsilon:
        return with_std(asked * with_std(1.0).reference_sensitivity)

    accountant = accountant_of(sampling, strategy, adjacency, how)
    if accountant is not None:
        inner, excess = before_drift(delta, with_std(1.0).drift)
        std = accountant.noise_std(asked - excess, inner)
    else:
        std = (
            adjacency_factor(adjacency)
            * sensitivity(strategy, sampling.participation).value
            / gaussian_mu(asked, delta)
        )
    if isinstance(how, Verified):
        for growth in GROWTH:  # each may fail with its own part of how.failure
            mechanism = with_std(std * growth)
            if mechanism.epsilon() <= asked:
                return mechanism
        raise ValueError(
            f"samples={how.samples} did not show epsilon={asked} at delta={delta} with up to"
            f" {GROWTH[-1]:g} times the estimated noise: give accounting=Verified(samples={4 * how.samples},"
            f" failure={how.failure:g})."
        )
    return with_proven_noise(with_std, std, asked)


def check_goal(epsilon: float | None, noise_multiplier: float | None) -> tuple[float, bool]:
    """The one of the two that is given, checked, and whether it is epsilon.

    Raises:
        ValueError: where not exactly one is given, or it is not > 0.
    """
    if (epsilon is None) == (noise_multiplier is None):
        raise ValueError(
            f"epsilon={epsilon}, noise_multiplier={noise_multiplier}: give exactly one of the two."
        )
    if noise_multiplier is not None:
        return positive_float("noise_multiplier", noise_multiplier), False
    return positive_float("epsilon", epsilon, remedy="Only infinitely much noise gives epsilon = 0."), True


def with_proven_noise(with_std: Callable[[float], Made], std: float, epsilon: float) -> Made:
    """The mechanism with noise `std`, or with the few roundings more at which its epsilon is at most that."""
    mechanism, excess = with_std(std), 1e-15
    while mechanism.epsilon() > epsilon:  # products of rounded numbers
        mechanism, excess = with_std(std * (1 + excess)), 2 * excess
    return mechanism
