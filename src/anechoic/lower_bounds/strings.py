"""Lower bound for prefix sums under several participations, at a cost that does not grow with n.

The bound is that of `lower_bounds.dual` for the cycles of a period m. Cut the steps into k cells of m steps,
the last of which may be shorter, and let W = R (x) I for a matrix R of unit diagonal over the cells: step u
of cell i has to do with step u of cell j alone. Let the weights E of the errors be constant on cells too.
Then no loss is below || E^½ A L ||_* / sqrt(m), W = L L^T.

That nuclear norm is the sum of g^-½ over the generalised eigenvalues of G = A^-T W^-1 A^-1 and E. A^-1 takes
differences, so G couples neighbouring steps: the cells are k strings, side by side, the end of each tied to
the beginning of the next. In modes T of the cells (T^T R^-1 T = 1, T^T E T = diag(mass)) the strings are
independent, and everything between their ends is eliminated in closed form: det(G + mu E) is that of one
matrix of at most 2 k - 1 rows, whatever the length of the strings. Then

    sum g^-½ = (1 / 2 pi) int_0^oo log(det(G + mu E) / det G) mu^-3/2 dmu,

and with mu = e^u the trapezoidal rule of step h errs by a factor exp(-2 pi^2 / h).
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import product

import numpy as np

from anechoic._validate import Array
from anechoic.algebra.threads import on_one_thread

LARGEST = 64  # cells up to which the bound is cheap
# Of these the best is taken: blends of the correlations of columns with the identity, and growths of the
# weights of the errors from one cell to the next.
BLENDS, GROWTHS = (0.4, 0.6, 0.8, 0.9, 0.98), (1.05, 1.2, 1.4, 1.7, 3.0)
FINE, COARSE = 0.5, 1.0  # steps of the rule: they err by 1e-16 and 3e-9, relatively
FAR, NEAR = 50.0, 30.0  # u beyond which the integrand, which is > 0, is left out
SMALL = 1e-4  # below this, the logarithm is replaced by a chord, which lies below it
ROUNDING = 1e-6  # what is taken off, and what the logarithms kept may err by
ERROR = 1e-16  # of a logarithm, for each row of R and unit of its condition number


@lru_cache(maxsize=256)
@on_one_thread
def strings_bound(n: int, period: int, *, free: bool) -> float | None:
    """No factorisation of prefix sums has a smaller RMS loss (hence max loss); None where it is not cheap.

    Args:
        n: steps.
        period: of cycles that the schema allows.
        free: let the weights of the errors differ from cell to cell: a bound for the max loss alone.

    References:
        Monograph, Problem 4.6, whose dual this is; the theorem is in `lower_bounds.dual`.
    """
    count = -(-n // period)
    if not 1 < count <= LARGEST:
        return None
    rest = n - (count - 1) * period
    steps = np.append(np.full(count - 1, float(period)), rest)
    ages = np.arange(count, 0.0, -1.0)
    alike = (np.minimum.outer(ages, ages) / np.maximum.outer(ages, ages)) ** 0.7

    def rule(choice: tuple[float, float], step: float, far: float) -> float:
        blend, growth = choice
        shares = growth ** np.arange(count) if free else steps
        r = blend * alike + (1 - blend) * np.eye(count)
        return nuclear_norm(r, shares / shares.sum() / steps, rest, period - rest, step, far)

    best = max(product(BLENDS, GROWTHS if free else (1.0,)), key=lambda choice: rule(choice, COARSE, NEAR))
    return rule(best, FINE, FAR) / math.sqrt(period) * (1 - 1e-9)


def nuclear_norm(r: Array, mass: Array, rest: int, more: int, step: float = FINE, far: float = FAR) -> float:
    """Return || E^½ A L ||_*, rounded down by the finest rule.

    Args:
        r: R over cells, shape (k, k), definite.
        mass: weight of the squared error of each step of a cell, shape (k,), > 0.
        rest, more: steps of the last cell, >= 1, and how many more each other one has, >= 0.
        step, far: of the rule in u.
    """
    k = len(r)
    n = (k - 1) * (rest + more) + rest
    scale = float(np.mean(mass) * np.mean(r.diagonal()))  # of 1 / mu
    u = np.arange(math.floor(math.log(1e-5 / (float(n) ** 2 * k)) / step) * step, far, step)
    mu = np.append(np.exp(u) / scale, 0.0)
    logs = _log_dets(r, mass, rest, more, mu)
    values = np.linalg.eigvalsh(r)
    error = ERROR * k * float(values[-1] / max(values[0], 1e-300))
    # concave in mu, so below the tangent at 0; where R is all but singular rounding lies above it
    logs = np.minimum(logs[:-1] - logs[-1], mu[:-1] * _slope(r, mass, rest, more))
    used = int(np.argmax(logs > max(SMALL, error / ROUNDING)))
    weights = np.zeros(len(u))
    weights[used:] = np.exp(-u[used:] / 2)
    # the logarithm is concave in mu and 0 at 0: below mu_used it is at least mu times its chord
    weights[used] += math.exp(-u[used] / 2) / math.expm1(step / 2)
    return float(weights @ logs) * step / (2 * math.pi) * math.sqrt(scale) * (1 - ROUNDING)


def _log_dets(r: Array, mass: Array, rest: int, more: int, mu: Array) -> Array:
    """log det(G + mu E) up to a constant, shape (points,)."""
    k = len(r)
    ends, across, inner = _condensed(r, mass, rest, mu)
    shift = np.eye(k, k, -1)  # a string begins where the one before it ends; the first at 0
    tied, linked = shift.T @ ends @ shift, across @ shift
    masses = mu[:, None, None] * np.diag(mass)
    if not more:
        matrix = ends + masses + tied - linked - linked.transpose(0, 2, 1)
        return np.asarray(inner + np.linalg.slogdet(matrix)[1])
    short_ends, short_across, short_inner = _condensed(r[:-1, :-1], mass[:-1], more, mu)
    matrix = np.zeros((len(mu), 2 * k - 1, 2 * k - 1))
    matrix[:, :k, :k] = ends + masses
    matrix[:, : k - 1, : k - 1] += short_ends
    matrix[:, k:, k:] = (tied + masses)[:, :-1, :-1] + short_ends
    matrix[:, :k, k:] = -linked[:, :, :-1]
    matrix[:, : k - 1, k:] -= short_across
    matrix[:, k:, :k] = matrix[:, :k, k:].transpose(0, 2, 1)
    return np.asarray(inner + short_inner + np.linalg.slogdet(matrix)[1])


def _slope(r: Array, mass: Array, rest: int, more: int) -> float:
    """tr(G^-1 E) = || E^½ A L ||_F^2: the derivative of log det(G + mu E) at mu = 0."""
    m = rest + more
    steps = np.append(np.full(len(r) - 1, m), rest).astype(np.float64)
    sums = np.append(0.0, np.diagonal(r.cumsum(axis=0).cumsum(axis=1)))  # of R over the first cells
    reached = steps * (steps + 1) / 2  # strings that a step of the cell has reached, and those it has not
    return float(mass @ (reached * sums[1:] + (steps * m - reached) * sums[:-1]))


def _condensed(r: Array, mass: Array, steps: int, mu: Array) -> tuple[Array, Array, Array]:
    """Eliminate all but the ends of strings side by side over some steps.

    Stiffness of an end, and between the ends, shape (points, k, k) each; log det of the inside over its value
    at mu = 0, shape (points,).
    """
    lower = np.linalg.cholesky(r)
    values, modes = np.linalg.eigh(lower.T @ (mass[:, None] * lower))
    inverse, m = modes.T @ np.linalg.inv(lower), steps
    theta = 2 * np.arcsinh(0.5 * np.sqrt(mu[:, None] * np.maximum(values, 1e-300)))
    theta = np.maximum(theta, 1e-9 / m)
    whole = -np.expm1(-2 * m * theta)  # 2 sinh(m theta) exp(-m theta)
    ends = np.exp(-theta / 2) * (1 + np.exp(-(2 * m - 1) * theta)) * 2 * np.sinh(theta / 2) / whole
    across = np.exp(-(m - 1) * theta) * -np.expm1(-2 * theta) / whole
    inner = (m - 1) * theta + np.log(whole) - np.log(-np.expm1(-2 * theta)) - math.log(m)
    turned = (np.asarray(inverse.T @ (each[:, :, None] * inverse)) for each in (ends, across))
    return *turned, inner.sum(axis=1)
