"""Composed Poisson-sampled Gaussians that are not all alike: noise and rates that change in a run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from anechoic._validate import fraction, one_of, positive_float, positive_int
from anechoic.accounting.gaussian import UNSAMPLED_FROM, gaussian_epsilon
from anechoic.accounting.laws.composed import composed_epsilon
from anechoic.accounting.laws.sampled_gaussian import (
    MOST_CELLS,
    gaussian_pld,
    loss_moments,
    sampled_gaussian_pld,
)
from anechoic.accounting.poisson.epsilon import (
    ADJACENCIES,
    FINENESS,
    INTERVALS,
    MOST_COMPOSED,
    ROUNDING,
    WINDOW,
    log_absent,
    sampling_rate,
)


def compose_sampled(
    releases: Sequence[tuple[float, float, int]], delta: float, *, adjacency: str = "zero_out"
) -> float:
    """An upper bound on epsilon of Poisson-sampled Gaussians of several kinds, composed (pessimistic PLD).

    For schemes with two rates, noise that is lowered, or several trainings on the same data. Which records a
    release samples is drawn anew, and secret; noise is independent. Mechanisms are composed by
    `anechoic.compose`.

    Args:
        releases: (noise multiplier > 0, sampling probability in (0, 1], how often >= 1) of each kind. The
            noise multiplier is not doubled for replace-one, as in `poisson_epsilon`.
        delta: in (0, 1).
        adjacency: "zero_out", "replace_one" or "add_or_remove".

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> from anechoic.accounting import compose_sampled
        >>> round(compose_sampled([(1.0, 0.01, 500), (0.8, 0.02, 100)], 1e-5), 2)
        2.84
    """
    delta = fraction("delta", delta)
    one_of("adjacency", adjacency, ADJACENCIES)
    if not releases:
        raise ValueError("releases is empty: give (noise multiplier, rate, how often) of each kind.")
    kinds = [_checked(*kind) for kind in releases]
    doubled = 2.0 if adjacency == "replace_one" else 1.0
    whole = sum(count / sigma**2 for sigma, rate, count in kinds if rate == 1.0)
    mu = doubled * math.sqrt(sum(count / sigma**2 for sigma, _, count in kinds))
    epsilon = unsampled = gaussian_epsilon(delta, mu)
    sampled = [kind for kind in kinds if kind[1] < 1.0]
    absent = sum(count * log_absent(rate) for _, rate, count in kinds)
    if -math.expm1(absent) * (1 + ROUNDING) <= delta:
        return 0.0  # who takes part in nothing is not seen
    moments = [loss_moments(sigma, rate, adjacency) for sigma, rate, _ in sampled]
    spread = math.sqrt(sum(kind[2] * std**2 for kind, (std, _) in zip(sampled, moments, strict=True)))
    reach = max((reach for _, reach in moments), default=0.0)
    if not sampled or reach > MOST_CELLS * INTERVALS[0][0]:  # no samples, or next to no noise
        return unsampled
    fine = FINENESS * min(std for std, _ in moments)
    finest = max(reach / MOST_CELLS, WINDOW * (spread + doubled * math.sqrt(whole)) / MOST_COMPOSED)
    narrowest = math.inf
    for interval, enough in INTERVALS:
        width = max(min(interval, fine), finest)
        if epsilon < enough or width >= narrowest:  # too coarse, as sampling only lowers epsilon; or done
            continue
        narrowest = width
        pairs = [
            (sampled_gaussian_pld(sigma, rate, adjacency, width), count) for sigma, rate, count in sampled
        ]
        if whole:
            pairs.append((gaussian_pld(doubled * math.sqrt(whole), width), 1))
        epsilon = min(epsilon, composed_epsilon(pairs, delta))
        if epsilon >= enough or epsilon == 0.0:
            break
    return unsampled if epsilon >= UNSAMPLED_FROM else float(epsilon)


def _checked(sigma: float, rate: float, count: int) -> tuple[float, float, int]:
    sigma, count = positive_float("noise multiplier", sigma), positive_int("how often", count)
    return sigma, sampling_rate(rate), count
