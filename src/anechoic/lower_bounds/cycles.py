"""A lower bound for prefix sums under cyclic participation whose cost does not grow with the number of steps.

The bound is that of `participation_dual` with weights p that are constant in each cycle, and one correlation
matrix R for all places of the cycle, W = R (x) I. Then || diag(p)^½ A L ||_* is the sum of g^-½ over the
generalised eigenvalues of G = A^-T W^-1 A^-1 and the mass E = diag(p). A^-1 takes differences, so G couples
neighbouring steps: the k cycles are k strings, side by side, the end of each tied to the beginning of the
next. In modes V of one cycle (V^T R^-1 V = 1, V^T E V = diag(mass)) the strings are independent, and
everything between their ends is eliminated in closed form: det(G + mu E) is that of one k x k matrix,
whatever the length of the strings. Then

    sum g^-½ = (1 / 2 pi) int_0^oo log(det(G + mu E) / det G) mu^-3/2 dmu,

and with mu = e^u the trapezoidal rule of step h errs by a factor exp(-2 pi^2 / h).
"""

from __future__ import annotations

import math

import numpy as np
import scipy

from anechoic._validate import Array

STEP = 0.5  # of the trapezoidal rule: its relative error is below 1e-16
SMALL = 1e-4  # below this, the logarithm is replaced by a chord, which lies below it
ROUNDING = 1e-6  # what is taken off: the logarithms err by some 1e-13, at most 1e-8 of the smallest one kept
MOST = 100  # points above u = 0, beyond which the integrand is left out
GROWTHS = (1.0, 1.4, 2.0, 3.0)  # of the weights of the steps from one cycle to the next
LARGEST = 64  # participations up to which the bound is cheap


def cyclic_bound(n: int, period: int, *, growing: bool = False) -> float:
    """No factorisation of prefix sums has a smaller RMS loss (hence max loss) under Cyclic(period).

    R is a blend of the identity and the correlations of the columns of diag(p)^½ A, the best of its kind.

    Args:
        n: steps.
        period: below n.
        growing: let the weights of the steps grow from cycle to cycle: a bound for the max loss alone.

    References:
        Monograph, Problem 4.6, whose dual this is; the theorem is in `participation_dual`.
    """
    growths = GROWTHS if growing else GROWTHS[:1]

    def lowest(growth: float) -> float:
        found = scipy.optimize.minimize_scalar(
            lambda blend: -_value(n, period, growth, blend),
            bounds=(0.0, 0.99),
            method="bounded",
            options={"xatol": 0.04},
        )
        return -float(found.fun)

    return max(map(lowest, growths))


def _value(n: int, period: int, growth: float, blend: float) -> float:
    """The bound with these weights and this R: every choice gives a valid one."""
    count = -(-n // period)
    rest = n - (count - 1) * period  # steps of the last cycle
    steps = np.append(np.full(count - 1, float(period)), rest)
    mass = growth ** np.arange(1.0 - count, 1.0)
    weights = mass * steps
    # H[t, t'] is the weight of the steps at or after both; here for the middle of the last cycle's places
    after = np.cumsum(weights[::-1])[::-1] - mass * 0.5 * min(rest, period)
    correlations = np.sqrt(np.minimum.outer(after, after) / np.maximum.outer(after, after))
    strings = _Strings(blend * correlations + (1 - blend) * np.eye(count), mass, rest, period - rest)
    u = STEP * np.arange(math.floor(math.log(1e-5 / (float(n) ** 2 * count)) / STEP), MOST)
    logs = strings.log_ratio(np.exp(u))
    used = int(np.argmax(logs > SMALL))
    # the logarithm is concave in mu and 0 at 0: below mu_used it is at least mu times its chord
    below = logs[used] * math.exp(-u[used] / 2) / math.expm1(STEP / 2)
    total = STEP / (2 * math.pi) * (below + float((logs[used:] * np.exp(-u[used:] / 2)).sum()))
    return float(total / math.sqrt(weights.sum() * period) * (1 - ROUNDING))


class _Strings:
    """log(det(G + mu E) / det G): `rest` steps of `count` strings, then `more` steps of one string less."""

    def __init__(self, r: Array, mass: Array, rest: int, more: int) -> None:
        self.count = len(r)
        self.mass, self.more = mass, more
        self.whole = _Segment(r, mass, rest)
        self.short = _Segment(r[:-1, :-1], mass[:-1], more) if more else None

    def log_ratio(self, mu: Array) -> Array:
        """Shape of `mu`."""
        tiny = np.array([0.0])
        return np.asarray(self._log_det(mu) - self._log_det(tiny))

    def _log_det(self, mu: Array) -> Array:
        k = self.count
        ends, across, inner = self.whole.condensed(mu)
        shift = np.eye(k, k, -1)  # a string begins where the one before it ends; the first at 0
        tied, linked = shift.T @ ends @ shift, across @ shift
        masses = mu[:, None, None] * np.diag(self.mass)
        if self.short is None:
            matrix = ends + masses + tied - linked - linked.transpose(0, 2, 1)
            return np.asarray(inner + np.linalg.slogdet(matrix)[1])
        short_ends, short_across, short_inner = self.short.condensed(mu)
        matrix = np.zeros((len(mu), 2 * k - 1, 2 * k - 1))
        matrix[:, :k, :k] = ends + masses
        matrix[:, : k - 1, : k - 1] += short_ends
        matrix[:, k:, k:] = (tied + masses)[:, :-1, :-1] + short_ends
        matrix[:, :k, k:] = -linked[:, :, :-1]
        matrix[:, : k - 1, k:] -= short_across
        matrix[:, k:, :k] = matrix[:, :k, k:].transpose(0, 2, 1)
        return np.asarray(inner + short_inner + np.linalg.slogdet(matrix)[1])


class _Segment:
    """Strings side by side over some steps, with all but their ends eliminated."""

    def __init__(self, r: Array, mass: Array, steps: int) -> None:
        lower = np.linalg.cholesky(r)
        self.masses, modes = np.linalg.eigh(lower.T @ (mass[:, None] * lower))
        self.inverse = modes.T @ np.linalg.inv(lower)
        self.steps = steps

    def condensed(self, mu: Array) -> tuple[Array, Array, Array]:
        """Stiffness of an end, and between the ends, shape (points, k, k) each; log det of the inside.

        That is over its value at mu = 0, shape (points,).
        """
        m = self.steps
        theta = 2 * np.arcsinh(0.5 * np.sqrt(mu[:, None] * np.maximum(self.masses, 0.0)))
        theta = np.maximum(theta, 1e-9 / m)
        whole = -np.expm1(-2 * m * theta)  # 2 sinh(m theta) exp(-m theta)
        ends = np.exp(-theta / 2) * (1 + np.exp(-(2 * m - 1) * theta)) * 2 * np.sinh(theta / 2) / whole
        across = np.exp(-(m - 1) * theta) * -np.expm1(-2 * theta) / whole
        inner = (m - 1) * theta + np.log(whole) - np.log(-np.expm1(-2 * theta)) - math.log(m)
        return self._turned(ends), self._turned(across), inner.sum(axis=1)

    def _turned(self, diagonals: Array) -> Array:
        return np.asarray(self.inverse.T @ (diagonals[:, :, None] * self.inverse))
