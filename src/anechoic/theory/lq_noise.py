"""Noise for gradients that are bounded in an l_q norm, q >= 2: exponential power noise, and its guarantee.

The density of one coordinate is proportional to exp(-|x / scale|^q). One unit moves row s of C G + Z by
c_{s,t} Delta with |Delta|_q <= a. Rows of Z are independent of all before them, so that Renyi divergences add
over the rows by adaptive composition, and over coordinates because they are independent:

    D_alpha <= sum_s  sup over |u|_q <= |c_{s,t}| a of  sum_i phi(|u_i|),

phi(u) the divergence of one coordinate moved by u. In v = |u|^q the constraint is linear, so the supremum
is at most d times the concave envelope of phi at v / d. (Paper 001, Lemma C.1, has (a / scale)^q instead,
from a sign: 'Errata', P3. With the sign right its proof gives `ExponentialPower.lemma_c1`.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.polynomial.legendre import leggauss
from scipy.special import gamma

from anechoic._validate import Array, at_least, fraction, moderate, positive_int
from anechoic.errors import UnsupportedError
from anechoic.strategies.base import Strategy

ORDERS = (1.05, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0)
FINE, MOST = 0.04, 4000  # steps of log |u|^q at which phi is computed for its envelope, and how many at most
SMALLEST = 1e-4  # smallest |u|^q of them over the largest
PANELS, POINTS = 16, 16  # on each side of the peak
# Powers above SMOOTH have steps at |x| = 1 and |x - u| = 1: panels end at these log |x|^q, unless the log
# integrand has e^FLAT at its peak, which alone counts then.
SMOOTH, FLAT = 6.0, 10.0
STEPS = np.concatenate([[-40.0, -28.0, -20.0, -14.0, -10.0, -8.0], np.arange(-6.5, 5.5, 0.75)])
DROP = 60.0  # fall of the log integrand at the ends of the integral
ROUNDED, FLOOR = 1e-9, 1e-14  # what covers the quadrature, relative and absolute


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
        at_least("q", self.q, 2.0, remedy="These are gradients of an l_p learner, 1 < p <= 2.")
        moderate("scale", self.scale)

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

        (1 / (alpha - 1)) log of the integral of exp(-alpha |x - u|^q + (alpha - 1) |x|^q), which rises to one
        peak, by Gauss-Legendre panels on both sides of it; relative error below 1e-9, and rounded up by that.
        Infinite where the integral leaves the range of float64.
        """
        return float(self._divergences(_order(order), np.array([at_least("shift", shift)]))[0])

    def _divergences(self, order: float, shifts: Array) -> Array:
        """phi at each of `shifts`, in units of the peak: x = peak (1 + s), x - u = peak (ratio + s)."""
        if self.q <= 2.0:  # Gaussian: in closed form
            with np.errstate(over="ignore"):
                return np.asarray(order * (shifts / self.scale) ** 2 * (1.0 + ROUNDED))
        u, q = shifts[:, None] / self.scale, self.q
        log_ratio = math.log1p(-1.0 / order) / (q - 1.0)
        ratio, step = math.exp(log_ratio), -math.expm1(log_ratio)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            peak = u / step
            height = (order - 1.0) * peak**q

            # where |x|^q is not large at the peak its neighbourhood is flat, with steps around |x| = 1
            flat = q * np.log(np.maximum(peak, 1e-300)) < FLAT
            top = (order - 1.0) * u * peak ** (q - 1.0)

            def fall(s: Array) -> Array:
                near = height * (_bent(s, q) - ratio * _bent(s / ratio, q))
                x = peak * (1.0 + s)
                return np.where(flat, (order - 1.0) * np.abs(x) ** q - order * np.abs(x - u) ** q - top, near)

            size = (2.0 * DROP) ** (1.0 / q) * (1.0 + 1.0 / np.maximum(peak, 1e-300))  # beyond every end
            low, high = (_end(fall, side * size) for side in (-1.0, 1.0))
            # finer around x = 0 and x = u, where only q derivatives exist
            graded = (high - low) / PANELS * np.outer([-1.0, 1.0], 4.0 ** -np.arange(7.0)).ravel()
            ends = np.exp(STEPS / q) if q > SMOOTH else np.zeros(0)
            steps = np.concatenate(
                [side * ends + moved for side in (-1.0, 1.0) for moved in (0.0 * u, u)], axis=1
            )
            kinks = np.concatenate([graded - 1.0, graded - ratio, steps / peak - 1.0], axis=1)
            kinks = np.clip(np.where(np.isfinite(kinks), kinks, 0.0), low, high)
            both = [low * np.linspace(1.0, 0.0, PANELS + 1), high * np.linspace(0.0, 1.0, PANELS + 1), kinks]
            edges = np.sort(np.concatenate(both, axis=1), axis=1)
            width = np.diff(edges)[:, :, None] / 2.0
            s = (edges[:, :-1, None] + width * (1.0 + leggauss(POINTS)[0])).reshape(len(u), -1)
            inside = np.exp(fall(s)).reshape(*width.shape[:2], POINTS) @ leggauss(POINTS)[1]
            total = (inside * width[:, :, 0]).sum(axis=1) * peak[:, 0]
            found = (top[:, 0] + np.log(total / (2.0 * math.gamma(1.0 + 1.0 / q)))) / (order - 1.0)
        found = np.where(np.isfinite(found) & np.isfinite(height[:, 0]), found, np.inf)
        raised = np.maximum(0.0, found) * (1.0 + ROUNDED) + FLOOR / (order - 1.0)
        return np.where(shifts > 0, raised, 0.0)

    def worst_divergence(self, order: float, norm: float, dimension: int) -> float:
        """An upper bound of the divergence over all shifts of l_q norm at most `norm`.

        phi rises, so that its value at the next point of a grid bounds it between points; of that staircase
        the concave envelope in v = |u|^q is taken at norm^q / d, d times.
        """
        norms = np.array([moderate("norm", norm)])
        return float(self._worst(_order(order), norms, positive_int("dimension", dimension))[0])

    def _worst(self, order: float, norms: Array, d: int) -> Array:
        """`worst_divergence` for norms that rise, from one table of phi and one hull that grows with them."""
        if math.isinf(norms[-1]):
            return np.full(len(norms), math.inf)
        smallest, largest = norms[0] * min(SMALLEST, 0.1 / d) ** (1.0 / self.q), norms[-1]
        smallest = max(smallest, 1e-300)  # any first point will do; beyond MOST points they are farther apart
        count = math.ceil(min(MOST, self.q * (math.log(largest) - math.log(smallest)) / FINE)) + 2
        shifts = np.geomspace(smallest, largest, count)
        values, v = self._divergences(order, shifts), (shifts / largest) ** self.q
        # corners (v_i, phi(v_{i+1})) and, at 0, 0 itself: a coordinate that is not moved costs nothing
        corners = [(0.0, 0.0), (0.0, float(values[0])), *zip(v[:-1], values[1:], strict=True)]
        hull: list[tuple[float, float]] = []
        out, at = np.empty(len(norms)), 0
        for i, most in enumerate((norms / largest) ** self.q):
            while at < len(corners) and corners[at][0] <= most:
                _extend(hull, corners[at])
                at += 1
            x, y = zip(*hull, strict=True)
            out[i] = d * float(np.interp(most / d, x, y)) if math.isfinite(y[-1]) else math.inf
        return out

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
        return float(power * (moderate("norm", norm) / self.scale) ** self.q - rest)


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
    norm, d = moderate("norm", norm), positive_int("dimension", dimension)
    if np.ndim(orders) != 1 or not len(orders):
        raise ValueError(f"orders={orders!r} must be a sequence of at least one order > 1.")
    dense = np.abs(strategy.to_dense())
    # rounded up beyond the rounding that groups them
    sizes, places = np.unique(np.round(dense[dense > 0], 12) + 1e-12, return_inverse=True)
    each, best = np.zeros(dense.shape), math.inf
    for order in map(_order, orders):
        each[dense > 0] = noise._worst(order, sizes * norm, d)[places]
        total = float(each.sum(axis=0).max())
        epsilon = total + math.log1p(-1.0 / order) - (math.log(delta) + math.log(order)) / (order - 1.0)
        best = min(best, max(0.0, epsilon))
    return best


@dataclass(frozen=True, eq=False)
class LqMechanism:
    """C^-1 Z with `ExponentialPower` rows Z, for `PrivateFTRL` with gradients clipped in l_q, one a step.

    For experiments: draws come from NumPy's generator, not from the keyed one of `Mechanism`.

    Args:
        strategy: C, of n steps, square; its dense matrix is made for `epsilon`.
        noise: of one coordinate.
        norm: > 0: contributions are clipped to this l_q norm.

    Raises:
        ValueError: for an argument out of range.
    """

    strategy: Strategy
    noise: ExponentialPower
    norm: float

    def __post_init__(self) -> None:
        moderate("norm", self.norm)

    @property
    def steps(self) -> int:
        """n."""
        return self.strategy.n

    def epsilon(self, delta: float, *, dimension: int) -> float:
        """`lq_epsilon` of what is released, all iterates together."""
        return lq_epsilon(self.strategy, self.noise, norm=self.norm, dimension=dimension, delta=delta)

    def rows(self, dimension: int, *, seed: int | None = None) -> Array:
        """Noise to be added to the clipped gradients, shape (n, dimension); None takes a fresh seed."""
        z = self.noise.sample((self.strategy.rows, dimension), np.random.default_rng(seed))
        return np.asarray(self.strategy.correlate(z))


def gaussian_clip_norm(norm: float, q: float, dimension: int) -> float:
    """The 2-norm of a vector of l_q norm `norm`, at most: norm d^(1/2 - 1/q), q >= 2.

    With it as clip norm every `Mechanism` protects gradients that are bounded in l_q, by Gaussian noise.
    """
    at_least("q", q, 2.0, remedy="Below, the 2-norm is no larger than the q-norm.")
    return float(moderate("norm", norm) * positive_int("dimension", dimension) ** (0.5 - 1.0 / q))


def _order(order: float) -> float:
    if not at_least("order", order, 1.0) > 1.0:
        raise ValueError(f"order={order} must be a finite number > 1.")
    return float(order)


def _bent(s: Array, q: float) -> Array:
    """|1 + s|^q - 1 - q s, without cancellation near s = 0."""
    small = np.abs(s) * q < 0.5
    near, far, found = s[small], s[~small], np.empty_like(s)
    term = 0.5 * q * (q - 1.0) * near**2
    series, k, rest = term.copy(), 3, 1.0
    while k < 20 and (rest := rest * abs(q - k + 1.0) * 0.5 / (q * k)) > 1e-18:  # of the first term, at most
        term = term * near * ((q - k + 1.0) / k)
        series += term
        k += 1
    found[small], found[~small] = series, np.abs(1.0 + far) ** q - 1.0 - q * far
    return found


def _end(fall: Callable[[Array], Array], far: Array) -> Array:
    """Where `fall` reaches -DROP between 0 and `far`, to 1e-3 of itself and beyond it."""
    low, high = np.log(np.abs(far)) - 700.0, np.log(np.abs(far))
    for _ in range(20):
        middle = 0.5 * (low + high)
        inside = fall(np.sign(far) * np.exp(middle)) > -DROP
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    return np.asarray(np.sign(far) * np.exp(high))


def _extend(hull: list[tuple[float, float]], point: tuple[float, float]) -> None:
    """Add a point on the right of an upper concave hull."""
    while hull and hull[-1][0] == point[0]:
        hull.pop()
    while len(hull) > 1:
        (x0, y0), (x1, y1) = hull[-2:]
        if (y1 - y0) * (point[0] - x0) > (point[1] - y0) * (x1 - x0):
            break
        hull.pop()
    hull.append(point)
