"""Formulas of the monograph that nothing else needs: bounds of named mechanisms, errors of order p.

The bounds are of the max loss for prefix sums and one participation. Each is a closed form that needs no
strategy; that of the mechanism itself is `anechoic.loss`, and is smaller. That of Theorem 2.11, for the
column-normalised Toeplitz strategy, is `anechoic.lower_bounds.prefix_sums.logarithmic_upper_bound`.
"""

from __future__ import annotations

import math

import numpy as np

from anechoic._validate import positive_float, positive_int
from anechoic.losses.result import StepErrors

EULER_GAMMA = 0.57721566490153286
UP = 1 + 1e-14  # for rounding


def toeplitz(n: int) -> float:
    """1 + (ln n + gamma) / pi, above the max loss of the best Toeplitz strategy, gamma = 0.5772….

    That strategy is `Toeplitz.square_root(prefix_sum(n))` (Theorem 2.5). The bound is less than 1 above the
    lower bound of Theorem 2.4 for every mechanism.

    Raises:
        ValueError: if n is not an integer >= 1.

    References:
        Monograph, Theorem 2.7.
    """
    return (1.0 + (math.log(positive_int("n", n)) + EULER_GAMMA) / math.pi) * UP


def banded_toeplitz(n: int, bands: int) -> float:
    """sqrt(S (S + (4 / pi) (n / b - 1))), S = 1 + (ln b + gamma) / pi, above the max loss with b = bands.

    It is that of `BandedToeplitz.square_root(prefix_sum(n), bands)`, hence of the best banded Toeplitz
    strategy. The theorem is stated without constants; these are from the following proof.

    Let c be the first b terms of the series (1 - x)^(-1/2) with coefficients c_t, 0 < c_t^2 <= 1 / (pi t),
    and r the others. The squared column norm is sum_{t < b} c_t^2 <= S. The first column of B is the series u
    = 1 / ((1 - x) c) = (c + r)^2 / c, which is c + 2 r + O(x^(2b)): so u_t = c_t for t < b, and u_t = 2 c_t
    for b <= t < 2b. As (1 - x) c u = 1, u_t = sum_{0 < j <= b} p_j u_{t-j} for t > 0, where p_j = c_{j-1} -
    c_j >= 0 with c_b replaced by 0, and sum p_j = 1: each u_t from 2b on is a mean of the b values before it.
    So 0 <= u_t <= 2 c_b from b on, and ||B||_row^2 <= S + 4 (n - b) / (pi b).

    Args:
        n: steps, >= 1.
        bands: b, 1 <= b <= n.

    Raises:
        ValueError: if an argument is out of range.

    References:
        Monograph, Theorem 2.13 (whose bound O(sqrt((n/b - 1) ln b + ln^2 b)) is 0 for one band, where the
        loss is sqrt(n)); Kalinin and Lampert, Banded square root matrix factorization (2024), Theorem 6.
    """
    n, b = positive_int("n", n), positive_int("bands", bands)
    if b > n:
        raise ValueError(f"bands={b} must be at most n={n}: with n bands the strategy is Toeplitz.")
    column = 1.0 + (math.log(b) + EULER_GAMMA) / math.pi
    return math.sqrt(column * (column + 4 / math.pi * (n / b - 1))) * UP


def tree_aggregation(n: int) -> float:
    """sqrt(h (1 + h)), h = ceil(log2 n) but at least 1, above the max loss of `TreeAggregation(n)`.

    It is attained where n is a power of 2, n >= 2.

    Raises:
        ValueError: if n is not an integer >= 1.

    References:
        Monograph, Theorem 2.20 (for one step h = 0 would give 0, where the loss is 1).
    """
    height = max(1, (positive_int("n", n) - 1).bit_length())
    return math.sqrt(height * (1 + height)) * UP


def lp_error(found: StepErrors, p: float) -> float:
    """(mean of e_t^p over the steps)^(1/p), e_t the error of step t: "rms" is p = 2, "max" is p = inf.

    It does not fall as p grows; so the RMS loss is at most the max loss (Lemma 2.24).

    Args:
        found: what `error` returned.
        p: order, > 0, inf for the largest error.

    Raises:
        ValueError: if p is out of range.
    """
    if p == math.inf:
        return found.max
    p = positive_float("p", p, remedy="Use float('inf') for the max loss.")
    shares = found.per_step / found.max  # powers of these cannot overflow
    return found.max * float(np.mean(shares**p) ** (1 / p))


def expected_lp_norm(found: StepErrors, p: float) -> float:
    """(E ||x||_p^p)^(1/p) of the n errors x of a run with noise of std 1 and dimension 1.

    This is n^(1/p) times `lp_error` times (E |N(0, 1)|^p)^(1/p), where E |N(0, 1)|^p = 2^(p/2)
    Gamma((p + 1) / 2) / sqrt(pi).

    Args:
        found: what `error` returned.
        p: order, finite, > 0.

    Raises:
        ValueError: if p is out of range.

    References:
        Monograph, Section 5.7; Liu, Upadhyay and Zou, arXiv 2406.02140.
    """
    p = positive_float("p", p, remedy="The expectation of the largest error has no closed form.")
    moment = p / 2 * math.log(2) + math.lgamma((p + 1) / 2) - math.log(math.pi) / 2
    return lp_error(found, p) * math.exp((math.log(found.n) + moment) / p)
