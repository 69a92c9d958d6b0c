"""An upper bound of F_inf for every smooth and strongly convex objective, and noise that lowers it.

Paper 000, Theorem 3.1 and Appendix E, with three differences. The lags of its multiplier have the wrong sign
('Errata', P8). Its constants are eight times what its proof gives: F <= L E|d|^2 / 2, independent noise
has power G^2 gamma^2 / (2 rho) a coordinate, and the gradients' own noise, a martingale difference of power
sigma^2, is uncorrelated with it. And it forgets that noise is independent of the past: `causal=True` adds
that. Without it the bound of independent noise lies far above what one line of algebra gives (P9).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize

from anechoic._validate import Array, at_least, moderate, positive_int
from anechoic.algebra.circle import Circle, away_from_one, circle, gap_power
from anechoic.strategies import BandedInverse, endless, make_endless
from anechoic.strategies.endless import Endless
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
from anechoic.theory.optimal import best_blt, blt_of, least_near
from anechoic.theory.spectra import spectrum

# Room that a multiplier is given, the least first, and what its bound may grow by for that.
ROOMS, MOST_SHARE = (1e-5, 1e-3, 1e-2, 1e-1), 1.2
DAMPINGS = 9  # tried before the best one is refined
LEAST_CONDITION = 1.0 + 1e-4  # a class lies in that of this one: quadratics alone have no best multiplier
SLOWEST = 1e-6  # least eta mu: float64 does not tell slower decay from none
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
        smooth = moderate("smoothness", self.smoothness)
        at_least("condition", self.condition, 1.0, remedy="It is L / mu.")
        limit = 2.0 / (smooth * (1.0 + 1.0 / self.condition))
        if moderate("learning_rate", self.learning_rate) > limit * (1 + 1e-12):
            raise ValueError(
                f"learning_rate={self.learning_rate} must be at most 2 / (L + mu) = {limit:.6g}: beyond it"
                " steps contract no better for any objective of the class."
            )
        if self.gap < SLOWEST:
            raise ValueError(
                f"condition={self.condition}, learning_rate={self.learning_rate}: eta mu = {self.gap:.3g}"
                f" must be at least {SLOWEST:g}: slower contraction is lost in rounding. Take a larger rate."
            )
        positive_int("dimension", self.dimension)
        at_least("gradient_std", self.gradient_std)

    @property
    def curvature(self) -> Curvature:
        """mu, L and eta; a condition below 1.0001 counts as 1.0001, which a bound may."""
        return Curvature(
            self.smoothness / max(self.condition, LEAST_CONDITION), self.smoothness, self.learning_rate
        )

    @property
    def gap(self) -> float:
        """eta mu: the share of a displacement that a step takes off, at least."""
        return self.learning_rate * self.smoothness / self.condition

    def contraction_bound(self, rho: float, clip_norm: float = 1.0) -> float:
        """F_inf of *independent* noise: (L / 2) eta^2 (d G^2 / (2 rho) + sigma^2) / (1 - (1 - eta mu)^2).

        A step without noise contracts by 1 - eta mu, and fresh noise adds its variance.
        """
        power = power_of(self, rho, clip_norm) + self.gradient_std**2
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
    noise: Endless,
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
        terms: 0 to 256, of the multiplier in each direction; 0 is the constant multiplier (circle criterion).

    Raises:
        ValueError: if an argument is out of range.
        ArithmeticError: if the multiplier found is not proven feasible between the points of the grid, not
            even for a bound a fifth larger; at the limit 2 / (L + mu) of the rate bounds are up to .1 %
            larger for that.

    Example:
        >>> from anechoic.strategies import BandedInverse, make_endless
        >>> problem = StronglyConvex(condition=100, learning_rate=1.0)
        >>> plain = make_endless(BandedInverse(1, [1.0]))
        >>> [round(strongly_convex_bound(problem, plain, rho=0.5, causal=c).value, 1) for c in (False, True)]
        [127.6, 25.1]
    """
    found = spectrum(noise)
    gain = math.sqrt(power_of(problem, rho, clip_norm)) * found.gamma

    def channel(omega: Array) -> Complex:
        # theta_{t+1} is e^(i w) Theta here, so that a delay is e^(-i w)
        return np.asarray(gain * np.conj(found.transfer(omega)))

    return _bound(problem, channel, gain * float(noise.at(1).correlate([1.0])[0]), causal, terms)


@dataclass(frozen=True, eq=False)
class OptimizedBound:
    """A noise that makes the bound small.

    Attributes:
        strategy: without horizon: a BLT, or the start that it did not improve.
        bound: of that strategy.
        history: the least bound after the starts, and after each turn that lowered it.
    """

    strategy: Endless
    bound: StronglyConvexBound
    history: tuple[float, ...]


def optimized_strongly_convex_bound(
    problem: StronglyConvex,
    *,
    rho: float,
    clip_norm: float = 1.0,
    causal: bool = True,
    terms: int = TERMS,
    turns: int = 40,
    buffers: int = 4,
) -> OptimizedBound:
    """A BLT of small bound. It is never worse than independent noise or than the best damped root.

    The joint problem of noise and multiplier is not convex. The least bound over multipliers is a smooth
    function of the noise, with a gradient at no further cost; L-BFGS lowers it from the BLT next to the
    best damped root. What is found is a local optimum. For kappa = 100, eta = 1 and `causal` it has .6045 of
    the bound of independent noise, and that is the best: the multiplier found is constant, and with such
    ones no noise without horizon has less than .6044, by duality (`tests/theory/best_noise.py`).

    Not the noise but the bound is what limits the ratio: L |d|^2 / 2 may be kappa times F.

    Args:
        problem, rho, clip_norm, causal, terms: as for `strongly_convex_bound`.
        turns: steps of L-BFGS, >= 1; it ends sooner where nothing is gained.
        buffers: of the BLT, 1 to 20.

    Raises:
        ValueError: if an argument is out of range.
    """
    turns = positive_int("turns", turns)
    given: dict[str, Any] = {"rho": rho, "clip_norm": clip_norm, "causal": causal, "terms": terms}
    damped = best_damped_bound(problem, **given)
    plain = make_endless(BandedInverse(1, [1.0]))
    best, bound = min(
        (damped, (plain, strongly_convex_bound(problem, plain, **given))), key=lambda pair: pair[1].value
    )
    history = [bound.value]
    power, how = power_of(problem, rho, clip_norm), (causal, terms)
    for blt in _descent(problem, damped[0], power, how, turns, buffers):
        found = strongly_convex_bound(problem, blt, **given)
        if found.value < bound.value:
            best, bound = blt, found
            history.append(bound.value)
    return OptimizedBound(best, bound, tuple(history))


def best_damped_bound(
    problem: StronglyConvex, *, rho: float, clip_norm: float = 1.0, causal: bool = True, terms: int = TERMS
) -> tuple[Endless, StronglyConvexBound]:
    """The damped root of least bound: a sweep of its damping from eta mu to 1, refined around the best.

    Args:
        problem, rho, clip_norm, causal, terms: as for `strongly_convex_bound`.
    """

    def bound(log_nu: float) -> StronglyConvexBound:
        noise = endless.damped(math.exp(log_nu))
        return strongly_convex_bound(problem, noise, rho=rho, clip_norm=clip_norm, causal=causal, terms=terms)

    grid = np.linspace(math.log(min(problem.gap, 0.1)), math.log(0.999), DAMPINGS)
    _, best = least_near(lambda x: bound(x).value, grid, within=5e-2)
    return endless.damped(math.exp(best)), bound(best)


def _descent(
    problem: StronglyConvex, start: Endless, power: float, how: tuple[bool, int], turns: int, buffers: int
) -> list[Endless]:
    """The BLT nearest to `start`, and the one at which L-BFGS over its decays ends.

    d min_x psi(x, b) / db is that of psi at the best x, which is found anew for each noise b.
    """
    gap, sigma, curve = min(problem.gap, 0.5), problem.gradient_std, problem.curvature
    parts = basis(gap, how[1], causal=how[0])
    points = circle(lambda omega: _reach(gap, omega)[None, :], gap / 64)
    away = away_from_one(points.angles)
    nearest, rates, _ = best_blt(points, spectrum(start).power(points.angles) ** -2, gap, buffers)
    weights = np.tile(points.weights, (2 if sigma else 1, 1))
    own = np.full((1, len(away)), sigma, dtype=np.complex128)
    signs = np.where(np.arange(2 * buffers) % 2 == 0, 1.0, -1.0)  # the even ones are decays of C

    def objective(theta: Array) -> tuple[float, Array]:
        rates = np.cumsum(np.exp(theta))
        decay = np.exp(-rates)[:, None]
        factors = -np.expm1(-rates)[:, None] + decay * away  # 1 - decay e^(i w)
        b = np.exp(signs @ np.log(factors))
        by_rate = signs[:, None] * decay * (1.0 - away) / factors  # d log b / d rate
        norm = points.weights / np.square(np.abs(b))
        gamma = math.sqrt(float(norm.sum()))
        by_gamma = -(by_rate.real @ norm) / gamma**2  # d log gamma / d rate
        gain = math.sqrt(power) * gamma * np.conj(b)
        fresh = math.sqrt(power) * gamma  # a BLT has beta_0 = 1
        gains = np.concatenate([gain[None, :], own]) if sigma else gain[None, :]
        form = MultiplierForm(curve, parts, points.angles, gains, np.array([fresh, sigma]))
        x, _ = least(form, weights, feasible(curve, parts, len(gains)), parts.signed)
        value = float((weights * form.psi(x)).sum())
        slope, brought = form.of_gain(x, points.weights)
        by_rates = (np.conj(by_rate) @ slope).real + by_gamma * (slope.real.sum() + brought)
        return math.log(value), np.cumsum(by_rates[::-1])[::-1] * np.exp(theta) / value

    first = np.log(np.maximum(np.diff(rates, prepend=0.0), 1e-17))
    bounds = [(math.log(gap / 32.0), 3.0)] + [(-40.0, 3.0)] * (2 * buffers - 1)
    found = minimize(
        objective,
        np.clip(first, *np.transpose(bounds)),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": turns, "ftol": 1e-7, "gtol": 1e-6},
    )
    return [nearest, blt_of(np.cumsum(np.exp(found.x)))]


def _reach(gap: float, omega: Array) -> Array:
    return np.asarray(1.0 / gap_power(gap, np.square(np.sin(omega / 2))))


def power_of(problem: StronglyConvex, rho: float, clip_norm: float) -> float:
    """d G^2 / (2 rho): the power of independent noise, summed over coordinates."""
    return problem.dimension * moderate("clip_norm", clip_norm) ** 2 / (2.0 * moderate("rho", rho))


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
    room = proven_room(curve, parts, x[: parts.signed])
    for wanted in ROOMS:
        # 1 + room is linear in x: so much more of everything has it, for as much more in the bound
        share = max(1.0, (1.0 + wanted) / (1.0 + room)) if room > -1.0 else math.inf
        if share > MOST_SHARE:
            break
        scaled = share * x

        def integrand(omega: Array, scaled: Array = scaled) -> Array:
            psi = MultiplierForm(curve, parts, omega, gains(omega), brought).psi(scaled)
            return np.asarray(psi.sum(axis=0)[None, :])

        try:
            finer = circle(integrand, shrink / 16)
        except ArithmeticError:
            continue  # too little room for any points of the circle
        half = problem.smoothness / 2.0
        value = half * float(finer.mean(integrand(finer.angles))[0])
        coarse = half * float((weights * form.psi(scaled)).sum())
        proven = share * (1.0 + room) - 1.0
        return StronglyConvexBound(value, parts, scaled, proven, gap, len(points.angles), coarse)
    raise ArithmeticError(
        f"learning_rate={problem.learning_rate}, terms={terms}: the multiplier has room on the grid, but is"
        f" not proven to have enough elsewhere ({room:.3g}). Take fewer terms, or a rate farther below"
        " 2 / (L + mu)."
    )
