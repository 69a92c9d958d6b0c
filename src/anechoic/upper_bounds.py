"""Upper bounds of the max loss that named mechanisms reach for prefix sums and one participation.

Each is a closed form that needs no strategy; that of the mechanism itself is `loss`, and is smaller.
What no mechanism can beat is in `anechoic.lower_bounds`, with Theorem 2.4's bound on the best one.
"""

from __future__ import annotations

import math

from anechoic._validate import positive_int
from anechoic.lower_bounds.prefix_sums import logarithmic_upper_bound

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


def column_normalized_toeplitz(n: int) -> float:
    """1 + ln(n) / pi, above the max loss of `ColumnNormalized(Toeplitz.square_root(prefix_sum(n)))`.

    It is the bound of Theorem 2.4 for the best mechanism, `lower_bounds.prefix_sums.logarithmic_upper_bound`.

    Raises:
        ValueError: if n is not an integer >= 1.

    References:
        Monograph, Theorem 2.11.
    """
    return logarithmic_upper_bound(n)


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
