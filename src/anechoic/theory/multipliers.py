"""Zames-Falb multipliers for gradients of smooth, strongly convex functions: a convex programme by frequency.

Let d_t = theta_t - theta*, g_t = grad F(theta_t), p = g - mu d and q = L d - g. For a stationary run and
every lag k, of either sign, E<p_t, q_t - q_{t-k}> >= 0 and E<p_t, q_t> >= 0: with
phi = (L - mu) F~ - |p|^2 / 2 >= 0, F~ the objective less mu |d|^2 / 2, one has
<p_t, q_t - q_s> >= phi_t - phi_s. By frequency, for any h_k >= 0,

    mean Re(conj(P) Lambda Q) >= 0,     Lambda(w) = h_0 + sum_{k != 0} h_k (1 - e^(-i k w)).

Here the h_k are sums of geometric sequences in k and in -k, so that Lambda has no oscillations.

Row t of noise W_c is independent of theta_t, and so are later ones: mean Re(conj(Theta) T_c W_c) = 0 for
every T_c(w) = sum_{k >= 0} t_k e^(i k w), t_k of any sign and again geometric. As g_t is independent of row t
too, E<d_{t+1}, w_t> = -eta b_c E|w_t|^2, with b_c the share of row t in step t.

With D = (1 - e^(i w)) / eta and G = D Theta - sum_c B_c W_c the sum of all these is a form in Theta and W.
Where it is at most -|Theta|^2 + sum_c psi_c |W_c|^2, noise of unit power adds at most mean psi_c to
E|theta - theta*|^2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from anechoic._validate import Array
from anechoic.algebra.circle import away_from_one, gap_power

Complex = NDArray[np.complex128]
# Barrier parameter at the end, relative to the objective, and how it falls.
PRECISE, SHRINK, NEWTON = 1e-8, 0.1, 60
MOST_TERMS = 256  # of a multiplier in each direction
CELLS, QUARTERINGS = 400, 5  # an octave, on which a multiplier is checked


@dataclass(frozen=True)
class Curvature:
    """mu, L and eta of gradient descent on a mu-strongly convex, L-smooth function."""

    convexity: float
    smoothness: float
    rate: float


@dataclass(frozen=True, eq=False)
class Basis:
    """Shares kept from lag to lag: of the multiplier Lambda, in both directions, and of the causal T_c.

    Attributes:
        lags: rho in [0, 1): the functions 1 - (1 - rho) e / (1 - rho e), e = e^(-i w) and e^(i w).
        delays: rho in [0, 1): the functions (1 - rho) / (1 - rho e^(i w)) of T_c.
        causal: whether T_c and the mean of <d_{t+1}, w_t> are used.
    """

    lags: Array
    delays: Array
    causal: bool

    @property
    def free(self) -> int:
        """Coefficients of any sign for each noise."""
        return len(self.delays) + 1 if self.causal else 0

    @property
    def signed(self) -> int:
        """Coefficients that are to be >= 0: h_0 and two for each of `lags`."""
        return 1 + 2 * len(self.lags)

    def lambdas(self, omega: Array) -> Complex:
        """The functions of Lambda, shape (points, signed)."""
        ones = np.ones((len(omega), 1), dtype=np.complex128)
        forward = away_from_one(omega)[:, None] / (1.0 - self.lags * np.exp(1j * omega)[:, None])
        return np.concatenate([ones, np.conj(forward), forward], axis=1)

    def waves(self, omega: Array) -> Complex:
        """The functions of T_c and, last, e^(-i w) for the row that step t brings; shape (points, free)."""
        if not self.causal:
            return np.zeros((len(omega), 0), dtype=np.complex128)
        turn = np.exp(1j * omega)[:, None]
        return np.concatenate([(1.0 - self.delays) / (1.0 - self.delays * turn), np.conj(turn)], axis=1)


def basis(gap: float, terms: int, causal: bool) -> Basis:
    """`terms` shares 1 - g with g from gap / 4 to 1 in a geometric sequence, 1 included.

    Raises:
        ValueError: for more than MOST_TERMS.
    """
    if terms > MOST_TERMS:
        raise ValueError(f"terms={terms} must be at most {MOST_TERMS}: leave it out for 16.")
    shares = np.maximum(0.0, 1.0 - np.geomspace(gap / 4.0, 1.0, terms)) if terms else np.zeros(0)
    return Basis(shares, shares, causal)


class MultiplierForm:
    """The form at frequencies `omega`, with rows B_c of `gains`, b_c in `fresh`: linear in x."""

    def __init__(self, curve: Curvature, basis: Basis, omega: Array, gains: Complex, fresh: Array) -> None:
        d = away_from_one(omega)[:, None] / curve.rate
        lambdas, waves = basis.lambdas(omega), basis.waves(omega)
        below, above = np.conj(d - curve.convexity), curve.smoothness - d
        signed, free = basis.signed, basis.free
        channels, count = len(gains), signed + len(gains) * free
        self.room = np.zeros((len(omega), count))
        self.room[:, :signed] = -(below * lambdas * above).real
        # at the angle 0 only h_0 is felt; no quadrature has a point there
        self.limit = curve.convexity * curve.smoothness
        self.spread = (curve.smoothness - curve.convexity) ** 2 / 4.0
        self.lambdas, self.waves = lambdas, waves
        self.power, self.fresh = np.square(np.abs(gains)), curve.rate * fresh
        self.own, self.cross = [], []
        through = 0.5 * (below * lambdas - np.conj(lambdas * above))
        for c in range(channels):
            own, cross = np.zeros((len(omega), count)), np.zeros((len(omega), count), dtype=np.complex128)
            own[:, :signed] = -lambdas.real * self.power[c][:, None]
            cross[:, :signed] = through * gains[c][:, None]
            cross[:, signed + c * free : signed + (c + 1) * free] = waves
            if free:
                own[:, signed + (c + 1) * free - 1] = 2.0 * self.fresh[c]
            self.own.append(own)
            self.cross.append(cross)

    def psi(self, x: Array) -> Array:
        """The least psi_c, shape (channels, points); infinite where the form is not negative enough.

        own x + |cross x|^2 / room, in which large multipliers cancel: with V the part of T_c in cross,
        room times it is |B|^2 ((L - mu)^2 |Lambda|^2 / 4 + Re Lambda) + |cross|^2 - |cross - V|^2, to which
        the mean of <d_{t+1}, w_t> is added.
        """
        room = self.room @ x - 1.0
        safe = np.where(room > 0, room, 1.0)
        many = self.lambdas @ x[: self.lambdas.shape[1]]
        plain = self.spread * np.square(np.abs(many)) + many.real
        rows = []
        for c, cross in enumerate(self.cross):
            wave = self.waves @ self._free(x, c)
            shared = np.square(np.abs(wave)) + 2.0 * (np.conj(cross @ x - wave) * wave).real
            brought = 2.0 * self.fresh[c] * self._free(x, c)[-1:].sum()
            rows.append((plain * self.power[c] + shared) / safe + brought)
        return np.where(room > 0, np.array(rows), np.inf)

    def _free(self, x: Array, c: int) -> Array:
        """The coefficients of T_c."""
        signed, free = self.lambdas.shape[1], self.waves.shape[1]
        return x[signed + c * free : signed + (c + 1) * free]

    def of_gain(self, x: Array, weights: Array) -> tuple[Complex, float]:
        """How weights @ psi_0 grows with log B_0: by frequency, where it is complex, and with log b_0."""
        room, wave = self.room @ x - 1.0, self.waves @ self._free(x, 0)
        through = self.cross[0] @ x - wave
        brought = 2.0 * self.fresh[0] * self._free(x, 0)[-1:].sum()
        own = self.own[0] @ x - brought + (np.square(np.abs(through)) + np.conj(wave) * through) / room
        return np.asarray(2.0 * weights * own), float(brought * weights.sum())

    def slopes(self, x: Array, weights: Array) -> tuple[Array, Array]:
        """Gradient and Hessian of sum_c weights_c @ psi_c."""
        room = self.room @ x - 1.0
        gradient, hessian = np.zeros(len(x)), np.zeros((len(x), len(x)))
        for own, cross, weight in zip(self.own, self.cross, weights, strict=True):
            ratio = (cross @ x) / room
            gradient += weight @ own + (weight * 2.0 * ratio.real) @ cross.real
            gradient += (weight * 2.0 * ratio.imag) @ cross.imag - (
                weight * np.square(np.abs(ratio))
            ) @ self.room
            tilted = (cross - ratio[:, None] * self.room) * np.sqrt(2.0 * weight / room)[:, None]
            hessian += tilted.real.T @ tilted.real + tilted.imag.T @ tilted.imag
        return gradient, hessian


def feasible(curve: Curvature, basis: Basis, channels: int) -> Array:
    """Coefficients with room at every frequency: almost the constant multiplier 2 / (mu L)."""
    x = np.zeros(basis.signed + channels * basis.free)
    x[0] = 2.0
    # one function of Lambda is at most 2, and |below above| at most (2 / eta + L)^2
    spoil = 2.0 * (2.0 / curve.rate + curve.smoothness) ** 2 / (curve.convexity * curve.smoothness)
    x[1 : basis.signed] = 0.5 / (spoil * max(1, basis.signed - 1))
    return x / (curve.convexity * curve.smoothness)


def least(form: MultiplierForm, weights: Array, x: Array, signed: int) -> tuple[Array, float]:
    """The x of least sum_c weights_c @ psi_c with x[:signed] >= 0, by a logarithmic barrier.

    psi is a square over a linear function, hence convex in x.

    Args:
        form: at the points of a quadrature.
        weights: shape (channels, points), >= 0.
        x: feasible.
        signed: how many entries are to be >= 0.

    Returns:
        x, and a bound of how far its value lies above the least one, relative (barrier / value).
    """

    def total(x: Array) -> float:
        psi = form.psi(x)
        return float((weights * psi).sum()) if np.isfinite(psi).all() else math.inf

    objective = total(x)
    barrier = objective

    def value(x: Array) -> float:
        at_zero = form.limit * x[0] - 1.0
        if x[:signed].min() <= 0 or at_zero <= 0:
            return math.inf
        return total(x) - barrier / signed * float(np.log(x[:signed]).sum() + np.log(at_zero))

    while barrier > PRECISE * objective:
        if objective <= 0.0:
            raise ArithmeticError(
                f"the bound fell to {objective:.3g} <= 0, which no noise has: do not use it."
            )
        barrier *= SHRINK
        for _ in range(NEWTON):
            gradient, hessian = form.slopes(x, weights)
            slack = x[0] - 1.0 / form.limit
            gradient[0] -= barrier / signed / slack
            hessian[0, 0] += barrier / signed / slack**2
            gradient[:signed] -= barrier / signed / x[:signed]
            hessian[np.arange(signed), np.arange(signed)] += barrier / signed / x[:signed] ** 2
            scale = 1.0 / np.sqrt(np.diag(hessian))
            scaled = hessian * np.outer(scale, scale) + 1e-13 * np.eye(len(x))
            step = -scale * cho_solve(cho_factor(scaled), scale * gradient)
            decrement, now, size = float(-gradient @ step), value(x), 1.0
            if decrement <= 1e-9 * barrier:
                break
            while value(x + size * step) > now - 0.1 * size * decrement and size > 1e-10:
                size /= 2.0
            if size <= 1e-10:
                break
            x = x + size * step
        objective = total(x)
    return x, barrier * (1.0 + 1.0 / signed) / objective


def proven_room(curve: Curvature, basis: Basis, h: Array) -> float:
    """A lower bound of the room of the form over *all* frequencies; <= 0 where none is proven.

    Between the ends of a cell of width s a function falls at most s^2 / 8 times a bound of its second
    derivative below the lower end. Room is -1 - sum_i h_i Re(p f_i) with p = conj(D - mu) (L - D); on a cell
    |1 - rho e^(i w)| is least at its lower end, which bounds f_i, f_i' and f_i''. Cells on which that is not
    enough are quartered, a few times: near the rate 2 / (L + mu) there is next to no room at the angle pi.
    """
    finest = min(float(1.0 - basis.lags.max(initial=0.0)), curve.rate * curve.convexity) / 64.0
    octaves = math.ceil(math.log2(math.pi / finest))
    edges = np.concatenate([[0.0], math.pi * 2.0 ** np.linspace(-octaves, 0.0, CELLS * octaves)])
    low, high, least_room = edges[:-1], edges[1:], math.inf
    for _ in range(QUARTERINGS):
        proven = _proven(curve, basis, h, low, high)
        short = proven <= 0.0
        least_room = min(least_room, float(proven[~short].min(initial=math.inf)))
        if not short.any():
            return least_room
        width = (high[short] - low[short]) / 4.0
        low = (low[short] + np.arange(4.0)[:, None] * width).ravel()
        high = low + np.tile(width, 4)
    return float(proven.min())


def _proven(curve: Curvature, basis: Basis, h: Array, low: Array, high: Array) -> Array:
    """A lower bound of the room on each cell."""
    plain = Basis(basis.lags, basis.delays, False)
    room = [
        MultiplierForm(curve, plain, omega, np.zeros((0, len(omega)), np.complex128), np.zeros(0)).room @ h
        for omega in (low, high)
    ]
    near = np.sqrt(gap_power((1.0 - basis.lags), np.square(np.sin(low / 2))[:, None]))
    # f = y / (1 - rho e), y = 1 - e: f' = -i e (1 - rho) / (1 - rho e)^2
    first = (1.0 - basis.lags) / near**2
    second = (1.0 - basis.lags) * (1.0 / near**2 + 2.0 * basis.lags / near**3)
    size = np.minimum(2.0, np.sqrt(4.0 * np.square(np.sin(high / 2)))[:, None] / near)
    doubled = [np.concatenate([part, part], axis=1) @ h[1:] for part in (size, first, second)]
    step, far = 1.0 / curve.rate, 2.0 * np.sin(high / 2) / curve.rate  # of |D|
    p0 = (far + curve.convexity) * (far + curve.smoothness)
    p1 = step * (2.0 * far + curve.convexity + curve.smoothness)
    p2 = p1 + 2.0 * step**2
    bend = p0 * doubled[2] + 2.0 * p1 * doubled[1] + p2 * (doubled[0] + h[0])
    return np.asarray(np.minimum(*room) - 1.0 - np.square(high - low) / 8.0 * bend)
