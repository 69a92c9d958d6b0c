"""The nuclear norm of prefix sums under a multiplier that is constant on cells, at a cost without n.

Cut the steps into k cells of m steps each, the last of which may be shorter, and let W = R (x) I for a matrix
R over cells: step u of cell i has to do with step u of cell j alone. Let the weights E of the errors be
constant on cells too. Then || E^½ A L ||_*, W = L L^T, is the sum of g^-½ over the generalised eigenvalues of
G = A^-T W^-1 A^-1 and E. A^-1 takes differences, so G couples neighbouring steps: the cells are k strings,
side by side, the end of each tied to the beginning of the next. In modes T of the cells (T^T R^-1 T = 1,
T^T E T = diag(mass)) the strings are independent, and everything between their ends is eliminated in closed
form: det(G + mu E) is that of one matrix of at most 2 k - 1 rows, whatever the length of the strings. Then

    sum g^-½ = (1 / 2 pi) int_0^oo log(det(G + mu E) / det G) mu^-3/2 dmu,

and with mu = e^u the trapezoidal rule of step h errs by a factor exp(-2 pi^2 / h).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from anechoic._validate import Array

FINE, COARSE = 0.5, 1.0  # steps of the rule: they err by 1e-16 and 3e-9, relatively
FAR, NEAR = 50.0, 30.0  # u beyond which the integrand, which is > 0, is left out
SMALL = 1e-4  # below this, the logarithm is replaced by a chord, which lies below it
ROUNDING = 1e-6  # what is taken off, and what the logarithms kept may err by
ERROR = 1e-16  # of a logarithm, for each row of R and unit of its condition number
CLOSE = 1e-3  # relative difference of two modes below which a quotient of differences is a derivative


class Slopes(NamedTuple):
    """A nuclear norm, and its derivatives by R, shape (k, k), symmetric, and by the weights, shape (k,)."""

    value: float
    by_r: Array
    by_mass: Array


def nuclear_norm(r: Array, mass: Array, rest: int, more: int) -> float:
    """|| E^½ A L ||_*, rounded down.

    Args:
        r: R over cells, shape (k, k), definite.
        mass: weight of the squared error of each step of a cell, shape (k,), > 0.
        rest, more: steps of the last cell, >= 1, and how many more each other one has, >= 0.
    """
    return _Rule(r, mass, rest, more, FINE, FAR).value * (1 - ROUNDING)


def slopes(r: Array, mass: Array, rest: int, more: int) -> Slopes:
    """About the same number, and its derivatives."""
    return _Rule(r, mass, rest, more, COARSE, NEAR).slopes()


class _Rule:
    """The trapezoidal rule: logarithms of determinants at some mu, and at 0, with their weights."""

    def __init__(self, r: Array, mass: Array, rest: int, more: int, step: float, far: float) -> None:
        k = self._k = len(r)
        n = (k - 1) * (rest + more) + rest
        scale = float(np.mean(mass) * np.mean(r.diagonal()))  # of 1 / mu
        u = np.arange(math.floor(math.log(1e-5 / (float(n) ** 2 * k)) / step) * step, far, step)
        self._mu = np.append(np.exp(u) / scale, 0.0)
        self._mass, self._more = mass, more
        self._whole = _Segment(r, mass, rest)
        self._short = _Segment(r[:-1, :-1], mass[:-1], more) if more else None
        logs, self._matrix = self._log_dets()
        values = np.linalg.eigvalsh(r)
        error = ERROR * k * float(values[-1] / max(values[0], 1e-300))
        # concave in mu, so below the tangent at 0; where R is all but singular rounding lies above it
        logs = np.minimum(logs[:-1] - logs[-1], self._mu[:-1] * _slope(r, mass, rest, more))
        used = int(np.argmax(logs > max(SMALL, error / ROUNDING)))
        weights = np.zeros(len(u))
        weights[used:] = np.exp(-u[used:] / 2)
        # the logarithm is concave in mu and 0 at 0: below mu_used it is at least mu times its chord
        weights[used] += math.exp(-u[used] / 2) / math.expm1(step / 2)
        weights *= step / (2 * math.pi) * math.sqrt(scale)
        self.value = float(weights @ logs)
        self._weights = np.append(weights, -weights.sum())

    def _log_dets(self) -> tuple[Array, Array]:
        """log det(G + mu E) up to a constant, and the matrices that are left of them."""
        k, mu = self._k, self._mu
        ends, across, inner = self._whole.condensed(mu)
        shift = np.eye(k, k, -1)  # a string begins where the one before it ends; the first at 0
        tied, linked = shift.T @ ends @ shift, across @ shift
        masses = mu[:, None, None] * np.diag(self._mass)
        if self._short is None:
            matrix = ends + masses + tied - linked - linked.transpose(0, 2, 1)
            return np.asarray(inner + np.linalg.slogdet(matrix)[1]), matrix
        short_ends, short_across, short_inner = self._short.condensed(mu)
        matrix = np.zeros((len(mu), 2 * k - 1, 2 * k - 1))
        matrix[:, :k, :k] = ends + masses
        matrix[:, : k - 1, : k - 1] += short_ends
        matrix[:, k:, k:] = (tied + masses)[:, :-1, :-1] + short_ends
        matrix[:, :k, k:] = -linked[:, :, :-1]
        matrix[:, : k - 1, k:] -= short_across
        matrix[:, k:, :k] = matrix[:, :k, k:].transpose(0, 2, 1)
        return np.asarray(inner + short_inner + np.linalg.slogdet(matrix)[1]), matrix

    def slopes(self) -> Slopes:
        k, mu, weights = self._k, self._mu, self._weights
        p = np.linalg.inv(self._matrix) * weights[:, None, None]
        if self._short is None:
            first = second = both = p
            at_mass = mu @ np.einsum("pii->pi", p)
        else:
            first, both = p[:, :k, :k], np.pad(p[:, :k, k:], ((0, 0), (0, 0), (0, 1)))
            second = np.pad(p[:, k:, k:], ((0, 0), (0, 1), (0, 1)))
            at_mass = mu @ np.einsum("pii->pi", first + second)
        # shift @ x and x @ shift.T move rows and columns on by one
        by_ends = first.copy()
        by_ends[:, 1:, 1:] += second[:, :-1, :-1]
        moved = np.zeros_like(by_ends)
        moved[:, :, 1:] = both[:, :, :-1]
        by_r, by_mass = self._whole.pulled(mu, by_ends, -moved - moved.transpose(0, 2, 1), weights)
        by_mass = by_mass + at_mass
        if self._short is not None:
            crossed = both[:, :-1, :-1]
            more = self._short.pulled(
                mu, first[:, :-1, :-1] + second[:, :-1, :-1], -crossed - crossed.transpose(0, 2, 1), weights
            )
            by_r[:-1, :-1] += more[0]
            by_mass[:-1] += more[1]
        return Slopes(self.value, (by_r + by_r.T) / 2, by_mass)


def _slope(r: Array, mass: Array, rest: int, more: int) -> float:
    """tr(G^-1 E) = || E^½ A L ||_F^2: the derivative of log det(G + mu E) at mu = 0."""
    m = rest + more
    steps = np.append(np.full(len(r) - 1, m), rest).astype(np.float64)
    sums = np.append(0.0, np.diagonal(r.cumsum(axis=0).cumsum(axis=1)))  # of R over the first cells
    reached = steps * (steps + 1) / 2  # strings that a step of the cell has reached, and those it has not
    return float(mass @ (reached * sums[1:] + (steps * m - reached) * sums[:-1]))


class _Segment:
    """Strings side by side over some steps, with all but their ends eliminated."""

    def __init__(self, r: Array, mass: Array, steps: int) -> None:
        lower = np.linalg.cholesky(r)
        values, modes = np.linalg.eigh(lower.T @ (mass[:, None] * lower))
        self._masses, self._steps = np.maximum(values, 1e-300), steps
        self._modes, self._inverse = lower @ modes, modes.T @ np.linalg.inv(lower)

    def condensed(self, mu: Array) -> tuple[Array, Array, Array]:
        """Stiffness of an end, and between the ends, shape (points, k, k) each; log det of the inside.

        That is over its value at mu = 0, shape (points,).
        """
        ends, across, inner = self._of(mu[:, None], self._masses)
        self._diagonals = ends, across
        return self._turned(ends), self._turned(across), inner.sum(axis=1)

    def _of(self, mu: Array, masses: Array) -> tuple[Array, Array, Array]:
        """Of one string of unit stiffness."""
        m = self._steps
        theta = 2 * np.arcsinh(0.5 * np.sqrt(mu * masses))
        theta = np.maximum(theta, 1e-9 / m)
        whole = -np.expm1(-2 * m * theta)  # 2 sinh(m theta) exp(-m theta)
        ends = np.exp(-theta / 2) * (1 + np.exp(-(2 * m - 1) * theta)) * 2 * np.sinh(theta / 2) / whole
        across = np.exp(-(m - 1) * theta) * -np.expm1(-2 * theta) / whole
        inner = (m - 1) * theta + np.log(whole) - np.log(-np.expm1(-2 * theta)) - math.log(m)
        return ends, across, inner

    def _turned(self, diagonals: Array) -> Array:
        return np.asarray(self._inverse.T @ (diagonals[:, :, None] * self._inverse))

    def pulled(self, mu: Array, by_ends: Array, by_across: Array, by_inner: Array) -> tuple[Array, Array]:
        """Derivatives by R and by the masses, from those by what `condensed` returned.

        With R = T T^T a change dR is T (1 + X) for X = ½ T^-1 dR T^-T, which turns the modes Lambda into
        Lambda + X Lambda + Lambda X; functions of them change by quotients of differences.
        """
        masses, inverse, modes = self._masses, self._inverse, self._modes
        between = 0.5 * (masses[:, None] + masses)
        apart = masses[:, None] - masses
        near = np.nonzero(np.abs(apart) < CLOSE * between)  # the diagonal, and little else
        apart[near] = 1.0
        middle = between[near]
        above, below = (self._of(mu[:, None], middle * (1 + sign * CLOSE)) for sign in (1, -1))
        by_r, by_mass = np.zeros_like(inverse), np.zeros(len(masses))
        for kind, given in enumerate((by_ends, by_across)):
            values = self._diagonals[kind]
            quotients = (values[:, :, None] - values[:, None, :]) / apart
            quotients[:, *near] = (above[kind] - below[kind]) / (2 * CLOSE * middle)
            turned = inverse @ given @ inverse.T
            changes = quotients * between - 0.5 * (values[:, :, None] + values[:, None, :])
            by_r += inverse.T @ (changes * turned).sum(axis=0) @ inverse
            by_mass += np.einsum("ia,ab,ib->i", modes, (quotients * turned).sum(axis=0), modes)
        own = near[0] == near[1]
        inner = by_inner @ (above[2] - below[2])[:, own] / (2 * CLOSE * masses)
        by_r += (inverse.T * (inner * masses)) @ inverse
        by_mass += np.square(modes) @ inner
        return by_r, by_mass
