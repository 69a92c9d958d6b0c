"""Noise for gradients that are bounded in an l_q norm, q >= 2: exponential power noise, and its guarantee.

The density of one coordinate is proportional to exp(-|x / scale|^q). One unit moves row s of C G + Z by
c_{s,t} Delta with |Delta|_q <= a. Rows of Z are independent of all before them, so that Renyi divergences add
over the rows by adaptive composition, and over coordinates because they are independent:

    D_alpha <= sum_s  sup over |u|_q <= |c_{s,t}| a of  sum_i phi(|u_i|),

phi(u) the divergence of one coordinate moved by u. In v = |u|^q the constraint is linear, so the supremum
is at most d times the concave envelope of phi at v / d. (Paper 001, Lemma C.1, has (a / scale)^q instead,
from a sign: docs/errata.md, P3. With the sign right its proof gives `ExponentialPower.lemma_c1`.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.polynomial.legendre import leggauss
from scipy.special import gamma

from anechoic._validate import Array, fraction, positive_float, positive_int
from anechoic.errors import UnsupportedError
from anechoic.strategies import Strategy

ORDERS = (1.05, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0)
GRID = 40  # shifts at which phi is computed for its envelope
SMALLEST = 1e-4  # smallest of them over the largest, as v = |u|^q
PANELS, POINTS = 32, 16
DROP = 60.0  # fall of the log integrand at the ends of the integral


@dataclass(frozen=True)
class ExponentialPower:
    """Noise with density q / (2 scale Gamma(1/q)) exp(-|x / scale|^q) in each coordinate.

    Args:
        q: >= 2; 2 is Gaussian noise of std scale / sqrt(2).
        scale: > 0.

    Raises:
        ValueError: if an argument is out of range.
    """

    q: float
    scale: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.q) and self.q >= 2.0):
            raise ValueError(
                f"q={self.q} must be a finite number >= 2: gradients of an l_p learner, 1 < p <= 2."
            )
        positive_float("scale", self.scale)

    @property
    def std(self) -> float:
        """Std of one coordinate: scale sqrt(Gamma(3/q) / Gamma(1/q))."""
        return self.scale * math.sqrt(float(gamma(3.0 / self.q) / gamma(1.0 / self.q)))

    def sample(self, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        """Draws of this law for experiments; no cryptographic generator, as the noise of training has."""
        size = self.scale * rng.gamma(1.0 / self.q, size=shape) ** (1.0 / self.q)
        return np.asarray(size * rng.choice([-1.0, 1.0], size=shape))

    def divergence(self, order: float, shift: float) -> float:
        """phi: the Renyi divergence of order alpha > 1 of one coordinate moved by `shift` >= 0 from itself.

        (1 / (alpha - 1)) log of the integral of exp(-alpha |x - u|^q + (alpha - 1) |x|^q), by Gauss-Legendre
        panels around its peak; relative error about 1e-10.
        """
        order = _order(order)
        if not shift >= 0:
            raise ValueError(f"shift={shift} must be >= 0.")
        u, q = shift / self.scale, self.q
        if u == 0.0:
            return 0.0

        def log_integrand(x: Array) -> Array:
            return -order * np.abs(x - u) ** q + (order - 1.0) * np.abs(x) ** q

        # the peak beyond u, where alpha (x - u)^(q-1) = (alpha - 1) x^(q-1)
        peak = u / -math.expm1(math.log1p(-1.0 / order) / (q - 1.0))
        top = float(log_integrand(np.array([peak]))[0])
        low, high, step = min(0.0, peak - 1.0), peak + 1.0, 1.0
        while float(log_integrand(np.array([low]))[0]) > top - DROP:
            low -= step
            step *= 1.5
        step = 1.0
        while float(log_integrand(np.array([high]))[0]) > top - DROP:
            high += step
            step *= 1.5
        edges = np.unique(np.concatenate([np.linspace(low, high, PANELS + 1), np.clip([0.0, u], low, high)]))
        nodes, weights = leggauss(POINTS)
        width = np.diff(edges)[:, None] / 2.0
        x = edges[:-1, None] + width * (1.0 + nodes)
        total = float((np.exp(log_integrand(x) - top) * width * weights).sum())
        mass = 2.0 * math.gamma(1.0 + 1.0 / q)
        return max(0.0, (top + math.log(total / mass)) / (order - 1.0))

    def worst_divergence(self, order: float, norm: float, dimension: int) -> float:
        """An upper bound of the divergence over all shifts of l_q norm at most `norm`.

        phi rises, so that its value at the next point of a grid bounds it between points; of that staircase
        the concave envelope in v = |u|^q is taken at norm^q / d, d times.
        """
        norm, d = positive_float("norm", norm), positive_int("dimension", dimension)
        share = norm**self.q / d
        v = norm**self.q * np.concatenate([[0.0], np.geomspace(min(SMALLEST, 0.1 / d), 1.0, GRID)])
        v = np.unique(np.concatenate([v, [share]]))
        values = np.array([self.divergence(order, float(x) ** (1.0 / self.q)) for x in v])
        # points (v_i, phi(v_{i+1})) and, at 0, 0 itself: a coordinate that is not moved costs nothing
        corners = [(0.0, 0.0), *zip(v[:-1], values[1:], strict=True), (float(v[-1]), float(values[-1]))]
        best = 0.0
        for x0, y0 in corners:
            for x1, y1 in corners:
                if x0 <= share <= x1:
                    weight = 0.0 if x1 == x0 else (share - x0) / (x1 - x0)
                    best = max(best, (1.0 - weight) * y0 + weight * y1)
        return float(d * best)

    def lemma_c1(self, order: float, norm: float, dimension: int) -> float:
        """2^(q-1) (a/scale)^q - d log(alpha - (alpha-1) 2^(q-1)) / (q (alpha-1)): Lemma C.1, its sign right.

        For alpha < 2^(q-1) / (2^(q-1) - 1); infinite beyond. It grows with d even without a shift:
        `worst_divergence` is far below it.
        """
        order, power = _order(order), 2.0 ** (self.q - 1.0)
        inside = order - (order - 1.0) * power
        if inside <= 0.0:
            return math.inf
        rest = positive_int("dimension", dimension) * math.log(inside) / (self.q * (order - 1.0))
        return float(power * (positive_float("norm", norm) / self.scale) ** self.q - rest)


def lq_epsilon(
    strategy: Strategy,
    noise: ExponentialPower,
    *,
    norm: float,
    dimension: int,
    delta: float,
    orders: Sequence[float] = ORDERS,
) -> float:
    """An epsilon such that C G + Z, and all that is made of it, is (epsilon, delta)-DP for one participation.

    Guarantee: for a unit that takes part in one step with a contribution of l_q norm at most `norm`, zero-out
    adjacency; rows of Z are independent `noise`. Numerical: divergences are integrals in float64.

    Args:
        strategy: C, of n steps; its dense matrix is made.
        noise: of one coordinate.
        norm: a, > 0.
        dimension: d, >= 1.
        delta: in (0, 1).
        orders: alpha > 1 to choose from.

    Raises:
        ValueError: if an argument is out of range.
        UnsupportedError: for a rectangular strategy, whose rows the noise does not have.
    """
    delta = fraction("delta", delta)
    if strategy.rows != strategy.n:
        raise UnsupportedError(f"{strategy.describe()} is not square: take a square strategy.")
    dense = np.abs(strategy.to_dense())
    sizes, places = np.unique(np.round(dense[dense > 0], 12), return_inverse=True)
    lookup = np.zeros(dense.shape, dtype=int)
    lookup[dense > 0] = places
    best = math.inf
    for order in orders:
        order = _order(order)
        # rounded up beyond the rounding that grouped them
        each = np.array([noise.worst_divergence(order, float(c + 1e-12) * norm, dimension) for c in sizes])
        total = float(np.where(dense > 0, each[lookup], 0.0).sum(axis=0).max())
        epsilon = total + math.log1p(-1.0 / order) - (math.log(delta) + math.log(order)) / (order - 1.0)
        best = min(best, max(0.0, epsilon))
    return best


def gaussian_clip_norm(norm: float, q: float, dimension: int) -> float:
    """The 2-norm of a vector of l_q norm `norm`, at most: norm d^(1/2 - 1/q), q >= 2.

    With it as clip norm every `Mechanism` protects gradients that are bounded in l_q, by Gaussian noise.
    """
    if not q >= 2.0:
        raise ValueError(f"q={q} must be at least 2: below, the 2-norm is no larger than the q-norm.")
    return float(positive_float("norm", norm) * positive_int("dimension", dimension) ** (0.5 - 1.0 / q))


def _order(order: float) -> float:
    if not (math.isfinite(order) and order > 1.0):
        raise ValueError(f"order={order} must be a finite number > 1.")
    return float(order)
