"""Workloads A: the weighted prefix sums of gradients that a mechanism is designed for.

Every workload is lower-triangular, n x n, with positive diagonal. Most are of the form A = T D with T
Toeplitz and D a diagonal of learning rates (monograph, Sections 1.2 and 3.2).
"""

from __future__ import annotations

from numpy.typing import ArrayLike

from anechoic._validate import finite_array
from anechoic.workloads.base import GeneralWorkload, Workload
from anechoic.workloads.general import LowerTriangular, RestartDifferences, from_dense
from anechoic.workloads.optimizers import Momentum, Nesterov, Scheduled
from anechoic.workloads.sums import ExponentialDecay, PrefixSum, SlidingWindow, ToeplitzWorkload

__all__ = [
    "ExponentialDecay",
    "GeneralWorkload",
    "LowerTriangular",
    "Momentum",
    "Nesterov",
    "PrefixSum",
    "RestartDifferences",
    "Scheduled",
    "SlidingWindow",
    "ToeplitzWorkload",
    "Workload",
    "exponential_decay",
    "from_coefficients",
    "from_dense",
    "momentum",
    "nesterov",
    "prefix_sum",
    "restart_differences",
    "scheduled",
    "sliding_window",
]


def prefix_sum(n: int) -> Workload:
    """A_pre with n steps; takes no memory before its entries are asked for.

    Raises:
        ValueError: if n is not an integer >= 1.
    """
    return PrefixSum(n)


def momentum(
    n: int, momentum: float, *, weight_decay: float = 0.0, learning_rates: ArrayLike | None = None
) -> Workload:
    """SGD with momentum, weight decay and learning rates; see `Momentum`."""
    return Momentum(n, momentum, weight_decay, learning_rates)


def nesterov(
    n: int, momentum: float, *, weight_decay: float = 0.0, learning_rates: ArrayLike | None = None
) -> Workload:
    """SGD with Nesterov's momentum, weight decay and learning rates; see `Nesterov`."""
    return Nesterov(n, momentum, weight_decay, learning_rates)


def scheduled(workload: Workload, learning_rates: ArrayLike) -> Workload:
    """A D: `workload` with a learning rate for every step, shape (n,), all > 0; see `Scheduled`.

    Example:
        >>> scheduled(prefix_sum(3), [1.0, 0.5, 0.25]).multiply([1.0, 1.0, 1.0]).tolist()
        [1.0, 1.5, 1.75]
    """
    return Scheduled(workload, learning_rates)


def exponential_decay(n: int, decay: float) -> Workload:
    """Sums in which a gradient keeps the part `decay` of its weight per step; see `ExponentialDecay`."""
    return ExponentialDecay(n, decay)


def sliding_window(n: int, width: int) -> Workload:
    """Sums of the last `width` gradients; see `SlidingWindow`."""
    return SlidingWindow(n, width)


def from_coefficients(coefficients: ArrayLike, n: int | None = None) -> Workload:
    """The Toeplitz workload with these weights a_0 > 0, a_1, …, by the age of a gradient.

    Args:
        coefficients: at most n of them; zeros follow.
        n: steps; None for one per coefficient.

    Raises:
        ValueError: if there are more than n, or a_0 is not > 0.
    """
    if n is None:
        n = len(finite_array("coefficients", coefficients))
    return ToeplitzWorkload(n, coefficients)


def restart_differences(workload: Workload, *, period: int) -> Workload:
    """Lambda_tau A, whose RMS error is the restart objective of DP-MF+; see `RestartDifferences`.

    Example:
        >>> restart_differences(prefix_sum(4), period=2).multiply([1.0, 1.0, 1.0, 1.0]).round(4).tolist()
        [0.7071, 2.0, 0.7071, 2.0]
    """
    return RestartDifferences(workload, period)
