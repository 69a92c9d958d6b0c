"""Mirror steps: argmin over W of <y, w> + Psi(w) / eta, in closed form or by safeguarded roots.

Every potential here is a sum over coordinates, or a function of one: 1/2 |w|_p^2 has the gradient
N^(2-p) |w_i|^(p-1) sign(w_i), N = |w|_p, so that with N given it is separable too, and N is the root of a
falling function. A ball adds mu |w_i|^(r-1) sign(w_i) with a multiplier mu, the simplex a constant.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from anechoic._validate import Array, at_least, finite_array, moderate

HALVINGS = 64  # of an interval of log t, for all coordinates at once
INSIDE = 1e-12  # relative excess over a radius that is rounding
LOG_LARGEST = 709.0  # e to this power is a float64


@dataclass(frozen=True)
class Euclidean:
    """|w|_2^2 / 2."""


@dataclass(frozen=True)
class PNorm:
    """|w|_p^2 / 2, which is (p - 1)-strongly convex in the p-norm.

    Args:
        p: in (1, 2].
    """

    p: float

    def __post_init__(self) -> None:
        p = moderate("p", self.p)
        if not 1.0 < p <= 2.0:
            raise ValueError(f"p={p} must lie in (1, 2]: |w|_p^2 / 2 is strongly convex there only.")


@dataclass(frozen=True)
class Entropy:
    """sum_i w_i log w_i on w >= 0, which is 1-strongly convex in the 1-norm on the simplex."""


Potential = Euclidean | PNorm | Entropy


class Domain(ABC):
    """A convex set W. Subclasses are final."""

    @abstractmethod
    def separable(self, respond: Callable[[Array, float, float], Array], y: Array) -> Array:
        """The minimiser over W, given respond(y, mu, r): the w with psi'(w) + mu |w|^(r-1) sign w = -y."""

    @abstractmethod
    def contains(self, w: Array) -> bool:
        """Whether w lies in W, up to rounding."""

    @abstractmethod
    def support(self, g: Array) -> float:
        """min over W of <g, v>; -inf where there is none."""


@dataclass(frozen=True)
class AllSpace(Domain):
    """No constraint (w >= 0 for the entropy)."""

    def separable(self, respond: Callable[[Array, float, float], Array], y: Array) -> Array:
        w = respond(y, 0.0, 2.0)
        if not float(np.abs(w).max()) < math.exp(LOG_LARGEST):
            raise ValueError("the step leaves the range of float64: take a smaller rate or a bounded domain.")
        return w

    def contains(self, w: Array) -> bool:
        return True

    def support(self, g: Array) -> float:
        return 0.0 if np.abs(g).max() == 0.0 else -math.inf


@dataclass(frozen=True)
class Ball(Domain):
    """|w|_p <= radius.

    Args:
        radius: > 0.
        p: > 1 (2 by default).

    Raises:
        ValueError: for an argument out of range.
    """

    radius: float
    p: float = 2.0

    def __post_init__(self) -> None:
        moderate("radius", self.radius)
        if not at_least("p", self.p, -math.inf) > 1.0:
            raise ValueError(f"p={self.p} must be a finite number > 1.")

    def _norm(self, w: Array) -> float:
        return float(np.linalg.norm(w, ord=self.p))

    def separable(self, respond: Callable[[Array, float, float], Array], y: Array) -> Array:
        w = respond(y, 0.0, self.p)
        if self._norm(w) <= self.radius:
            return w

        def excess(log_mu: float) -> float:
            return self._norm(respond(y, _exp(log_mu), self.p)) / self.radius - 1.0

        w = respond(y, _exp(_falling_root(excess)), self.p)
        return w * min(1.0, self.radius / self._norm(w))

    def contains(self, w: Array) -> bool:
        return self._norm(w) <= self.radius * (1.0 + INSIDE)

    def support(self, g: Array) -> float:
        return -self.radius * float(np.linalg.norm(g, ord=self.p / (self.p - 1.0)))


@dataclass(frozen=True)
class Simplex(Domain):
    """w >= 0 with sum_i w_i = radius.

    Args:
        radius: > 0.

    Raises:
        ValueError: for an argument out of range.
    """

    radius: float = 1.0

    def __post_init__(self) -> None:
        moderate("radius", self.radius)

    def separable(self, respond: Callable[[Array, float, float], Array], y: Array) -> Array:
        def weights(level: float) -> Array:
            return np.maximum(respond(y - level, 0.0, 2.0), 0.0)

        spread = max(float(np.ptp(y)), 1.0)

        def excess(x: float) -> float:
            return 1.0 - float(weights(x).sum()) / self.radius

        low, high = float(y.min()), float(y.min()) + spread
        while excess(low) < 0.0:
            low -= spread
            spread *= 2.0
        while excess(high) > 0.0:
            high += spread
            spread *= 2.0
        w = weights(float(brentq(excess, low, high, xtol=1e-300, rtol=8.9e-16, maxiter=500)))
        return w * (self.radius / float(w.sum()))

    def contains(self, w: Array) -> bool:
        return bool((w >= 0).all() and abs(w.sum() - self.radius) <= self.radius * INSIDE * len(w))

    def support(self, g: Array) -> float:
        return self.radius * float(g.min())


def mirror_step(y: ArrayLike, rate: float, potential: Potential, domain: Domain) -> Array:
    """Return argmin over `domain` of <y, w> + potential(w) / rate, shape of y.

    Args:
        y: shape (d,), a sum of gradients.
        rate: eta, > 0.
        potential: `Euclidean`, `PNorm` or `Entropy`.
        domain: `AllSpace`, `Ball` or `Simplex`.

    Raises:
        ValueError: if an argument is out of range, or the entropy is asked for negative weights.

    Example:
        >>> mirror_step([3.0, 4.0], 1.0, Euclidean(), Ball(1.0)).round(6).tolist()
        [-0.6, -0.8]
    """
    y, rate = finite_array("y", y), moderate("rate", rate)
    at_least("largest |y|", float(np.abs(y).max()))
    with np.errstate(over="ignore"):
        return _step(y, rate, potential, domain)


def l1_step(y: ArrayLike, rate: float, radius: float) -> Array:
    """Take the step in |w|_1 <= radius with the entropy of both signs: w = u - v, (u, v) in a simplex of 2 d.

    It is the step of EG+- (Kivinen and Warmuth 1997). As post-processing of noisy sums of d entries it needs
    no noise for 2 d of them, and gradients keep their clip norm: ``PrivateFTRL(…, step=…)``.

    Args:
        y: shape (d,), a sum of gradients.
        rate: eta, > 0.
        radius: > 0.

    Returns:
        The point w, shape (d,), with |w|_1 <= radius.

    Raises:
        ValueError: for a rate or radius out of range, or entries of y that are not finite.

    Example:
        >>> l1_step([3.0, -4.0], 100.0, 2.0).round(6).tolist()
        [-0.0, 2.0]
    """
    y = finite_array("y", y)
    both = mirror_step(np.concatenate([y, -y]), rate, Entropy(), Simplex(radius))
    return both[: len(y)] - both[len(y) :]


def _step(y: Array, rate: float, potential: Potential, domain: Domain) -> Array:
    if isinstance(potential, Entropy):
        if isinstance(domain, Simplex):
            shifted = np.exp(-rate * (y - y.min()))
            return np.asarray(domain.radius * shifted / shifted.sum())
        return domain.separable(lambda z, mu, r: _entropy_response(z, 1.0 / rate, mu, r), y)
    p = 2.0 if isinstance(potential, Euclidean) else potential.p
    if p == 2.0:
        return domain.separable(lambda z, mu, r: _power_response(z, 1.0 / rate, 2.0, mu, r), y)

    def given(norm: float) -> Array:
        scale = norm ** (2.0 - p) / rate
        return domain.separable(lambda z, mu, r: _power_response(z, scale, p, mu, r), y)

    zero = np.zeros(len(y))
    if domain.contains(zero) and domain.support(y) >= 0.0:
        return zero
    if isinstance(domain, AllSpace) or (isinstance(domain, Ball) and domain.p == p):
        q = p / (p - 1.0)
        length = rate * float(np.linalg.norm(y, ord=q))
        w = _power_response(y, length ** (2.0 - p) / rate, p, 0.0, 2.0)
        return w if isinstance(domain, AllSpace) or length <= domain.radius else w * (domain.radius / length)

    def excess(log_norm: float) -> float:
        return float(np.linalg.norm(given(_exp(log_norm)), ord=p)) / _exp(log_norm) - 1.0

    return given(_exp(_falling_root(excess)))


def optimality_gap(w: Array, y: ArrayLike, rate: float, potential: Potential, domain: Domain) -> float:
    """An upper bound of how far w is from the least value of <y, v> + Psi(v) / eta over W; w is any point.

    With s = y + grad Psi(w) / eta the smaller of max over W of <s, w - v>, and of what all of space allows:
    eta |s|_q^2 / (2 (p - 1)), as |w|_p^2 / 2 is strongly convex, or sum w (e^(-eta s) - 1 + eta s) / eta
    for the entropy.
    """
    w, y = finite_array("w", w), finite_array("y", y)
    rate = moderate("rate", rate)
    with np.errstate(over="ignore", invalid="ignore"):
        if isinstance(potential, Entropy):
            # a coordinate that is 0 in float64 is one of 5e-324
            slope = y + (np.log(np.maximum(w, 5e-324)) + 1.0) / rate
            free = float((w * (np.expm1(-rate * slope) + rate * slope)).sum()) / rate
        else:
            p = 2.0 if isinstance(potential, Euclidean) else potential.p
            norm = float(np.linalg.norm(w, ord=p))
            kept = norm ** (2.0 - p) if norm else 0.0
            slope = y + np.sign(w) * np.abs(w) ** (p - 1.0) * kept / rate
            free = rate * float(np.linalg.norm(slope, ord=p / (p - 1.0))) ** 2 / (2.0 * (p - 1.0))
        # under the entropy a ball has no negative coordinates to gain by
        felt = (
            np.minimum(slope, 0.0) if isinstance(potential, Entropy) and isinstance(domain, Ball) else slope
        )
        bounded = float(slope @ w) - domain.support(felt)
    return bounded if math.isnan(free) else min(bounded, free)


def _power_response(y: Array, scale: float, p: float, mu: float, r: float) -> Array:
    """w with scale |w|^(p-1) sign w + mu |w|^(r-1) sign w = -y."""
    size, scale = np.abs(y), max(scale, 1e-300)
    if mu == 0.0:
        return np.asarray(-np.sign(y) * (size / scale) ** (1.0 / (p - 1.0)))
    if p == r:
        return np.asarray(-np.sign(y) * (size / (scale + mu)) ** (1.0 / (p - 1.0)))
    some = size > 0
    log_a = np.log(size[some])
    # one of the two terms is at least half of a, and neither is more than a
    high = np.minimum((log_a - math.log(scale)) / (p - 1.0), (log_a - math.log(mu)) / (r - 1.0))
    half = math.log(2.0)
    low = np.minimum((log_a - half - math.log(scale)) / (p - 1.0), (log_a - half - math.log(mu)) / (r - 1.0))
    t = _bisect(lambda x: scale * np.exp((p - 1.0) * x) + mu * np.exp((r - 1.0) * x) - size[some], low, high)
    w = np.zeros(len(y))
    w[some] = -np.sign(y[some]) * np.exp(t)
    return w


def _entropy_response(y: Array, scale: float, mu: float, r: float) -> Array:
    """w > 0 with scale (log w + 1) + mu w^(r-1) = -y."""
    free = -y / scale - 1.0
    if mu == 0.0:
        return np.exp(np.minimum(free, LOG_LARGEST))
    top = np.minimum(
        np.minimum(free, LOG_LARGEST), np.log(np.maximum((np.abs(y) + scale) / mu, 1e-300)) / (r - 1.0) + 50.0
    )
    bottom = np.minimum(free - 1.0, math.log(scale / mu) / (r - 1.0))  # the first term outweighs the second
    return np.exp(
        _bisect(lambda x: scale * (x - free) + mu * np.exp(np.minimum((r - 1.0) * x, 700.0)), bottom, top)
    )


def _exp(x: float) -> float:
    return math.exp(max(-LOG_LARGEST, min(x, LOG_LARGEST)))


def _bisect(rising: Callable[[Array], Array], low: Array, high: Array) -> Array:
    low, high = low - 1e-12 - 1e-12 * np.abs(low), high + 1e-12 + 1e-12 * np.abs(high)
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        above = rising(middle) > 0
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return np.asarray(0.5 * (low + high))


def _falling_root(f: Callable[[float], float]) -> float:
    """The root of a falling function of a real number, by doubling steps and Brent's method."""
    low, high, step = 0.0, 0.0, 1.0
    while f(low) < 0.0:
        low -= step
        step *= 2.0
        if step > 2000.0:
            raise ArithmeticError("a multiplier of the mirror step leaves the range of numbers: rescale y.")
    step = 1.0
    while f(high) > 0.0:
        high += step
        step *= 2.0
        if step > 2000.0:
            raise ArithmeticError("a multiplier of the mirror step leaves the range of numbers: rescale y.")
    if low == high:
        return low
    return float(brentq(f, low, high, xtol=1e-15, rtol=8.9e-16, maxiter=500))
