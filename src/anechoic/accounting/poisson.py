"""Amplification by (cyclic) Poisson sampling, through dp-accounting's privacy loss distributions.

Under cyclic Poisson sampling with b groups and a strategy of at most b bands, each group touches
disjoint rows of C G + Z, so the run is no less private than ceil(n / b) adaptive compositions of
one Poisson-sampled Gaussian at rate B b / N, whose noise multiplier is the noise std over the
largest column norm of C (monograph, Theorem 3.21). Poisson sampling with C = I is b = 1.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from anechoic._validate import fraction, positive_float, positive_int
from anechoic.accounting.gaussian import gaussian_epsilon

#: Width of the grid of privacy losses; the estimate is pessimistic at any width, and tighter when finer.
INTERVAL = 1e-4
_COARSE = 1e-3

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
    if rate == 1.0:
        return gaussian_epsilon(delta, _unsampled_mu(noise_multiplier, compositions, adjacency))
    epsilon = _pld_epsilon(delta, noise_multiplier, rate, compositions, adjacency, INTERVAL)
    if epsilon < 1000 * INTERVAL:  # a grid of 1e-4 is coarse for so small an epsilon
        finer = _pld_epsilon(delta, noise_multiplier, rate, compositions, adjacency, INTERVAL / 10)
        epsilon = min(epsilon, finer)
    return epsilon


def poisson_noise_multiplier(
    epsilon: float, delta: float, rate: float, compositions: int, *, adjacency: str = "zero_out"
) -> float:
    """A noise multiplier, at most 1e-4 (relative) above the least, at which `poisson_epsilon` <= epsilon.

    Raises:
        ValueError: if an argument is out of range.
    """
    epsilon = positive_float("epsilon", epsilon)

    def on_grid(interval: float) -> Any:
        width = min(interval, epsilon / 100)
        return lambda s: _pld_epsilon(delta, s, rate, compositions, adjacency, width) <= epsilon

    def exact(s: float) -> bool:
        return poisson_epsilon(delta, s, rate, compositions, adjacency=adjacency) <= epsilon

    # bracket on a coarse grid, which is pessimistic and therefore lies above
    holds = exact if rate == 1.0 else on_grid(_COARSE)
    high = 1.0
    while not holds(high):
        high *= 2
    low = high / 2
    while low > 1e-3 and holds(low):
        low, high = low / 2, low
    low, high = _bisect(holds, low, high, 1e-3)
    # then finely; the coarse answer stays valid as an upper end
    while exact(low):
        low, high = low / 1.01, low
    if not exact(high):
        while not exact(high):
            low, high = high, high * 1.001
    return _bisect(exact, low, high, 5e-5)[1]


def _bisect(holds: Any, low: float, high: float, relative: float) -> tuple[float, float]:
    while high > low * (1 + relative):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high


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


__all__ = ["INTERVAL", "poisson_epsilon", "poisson_noise_multiplier"]
