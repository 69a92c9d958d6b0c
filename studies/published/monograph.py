"""Formulas of the monograph that nothing else needs: bounds of losses, errors of order p.

The bounds are of the max loss for prefix sums and one participation. Each is a closed form that needs no
strategy; that of the mechanism itself is `anechoic.loss`, and is smaller. That of Theorem 2.11, for the
column-normalised Toeplitz strategy, is `logarithmic_upper_bound`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from anechoic._validate import positive_float, positive_int
from anechoic.algebra.generating import GeneratingFunction
from anechoic.losses.result import StepErrors
from anechoic.lower_bounds.prefix_sums import cosecants

EULER_GAMMA = 0.57721566490153286
UP = 1 + 1e-14  # for rounding


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
    return (2.0 * cosecants(math.pi / n, n // 2) + n % 2) / (2 * n)


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


def approximation_error(r: GeneratingFunction | ArrayLike, n: int) -> float:
    """err(r), the largest |r(x) - sqrt(1 - x)| on the circle |x| = 1 - 1/n (monograph, Theorem 2.26).

    It says how far the max loss for prefix sums can be above the best Toeplitz strategy's; see
    `excess_bound`. The circle is sampled at 32 n points and, as sqrt(1 - x) varies most at x = 1, at angles
    that close in on it; a function that varies faster than that between them may have a larger err(r).

    Args:
        r: a function as in `generating.series`, or the coefficients of C^-1.
        n: >= 2.
    """
    n = positive_int("n", n, minimum=2)
    angles = np.concatenate([np.linspace(0.0, math.pi, 16 * n + 1), np.geomspace(1e-3 / n, math.pi, 4096)])
    x = np.asarray((1.0 - 1.0 / n) * np.exp(1j * angles), dtype=np.complex128)
    values = r(x) if callable(r) else np.polynomial.polynomial.polyval(x, np.asarray(r)[:n])
    return float(np.abs(values - np.sqrt(1.0 - x)).max())


def excess_bound(error: float, n: int) -> float:
    """Bound of max loss minus that of the square root, for prefix sums, n steps and err(r) = `error`.

    With rho = 1 - 1/n, s = sqrt(1 - x) and Parseval's formula on |x| = rho, the first n coefficients of
    (r - s) / (1 - x) have a norm of at most delta = e error / sqrt(1 - rho^2), those of 1/r - 1/s of at most
    delta / (1 - k) with k = error sqrt(n) < 1, as |s| >= 1 / sqrt(n) there and, by Rouché's theorem, r has
    no zero inside. This is Theorem 2.26 with a constant, and sqrt(n log n) in place of n.

    Returns:
        inf where error >= 1 / sqrt(n): nothing is claimed then.
    """
    k = error * math.sqrt(n)
    if k >= 1.0:
        return math.inf
    t = np.arange(1, n, dtype=np.float64)
    best = math.sqrt(1.0 + float(np.square(np.cumprod((2 * t - 1) / (2 * t))).sum()))
    delta = math.e * error / math.sqrt((2.0 - 1.0 / n) / n)
    return (best + delta) * (best + delta / (1.0 - k)) - best**2


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
