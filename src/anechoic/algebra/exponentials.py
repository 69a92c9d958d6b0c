"""Sums over the coefficients of a BLT in closed form: O(d^2) for any number of steps.

C has the coefficients c_0 = 1, c_t = sum_i alpha_i lambda_i^(t-1), and for prefix sums B = A C^-1 has
b_t = sum_{i=0..d} w_i rho_i^t with rho_0 = 1. Norms are therefore double sums of geometric series
in u = -log(lambda_i lambda_j). This is Lemma 2.29 of the monograph (whose linear terms lack a
minus sign in print) in a form that has no differences: for alpha > 0 every w_i is > 0 too, so that
nothing cancels, however close to 1 the decays are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from anechoic._validate import Array

# exp(-LARGEST) is 0 next to 1; larger exponents would only produce inf * 0
LARGEST = 700.0


def geometric(u: Array, n: int | Array) -> Array:
    """sum_{t < n} exp(-u t) for u >= 0, elementwise; `n` may be an array that broadcasts against u."""
    zero = u == 0.0
    v = np.where(zero, 1.0, u)
    return np.where(zero, n, np.expm1(-n * v) / np.expm1(-v))


def geometric_moment(u: Array, n: int | Array) -> Array:
    """sum_{t < n} t exp(-u t) for u >= 0: minus the derivative of `geometric`."""
    zero = u == 0.0
    v = np.where(zero, 1.0, u)
    x = n * v
    # gammainc(2, x) = 1 - (1 + x) exp(-x), without its cancellation at small x
    whole, one = scipy.special.gammainc(2, x), scipy.special.gammainc(2, v)
    moment = (np.exp(-v) * whole - n * np.exp(-x) * one) / np.square(np.expm1(-v))
    return np.where(zero, 0.5 * n * (n - 1.0), moment)


def remaining(u: Array, n: int) -> Array:
    """sum_{t < n} (n - t) exp(-u t) for u >= 0: a square that stays in every later prefix."""
    zero = u == 0.0
    v = np.where(zero, 1.0, u)
    x = n * v
    excess = -x * np.expm1(-x) - scipy.special.gammainc(2, x)  # exp(-x) - 1 + x, to full relative accuracy
    total = (np.exp(-v) * excess + n * scipy.special.gammainc(2, v)) / np.square(np.expm1(-v))
    return np.where(zero, 0.5 * n * (n + 1.0), total)


def remaining_moment(u: Array, n: int) -> Array:
    """sum_{t < n} t (n - t) exp(-u t) for u >= 0: minus the derivative of `remaining`."""
    zero = u == 0.0
    v = np.where(zero, 1.0, u)
    x = n * v

    def third(y: Array) -> Array:  # y (1 + exp(-y)) - 2 (1 - exp(-y)) = y^3 / 6 - …, without differences
        return np.asarray((y - 2.0) * scipy.special.gammainc(3, y) + 0.5 * y**3 * np.exp(-y))

    bracket = third(x) * (1.0 + np.exp(-v)) - n * third(v) * (1.0 + np.exp(-x))
    moment = 0.5 * np.exp(-v) * bracket / -(np.expm1(-v) ** 3)
    return np.where(zero, n * (float(n) * n - 1.0) / 6.0, moment)


def rates_of(decay: Array) -> Array:
    """-log(decay), shape (d,), finite also for decay = 0."""
    with np.errstate(divide="ignore"):
        return np.minimum(-np.log(decay), LARGEST)


def pairs(u: Array) -> Array:
    """u_i + u_j, shape (d, d)."""
    return np.minimum(u[:, None] + u[None, :], LARGEST)


def column_norm_squared(scale: Array, decay: Array, n: int) -> float:
    """||C[:, 0]||^2, the largest of the n columns (Lemma 2.29 a)."""
    if n == 1:
        return 1.0
    return float(1.0 + scale @ geometric(pairs(rates_of(decay)), n - 1) @ scale)


def comb_norm_squared(scale: Array, decay: Array, n: int, separation: int, count: int) -> float:
    """|| sum_{j < count} C[:, j separation] ||^2 in O(count d^2), where (count - 1) separation < n.

    Between two teeth the column sum is itself a sum of d exponentials: the earlier teeth only change
    its scales, by geometric series in decay^separation.
    """
    mu = rates_of(decay)
    teeth = np.arange(1, count + 1, dtype=np.float64)[:, None]
    sums = geometric(np.minimum(separation * mu, LARGEST)[None, :], teeth) * scale  # (count, d)
    heads = 1.0 + sums[:-1] @ decay ** (separation - 1)
    total = 1.0 + float(heads @ heads)
    for block, length in ((sums[:-1], separation), (sums[-1:], n - (count - 1) * separation)):
        if length > 1 and len(block):
            total += float(((block.T @ block) * geometric(pairs(mu), length - 1)).sum())
    return total


@dataclass(frozen=True, eq=False)
class PrefixDecoder:
    """First column of B = A_pre C^-1 as b_t = sum_i weights_i (1 - gaps_i)^t.

    Attributes:
        weights: > 0, shape (d + 1,).
        gaps: in [0, 2), shape (d + 1,): distances to 1 of the decays of C^-1, after a leading 0.
    """

    weights: Array
    gaps: Array

    @property
    def rates(self) -> Array:
        """-log |1 - gap|, shape (d + 1,)."""
        with np.errstate(divide="ignore"):
            far = -np.log(np.abs(1.0 - self.gaps))
        return np.minimum(np.where(self.gaps < 0.5, -np.log1p(-np.minimum(self.gaps, 0.5)), far), LARGEST)

    def coefficients(self, n: int) -> Array:
        """b_0, …, b_{n-1}, shape (n,)."""
        t = np.arange(n, dtype=np.float64)
        total = np.zeros(n)
        for weight, gap, rate in zip(self.weights, self.gaps, self.rates, strict=True):
            term = weight * np.exp(-rate * t)
            if gap > 1.0:
                term[1::2] *= -1.0
            total += term
        return total

    def squared_errors(self, n: int) -> tuple[float, float]:
        """Largest and mean squared error of the n steps (Lemma 2.29 b, c)."""
        grid = pairs(self.rates)
        last, mean = geometric(grid, n), remaining(grid, n) / n
        ratios = 1.0 - self.gaps
        product = ratios[:, None] * ratios[None, :]
        flipped = product < 0.0
        q = product[flipped]
        last[flipped] = (1.0 - q**n) / (1.0 - q)
        mean[flipped] = (n - q * last[flipped]) / (1.0 - q) / n
        w = self.weights
        return float(w @ last @ w), float(w @ mean @ w)


def prefix_decoder(scale: Array, decay: Array) -> PrefixDecoder | None:
    """The decoder of prefix sums for scales >= 0 (Lemma 2.16), or None where it has no such form.

    The decays of C^-1 are the zeros of 1 + sum_i alpha_i / (x - lambda_i); for alpha > 0 there is one
    below each lambda_i, and w_i is the reciprocal of a sum of squares.

    None is returned where a scale is negative (the zeros may then be complex, or coincide) and where a
    zero is at most -1 (C^-1 then grows without bound).
    """
    if (scale < 0).any():
        return None
    residues, gaps = inverse_poles(scale, decay)
    if not len(gaps):
        return PrefixDecoder(np.ones(1), np.zeros(1))
    if gaps.max() >= 2.0:
        return None
    limit = 1.0 / (1.0 + (scale / (1.0 - decay)).sum())
    return PrefixDecoder(np.concatenate([[limit], residues / gaps]), np.concatenate([[0.0], gaps]))


def inverse_poles(scale: Array, decay: Array) -> tuple[Array, Array]:
    """C^-1 = BLT(-residues, 1 - gaps) for scales >= 0 (Lemma 2.16): residues > 0 and gaps, rising.

    Scales of 0 are left out, so that there are as many as scales above 0.
    """
    order = np.argsort(-decay)
    order = order[scale[order] > 0]
    alpha, lam = scale[order], decay[order]
    if not len(alpha):
        return np.zeros(0), np.zeros(0)
    offsets, gaps = _zeros(alpha, lam)
    return 1.0 / (alpha / np.square(offsets)).sum(axis=1), gaps


def interlaced_scales(decay: Array, inverse_decay: Array) -> Array:
    """alpha_i = prod_j (lambda_i - lambda^_j) / prod_{j != i} (lambda_i - lambda_j) (Lemma 4.13)."""
    above = decay[:, None] - inverse_decay[None, :]
    below = decay[:, None] - decay[None, :]
    np.fill_diagonal(below, 1.0)
    return np.asarray(np.prod(above / below, axis=1))


def _zeros(alpha: Array, lam: Array) -> tuple[Array, Array]:
    """Zeros z_i of 1 + sum_j alpha_j / (x - lam_j), for alpha > 0 and lam falling.

    Returns lam_j - z_i, shape (d, d), and 1 - z_i, shape (d,). Each zero is found by bisection of the
    logarithm of its distance to the nearer pole, so that small distances keep their relative accuracy.
    """
    below = np.append(lam[1:], lam[-1] - alpha.sum())
    width = np.append(-np.diff(lam), alpha.sum())
    poles = lam[None, :] - lam[:, None]

    def is_above(offsets: Array) -> Array:  # whether the zero lies above x, given offsets = lam_j - x
        return np.asarray((alpha / offsets).sum(axis=1) < 1.0)

    upper = is_above(poles + 0.5 * width[:, None])
    upper[-1] = True  # the last interval has no pole at its lower end
    base = np.where(upper[:, None], poles, np.roll(poles, -1, axis=0))  # lam_j - nearer pole
    sign = np.where(upper, 1.0, -1.0)
    high = np.log(width)
    low = high - 300.0
    for _ in range(64):
        middle = 0.5 * (low + high)
        closer = is_above(base + (sign * np.exp(middle))[:, None]) == upper
        high = np.where(closer, middle, high)
        low = np.where(closer, low, middle)
    distance = sign * np.exp(0.5 * (low + high))
    return base + distance[:, None], (1.0 - np.where(upper, lam, below)) + distance
