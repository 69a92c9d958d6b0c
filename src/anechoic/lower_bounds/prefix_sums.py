"""Lower bounds for prefix sums and one participation, in closed form."""

from __future__ import annotations

import math

import numpy as np

from anechoic._validate import positive_int


def prefix_sum_lower_bound(n: int) -> float:
    """No strategy has a smaller RMS loss, hence max loss, for prefix sums and one participation.

    The nuclear norm of A_pre over n: ||A||_* <= ||B||_F ||C||_F for A = BC, and ||C||_F is at most
    sqrt(n) times the largest column norm. The singular values of A_pre are 1 / (2 sin((2t-1) pi / (4n+2))).
    It exceeds the lower bounds of Mathias and of Theorem 2.4.

    Args:
        n: steps, >= 1. From 10**6 on, all but the first terms are summed by the Euler-Maclaurin formula.
            The result is rounded down by more than what it leaves out.

    Raises:
        ValueError: if n is not an integer >= 1.
    """
    n = positive_int("n", n)
    return 0.5 * _cosecants(math.pi / (2 * n + 1), n) * (1 - 1e-12) / n


def mathias_lower_bound(n: int) -> float:
    """1 / (2n) + S(n), below the optimal max loss for prefix sums and one participation, rounded down.

    S(n) = (1 / 2n) sum_{t=1..n} csc((2t-1) pi / 2n).

    Raises:
        ValueError: if n is not an integer >= 1.

    References:
        Mathias, The Hadamard operator norm of a circulant and applications (1993), Corollary 3.5;
        monograph, Section 2.12.
    """
    return (0.5 / positive_int("n", n) + _mathias_sum(n)) * (1 - 1e-12)


def mathias_upper_bound(n: int) -> float:
    """1/2 + S(n), above the optimal max loss for prefix sums and one participation, rounded up.

    The proof gives no strategy. S(n) is that of `mathias_lower_bound`.

    Raises:
        ValueError: if n is not an integer >= 1.
    """
    return (0.5 + _mathias_sum(positive_int("n", n))) * (1 + 1e-12)


def logarithmic_lower_bound(n: int) -> float:
    """ln(2n + 1) / pi, below the optimal max loss for prefix sums and one participation.

    Raises:
        ValueError: if n is not an integer >= 1.

    References:
        Monograph, Theorem 2.4.
    """
    return math.log1p(2 * positive_int("n", n)) / math.pi * (1 - 1e-14)


def logarithmic_upper_bound(n: int) -> float:
    """1 + ln(n) / pi, above the optimal max loss for prefix sums and one participation.

    Raises:
        ValueError: if n is not an integer >= 1.

    References:
        Monograph, Theorem 2.4.
    """
    return (1.0 + math.log(positive_int("n", n)) / math.pi) * (1 + 1e-14)


def _mathias_sum(n: int) -> float:
    """S(n): the angles are symmetric about pi / 2."""
    return (2.0 * _cosecants(math.pi / n, n // 2) + n % 2) / (2 * n)


def _cosecants(step: float, count: int) -> float:
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
