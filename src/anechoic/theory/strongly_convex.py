"""An upper bound of F_inf for every smooth and strongly convex objective, and noise that lowers it.

Paper 000, Theorem 3.1 and Appendix E, with three differences. The lags of its multiplier have the wrong sign
(docs/errata.md, P8). Its constants are eight times what its proof gives: F <= L E|d|^2 / 2, independent noise
has power G^2 gamma^2 / (2 rho) a coordinate, and the gradients' own noise, a martingale difference of power
sigma^2, is uncorrelated with it. And it forgets that noise is independent of the past: `causal=True` adds
that. Without it the bound of plain DP-SGD lies far above what one line of algebra gives (P9).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from anechoic._validate import Array, positive_float, positive_int
from anechoic.algebra.circle import Circle, away_from_one, circle, gap_power
from anechoic.strategies import BLT, HorizonFree, without_horizon
from anechoic.theory.multipliers import (
    Basis,
    Complex,
    Curvature,
    MultiplierForm,
    basis,
    feasible,
    least,
    proven_room,
)
from anechoic.theory.optimal import best_blt
from anechoic.theory.spectra import spectrum

EXCESS = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
TERMS = 16  # geometric sequences in a multiplier, by default


@dataclass(frozen=True)
class StronglyConvex:
    """Gradient steps on a mu-strongly convex, L-smooth objective whose single losses are Lipschitz.

    Args:
        condition: kappa = L / mu, >= 1.
        learning_rate: eta, > 0, at most 2 / (L + mu).
        smoothness: L, > 0.
        dimension: d, >= 1.
        gradient_std: sigma_sgd, root of the largest E|g_t - grad F|^2, >= 0.

    Raises:
        ValueError: if an argument is out of range.
    """

    condition: float
    learning_rate: float
    smoothness: float = 1.0
    dimension: int = 1
    gradient_std: float = 0.0

    def __post_init__(self) -> None:
        smooth = positive_float("smoothness", self.smoothness)
        if not (self.condition >= 1.0 and math.isfinite(self.condition)):
            raise ValueError(f"condition={self.condition} must be a finite number >= 1: it is L / mu.")
        limit = 2.0 / (smooth * (1.0 + 1.0 / self.condition))
        if positive_float("learning_rate", self.learning_rate) > limit * (1 + 1e-12):
            raise ValueError(
                f"learning_rate={self.learning_rate} must be at most 2 / (L + mu) = {limit:.6g}: beyond it"
                " steps contract no better for any objective of the class."
            )
        positive_int("dimension", self.dimension)
        if not (math.isfinite(self.gradient_std) and self.gradient_std >= 0):
            raise ValueError(f"gradient_std={self.gradient_std} must be a finite number >= 0.")

    @property
    def curvature(self) -> Curvature:
        """mu, L and eta."""
        return Curvature(self.smoothness / self.condition, self.smoothness, self.learning_rate)

    @property
    def gap(self) -> float:
        """eta mu: the share of a displacement that a step takes off, at least."""
        return self.learning_rate * self.smoothness / self.condition

    def contraction_bound(self, rho: float, clip_norm: float = 1.0) -> float:
        """F_inf of *independent* noise: (L / 2) eta^2 (d G^2 / (2 rho) + sigma^2) / (1 - (1 - eta mu)^2).

        A step without noise contracts by 1 - eta mu, and fresh noise adds its variance.
        """
        power = _independent_power(self, rho, clip_norm) + self.gradient_std**2
        return self.smoothness / 2.0 * self.learning_rate**2 * power / (self.gap * (2.0 - self.gap))


@dataclass(frozen=True, eq=False)
class StronglyConvexBound:
    """An upper bound of F_inf with its certificate.

    Attributes:
        value: F_inf is at most this for every objective of the class. `multiplier` is feasible at every
            frequency, not only at those of a grid, and `value` is the mean of an explicit function.
        basis, coefficients: the certificate: the multiplier's coefficients h >= 0, then those of causality.
        room: a proven lower bound, over all frequencies, of what must stay > 0.
        gap: how far `value` may lie above the best multiplier of these terms, relative.
        points: frequencies at which the programme was solved.
        coarse: the value that those points alone gave: it differs from `value` by what they miss.
    """

    value: float
    basis: Basis
    coefficients: Array
    room: float
    gap: float
    points: int
    coarse: float


def strongly_convex_bound(
    problem: StronglyConvex,
    noise: HorizonFree,
    *,
    rho: float,
    clip_norm: float = 1.0,
    causal: bool = True,
    terms: int = TERMS,
) -> StronglyConvexBound:
    """The least upper bound of F_inf that multipliers of so many terms prove for a given noise.

    Args:
        problem: the class of objectives.
        noise: without horizon.
        rho: > 0, of zCDP.
        clip_norm: G, > 0, the Lipschitz constant of single losses.
        causal: use that noise is independent of the past; False gives the programme of the paper, in which
            only the power of the noise counts.
        terms: >= 0, of the multiplier in each direction; 0 is the constant multiplier (circle criterion).

    Raises:
        ValueError: if an argument is out of range.
        ArithmeticError: if the multiplier found is not proven feasible between the points of the grid.

    Example:
        >>> from anechoic.strategies import BandedInverse, without_horizon
        >>> problem = StronglyConvex(condition=100, learning_rate=1.0)
        >>> plain = without_horizon(BandedInverse(1, [1.0]))
        >>> [round(strongly_convex_bound(problem, plain, rho=0.5, causal=c).value, 1) for c in (False, True)]
        [127.6, 25.1]
    """
    found = spectrum(noise)
    gain = math.sqrt(_independent_power(problem, rho, clip_norm)) * found.gamma

    def channel(omega: Array) -> Complex:
        # theta_{t+1} is e^(i w) Theta here, so that a delay is e^(-i w)
        return np.asarray(gain * np.conj(found.transfer(omega)))

    return _bound(problem, channel, gain * float(noise.at(1).correlate([1.0])[0]), causal, terms)


@dataclass(frozen=True, eq=False)
class OptimizedBound:
    """A noise that makes the bound small.

    Attributes:
        strategy: a BLT without horizon.
        bound: of that strategy.
        history: the bound after each turn; it falls.
    """

    strategy: HorizonFree
    bound: StronglyConvexBound
    history: tuple[float, ...]


def optimized_strongly_convex_bound(
    problem: StronglyConvex,
    *,
    rho: float,
    clip_norm: float = 1.0,
    causal: bool = True,
    terms: int = TERMS,
    turns: int = 20,
    buffers: int = 4,
) -> OptimizedBound:
    """Noise and multiplier by turns, as the paper does: each turn keeps one and improves the other.

    The joint problem is not convex: what is found is a local optimum, started at the damped root of eta mu.

    Args:
        problem, rho, clip_norm, causal, terms: as for `strongly_convex_bound`.
        turns: >= 1.
        buffers: of the BLT, 1 to 20.

    Raises:
        ValueError: if an argument is out of range.
    """
    power = _independent_power(problem, rho, clip_norm)
    shrink = min(problem.gap, 1.0 - 1e-3)
    points = circle(lambda omega: _reach(shrink, omega)[None, :], shrink / 4)
    start = np.sqrt(gap_power(shrink, points.half_sines))
    strategy, _ = best_blt(points, 1.0 / start**2, shrink, buffers)  # |B|^2 near that of the damped root
    history: list[float] = []
    best: tuple[HorizonFree, StronglyConvexBound] | None = None
    for _ in range(positive_int("turns", turns)):
        bound = strongly_convex_bound(
            problem, strategy, rho=rho, clip_norm=clip_norm, causal=causal, terms=terms
        )
        if best is not None and bound.value >= best[1].value * (1 - 1e-6):
            break
        best = strategy, bound
        history.append(bound.value)
        strategy = _improved(problem, strategy, bound, power)
    assert best is not None
    return OptimizedBound(*best, tuple(history))


def _improved(
    problem: StronglyConvex, strategy: HorizonFree, bound: StronglyConvexBound, power: float
) -> HorizonFree:
    """The BLT of least bound for a fixed multiplier, from the present one."""
    gap, x, parts = min(problem.gap, 0.5), bound.coefficients, bound.basis
    points = circle(lambda omega: _reach(gap, omega)[None, :], gap / 16)
    away = away_from_one(points.angles)
    ones = np.ones((1, len(away)), dtype=np.complex128)
    form = MultiplierForm(
        problem.curvature, Basis(parts.lags, parts.delays, False), points.angles, ones, np.zeros(1)
    )
    h, tau = x[: parts.signed], x[parts.signed : parts.signed + parts.free]
    room, own, through = form.room @ h - 1.0, form.own[0] @ h, form.cross[0] @ h
    wave = parts.waves(points.angles) @ tau
    fresh = 2.0 * problem.learning_rate * float(tau[-1]) if len(tau) else 0.0

    def objective(theta: Array) -> float:
        rates = np.cumsum(np.exp(theta))
        decay, gaps = np.exp(-rates), -np.expm1(-rates)
        factors = gaps[:, None] + decay[:, None] * away  # 1 - decay e^(i w)
        b = np.conj(np.prod(factors[::2], axis=0) / np.prod(factors[1::2], axis=0))
        gamma = math.sqrt(float(points.mean(1.0 / np.square(np.abs(b)))))
        gain = math.sqrt(power) * gamma * b
        psi = own * np.square(np.abs(gain)) + np.square(np.abs(through * gain + wave)) / room
        # a BLT has beta_0 = 1
        return float(points.mean(psi)) + fresh * math.sqrt(power) * gamma

    decays = _blt_rates(strategy)
    found = minimize(
        objective, np.log(np.diff(decays, prepend=0.0)), method="L-BFGS-B", options={"maxiter": 60}
    )
    decay = np.exp(-np.cumsum(np.exp(found.x)))
    return without_horizon(BLT.from_poles(1, decay[::2], decay[1::2]))


def _blt_rates(strategy: HorizonFree) -> Array:
    finite = strategy.at(1)
    both = np.concatenate([np.asarray(finite.decay), np.asarray(finite.inverse_decay)])  # type: ignore[attr-defined]
    return np.sort(-np.log(both))


def _reach(gap: float, omega: Array) -> Array:
    return np.asarray(1.0 / gap_power(gap, np.square(np.sin(omega / 2))))


def _independent_power(problem: StronglyConvex, rho: float, clip_norm: float) -> float:
    """d G^2 / (2 rho): the power of independent noise, summed over coordinates."""
    return (
        problem.dimension * positive_float("clip_norm", clip_norm) ** 2 / (2.0 * positive_float("rho", rho))
    )


def _bound(
    problem: StronglyConvex, channel: Callable[[Array], Complex], fresh: float, causal: bool, terms: int
) -> StronglyConvexBound:
    shrink, sigma, curve = min(problem.gap, 0.5), problem.gradient_std, problem.curvature
    parts = basis(shrink, positive_int("terms", terms, minimum=0), causal)

    def gains(omega: Array) -> Complex:
        first = channel(omega)
        return np.stack([first, np.full(len(first), sigma, dtype=np.complex128)]) if sigma else first[None, :]

    def rows(omega: Array) -> Array:
        power = np.square(np.abs(gains(omega))).sum(axis=0)
        return np.stack([power, power * _reach(shrink, omega)])

    points: Circle = circle(rows, shrink / 16)
    at = gains(points.angles)
    brought = np.array([fresh, sigma])
    form = MultiplierForm(curve, parts, points.angles, at, brought)
    weights = np.tile(points.weights, (len(at), 1))
    x, gap = least(form, weights, feasible(curve, parts, len(at)), parts.signed)
    # a little more of everything leaves room that can be proven, for that much in the bound
    for excess in EXCESS:
        room = proven_room(curve, parts, (1.0 + excess) * x[: parts.signed])
        if room > 0:
            x = (1.0 + excess) * x
            break
    else:
        raise ArithmeticError(
            f"the multiplier has room on the grid, but is not proven to have it elsewhere ({room:.3g}): take"
            " fewer terms."
        )

    def integrand(omega: Array) -> Array:
        return np.asarray(
            MultiplierForm(curve, parts, omega, gains(omega), brought).psi(x).sum(axis=0)[None, :]
        )

    finer = circle(integrand, shrink / 16)
    half = problem.smoothness / 2.0
    value = half * float(finer.mean(integrand(finer.angles))[0])
    coarse = half * float((weights * form.psi(x)).sum())
    return StronglyConvexBound(value, parts, x, room, gap, len(points.angles), coarse)
