"""Strategies of one number: the damped square root, and how often a strategy is restarted."""

from __future__ import annotations

import math
from collections.abc import Callable

import scipy

from anechoic.losses.dispatch import loss
from anechoic.optimize.periodic_pattern import periodic_pattern
from anechoic.participation.base import Participation
from anechoic.strategies import Restarted, Toeplitz
from anechoic.strategies.base import Strategy
from anechoic.workloads import prefix_sum


def restarted(build: Callable[[int], Strategy], n: int, participation: Participation) -> Strategy:
    """Restarted in whole separations, as often as is best for the squared error."""
    separation, count = periodic_pattern(participation, n)
    blocks = sorted({min(n, q * separation) for q in range(1, count + 1)} | {n}, reverse=True)
    made = (build(n) if block == n else Restarted(build(block), -(-n // block), n) for block in blocks)
    return min(made, key=lambda strategy: loss(prefix_sum(n), strategy, participation))


def damped(n: int, participation: Participation) -> Strategy:
    """The damped root of least squared error."""

    def value(log_damping: float) -> float:
        return loss(prefix_sum(n), Toeplitz.damped(n, math.exp(log_damping)), participation)

    bounds = math.log(0.01 / n), math.log(1.0 - 1e-9)
    found = scipy.optimize.minimize_scalar(value, bounds=bounds, method="bounded", options={"xatol": 1e-5})
    return min(
        (Toeplitz.damped(n, 0.0), Toeplitz.damped(n, math.exp(found.x))),
        key=lambda strategy: loss(prefix_sum(n), strategy, participation),
    )
