"""Squared error of a BLT for prefix sums relative to restarts, in closed form (the objective of DP-MF+).

With the decoder b_t = sum_i w_i rho_i^t, w_i > 0 (`algebra.exponentials`), the row that stands l steps after
the end e of a period has the squared norm

    sum_{i < l} b_i^2 + sum_{i < e} (b_i - b_{i+l})^2,    b_i - b_{i+l} = sum_j w_j (1 - rho_j^l) rho_j^i,

a sum of positive terms. Summed over all rows with their weights it is a quadratic form in w, of sums of
geometric series and of R(L) = sum_{l <= L} g_a(l) g_b(l), g_a(l) = sum_{s < l} rho_a^s. R has no closed form
that keeps its digits for rho near 1, but doubles: from L to L + L', g_a(L + l) = g_a(L) + rho_a^L g_a(l) has
positive terms only. That is O(d^2 log tau) for any number of steps, and nothing cancels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from anechoic._validate import Array
from anechoic.algebra.exponentials import (
    LARGEST,
    geometric,
    geometric_moment,
    pairs,
    remaining,
    remaining_moment,
)

# Step of the complex differences: its square is lost against 1 in float64.
STEP = 1e-100


class RestartSums:
    """The matrix of the quadratic form for `n` steps and restarts every `period` steps.

    Args:
        n: steps.
        period: tau, >= 1; beyond n, no step ends a period.
    """

    def __init__(self, n: int, period: int) -> None:
        self.n, self.period = n, period
        self.whole, self.rest = divmod(n, period)

    def __call__(self, rates: Array) -> tuple[Array, Array]:
        """M with mean squared error w^T M w, and its derivatives by the rate of the row index.

        Args:
            rates: -log rho >= 0, shape (d,).

        Returns:
            M and dM_ij / du_i where u_j is held (half of it where i = j), each shape (d, d).
        """
        n, tau, whole, rest = self.n, self.period, self.whole, self.rest
        u = pairs(rates)
        # the part of the period at hand: rows 1 … L of each, 1 / tau times but for the last of a whole one
        value, slope = np.zeros_like(u), np.zeros_like(u)
        if whole:
            value += whole * (remaining(u, tau) / tau + (1.0 - 1.0 / tau) * geometric(u, tau))
            slope -= whole * (remaining_moment(u, tau) / tau + (1.0 - 1.0 / tau) * geometric_moment(u, tau))
        if rest:
            value += remaining(u, rest) / tau
            slope -= remaining_moment(u, rest) / tau
        # what changed of the periods before: a sum over the place in the period times one over the past
        if whole > 1:
            ends = np.minimum(tau * u, LARGEST)
            block, periods = geometric(u, tau), remaining(ends, whole - 1)
            past = block * periods
            by_past = -geometric_moment(u, tau) * periods - tau * block * remaining_moment(ends, whole - 1)
            moved, by_moved = _moved(rates, tau, (1.0 / tau, 1.0 - 1.0 / tau))
            value += past * moved
            slope += by_past * moved + past * by_moved
        if rest and whole:
            past, by_past = geometric(u, tau * whole), -geometric_moment(u, tau * whole)
            moved, by_moved = _moved(rates, rest, (1.0 / tau, 0.0))
            value += past * moved
            slope += by_past * moved + past * by_moved
        return value / n, slope / n


def _moved(rates: Array, steps: int, weights: tuple[float, float]) -> tuple[Array, Array]:
    """sum_{l <= steps} v_l (1 - rho_i^l)(1 - rho_j^l) and its derivative by the rate of i.

    v_l is the first weight, and the sum of both for l = steps.
    """
    # beyond LARGEST, rho is 0 all the same
    first = (np.minimum(rates, LARGEST) + 1j * STEP)[:, None]
    second = np.minimum(rates, LARGEST)[None, :]
    last = _sums(first, second, steps)
    factor = np.expm1(-first) * np.expm1(-second)
    total = factor * (weights[0] * last.both + weights[1] * last.first * last.second)
    return total.real, total.imag / STEP


class _Sums(NamedTuple):
    """g_a(L), g_b(L), the sums of each and of their product over l = 1 … L."""

    steps: int
    first: Any
    second: Any
    of_first: Any
    of_second: Any
    both: Any


def _sums(a: Any, b: Any, steps: int) -> _Sums:
    """By doubling, from the highest bit of `steps` down."""
    one = np.ones(np.broadcast_shapes(a.shape, b.shape))
    single = found = _Sums(1, one, one, one, one, one)
    for bit in bin(steps)[3:]:
        found = _joined(a, b, found, found)
        if bit == "1":
            found = _joined(a, b, found, single)
    return found


def _joined(a: Any, b: Any, one: _Sums, other: _Sums) -> _Sums:
    fade_a, fade_b, more = np.exp(-a * one.steps), np.exp(-b * one.steps), other.steps
    return _Sums(
        one.steps + more,
        one.first + fade_a * other.first,
        one.second + fade_b * other.second,
        one.of_first + more * one.first + fade_a * other.of_first,
        one.of_second + more * one.second + fade_b * other.of_second,
        one.both
        + more * one.first * one.second
        + one.first * fade_b * other.of_second
        + one.second * fade_a * other.of_first
        + fade_a * fade_b * other.both,
    )
