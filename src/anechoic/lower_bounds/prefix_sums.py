"""Lower bounds for prefix sums and one participation, in closed form."""

from __future__ import annotations

import math

import numpy as np

from anechoic._validate import positive_int


def prefix_sum_lower_bound(n: int) -> float:
    """Bound the RMS loss, hence the max loss, of every strategy for prefix sums and one participation.

    The nuclear norm of A_pre over n: $||A||_* <= ||B||_F ||C||_F$ for A = BC, and $||C||_F$ is at most
    sqrt(n) times the largest column norm. The singular values of A_pre are 1 / (2 sin((2t-1) pi / (4n+2))).
    It exceeds the lower bounds of Mathias and of Theorem 2.4.

    Args:
        n: steps, >= 1. From 10**6 on, all but the first terms are summed by the Euler-Maclaurin formula.
            The result is rounded down by more than what it leaves out.

    Raises:
        ValueError: if n is not an integer >= 1.
    """
    n = positive_int("n", n)
    return 0.5 * cosecants(math.pi / (2 * n + 1), n) * (1 - 1e-12) / n


def cosecants(step: float, count: int) -> float:
    """sum_{t < count} csc((t + 1/2) step), where count step <= pi / 2; to 12 digits."""
    terms = count if count < 10**6 else 1000
    angles = (np.arange(terms) + 0.5) * step
    total = float((1.0 / np.sin(angles)).sum())
    if terms < count:
        first, last = terms * step, count * step
        integral = math.log(math.tan(last / 2)) - math.log(math.tan(first / 2))
        slope = math.cos(first) / math.sin(first) ** 2 - math.cos(last) / math.sin(last) ** 2
        # the next term of the midpoint rule is 7/5760 step^3 g''': below 1e-11 of the last one kept
        total += integral / step - slope * step / 24
    return total
