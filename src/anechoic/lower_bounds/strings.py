"""Lower bound for prefix sums under several participations, at a cost that does not grow with n.

The bound is that of `lower_bounds.dual`. Cut the steps into k cells of m steps, the last of which may be
shorter. A pattern c of cells stands for the m patterns of the steps u of these cells, u < m, with one matrix
R_c for all u; where cells are apart as steps are to be, these are allowed. Then W = R (x) I for R = sum_c v_c
R_c: step u of cell i has to do with step u of cell j alone. Let the weights E of the errors be constant on
cells too. Then no loss is below || E^½ A L ||_* / sqrt(m sum_c v_c), W = L L^T.

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
from functools import lru_cache, singledispatch
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array
from anechoic.algebra.threads import on_one_thread
from anechoic.lower_bounds.dual import EPS, DualPoint, Multiplier, ParticipationDual, start
from anechoic.participation import MinSep
from anechoic.participation.base import Participation

LARGEST = 64  # cells up to which the bound is cheap
PARTS, PARTS_OF_MAX = 5, 8  # cells to a separation, at most; for the max loss, where more of them tell more
WASTE = 1.01  # of a separation that is no multiple of the cells
NUMBERS = 2**16  # in the factors of all patterns
STEPS, LEAST = 96, 4  # of the run of few steps, at least, and of a cell in it
ROUNDS = 100  # of L-BFGS
STILL = 1e-4  # relative growth in ten rounds below which the ascent ends
RIDGE = 2e-9  # of the trace of R, times cells cubed, as patterns of one cell, so that R is definite
ODD = 0.2  # factors of patterns that are not regular, relative to others, to begin with
STEP = 0.5  # of the rule: it errs by 1e-16, relatively
FAR = 50.0  # u beyond which the integrand, which is > 0, is left out
SMALL = 1e-4  # below this, the logarithm is replaced by a chord, which lies below it
ROUNDING = 1e-6  # what is taken off, and what the logarithms kept may err by
ERROR = 1e-16  # of a logarithm, for each row of R and unit of its condition number


@singledispatch
def cell_patterns(participation: Participation, n: int, most: int) -> tuple[int, NDArray[np.intp]]:
    """Return the steps of a cell, and patterns of cells, shape (count, longest); `most` to a separation.

    One cell for each cycle of the least period that the schema allows, unless it knows better.
    """
    period = participation.contained_period(n)
    return period, np.arange(-(-n // period))[None, :]


@cell_patterns.register
def _(participation: MinSep, n: int, most: int) -> tuple[int, NDArray[np.intp]]:
    """All patterns of the cells that part a separation, as many as a few seconds allow."""
    separation, count = participation.separation, participation.max_participations_in(n)
    for parts in range(min(most, separation), 0, -1):
        size = -(-separation // parts)
        cells, apart = -(-n // size), -(-separation // size)
        longest = min(count, -(-cells // apart))
        free = cells - (apart - 1) * (longest - 1)  # cells, but for those that must be empty
        few = cells <= LARGEST and math.comb(free, longest) * longest**2 <= NUMBERS
        # every cell is part of a longest pattern, and little of a separation is lost
        if few and free - longest >= apart - 1 and size * apart <= WASTE * separation:
            chosen = np.array(list(combinations(range(free), longest)), dtype=np.intp)
            return size, chosen + (apart - 1) * np.arange(longest)
    return cell_patterns.dispatch(Participation)(participation, n, most)


def strings_bound(n: int, participation: Participation, *, free: bool) -> float | None:
    """No factorisation of prefix sums has a smaller RMS loss (hence max loss); None where it is not cheap.

    Args:
        n: steps.
        participation: with more than one participation.
        free: let the weights of the errors differ from cell to cell: a bound for the max loss alone.

    Raises:
        UnsupportedError: if no period is known.

    References:
        Monograph, Problem 4.6, whose dual this is; the theorem is in `lower_bounds.dual`.
    """
    size, patterns = cell_patterns(participation, n, PARTS_OF_MAX if free else PARTS)
    if not 1 < -(-n // size) <= LARGEST:
        return None
    return _ascended(n, size, tuple(map(tuple, patterns.tolist())), free)


@lru_cache(maxsize=256)
@on_one_thread
def _ascended(n: int, size: int, patterns: tuple[tuple[int, ...], ...], free: bool) -> float:
    """Choose R and the weights by a run of few steps; optimisers ask again and again for one setting."""
    count = -(-n // size)
    rest = n - (count - 1) * size
    steps = np.append(np.full(count - 1, float(size)), rest)
    dual = _CellsDual(steps, np.array(patterns, dtype=np.intp), None if free else steps / n)

    def stalled(reached: list[float]) -> bool:
        return len(reached) > 10 and reached[-1] < reached[-11] * (1 + STILL)

    gaps = np.diff(dual.patterns, axis=1)
    sizes = np.where((gaps == gaps.min(initial=count)).all(axis=1), 1.0, ODD)[:, None, None]
    begin = start(dual.workload, steps / n, dual.patterns)
    begin = Multiplier(dual.patterns, sizes * begin.factors)
    point = dual.best(dual.pack(begin, steps / n), stalled, rounds=ROUNDS)
    r, mass = dual.joined(point.multiplier), point.weights / steps
    return nuclear_norm(r, mass, rest, size - rest) / math.sqrt(size) * (1 - 1e-9)


class _CellsDual(ParticipationDual):
    """The dual function of patterns of cells, roughly: the norm of a few steps to a cell, and what more add.

    Its points are feasible; `nuclear_norm` is what counts. Strings of short waves do not feel their ends:
    twice the steps add log 2 / pi tr((E^½ R E^½)^½).
    """

    def __init__(self, steps: Array, patterns: NDArray[np.intp], weights: Array | None) -> None:
        k, size = len(steps), steps[0]
        super().__init__(np.tril(np.ones((k, k))), patterns, weights)
        self._filled, self._ridge = steps / size, RIDGE * k**3
        places = int(min(size, max(LEAST, -(-STEPS // k))))
        self._cell = np.arange(k * places - places + max(1, round(places * self._filled[-1]))) // places
        self._few, self._eye = np.tril(np.ones((len(self._cell),) * 2)), np.eye(places)
        self._more = math.log(size / places) / math.pi

    def joined(self, multiplier: Multiplier) -> Array:
        """Return R: the sum of the blocks, and a little for patterns of one cell each: their v count too."""
        f, p = multiplier.factors, self.patterns
        r = self._ridge / len(self.workload) * np.eye(len(self.workload))
        np.add.at(r, (p[:, :, None], p[:, None, :]), f @ f.transpose(0, 2, 1))
        return r / (1 + self._ridge)

    def _norm(self, p: Array, multiplier: Multiplier) -> tuple[float, Array, Array, DualPoint]:
        k, s, r, cell = len(p), len(self._eye), self.joined(multiplier), self._cell
        rows = (p / np.bincount(cell) / s)[cell]
        few = _slopes(self._few, np.asarray(np.kron(r, self._eye))[: len(cell), : len(cell)], rows)
        more = _slopes(np.eye(k), r, p * self._filled)
        total = few[0] + self._more * more[0]
        by_r = np.pad(few[1], (0, k * s - len(cell))).reshape(k, s, k, s).trace(axis1=1, axis2=3)
        by_r = (by_r + self._more * more[1]) / (1 + self._ridge)
        by_log = np.bincount(cell, few[2]) + self._more * more[2]
        by_factor = by_r[self.patterns[:, :, None], self.patterns[:, None, :]] @ multiplier.factors
        return total, by_factor / total, by_log / total, DualPoint(p, multiplier, total, *more[3:])


def _slopes(a: Array, w: Array, p: Array) -> tuple[float, Array, Array, Array, Array]:
    """Return ||diag(p)^½ A W^½||_*, twice its slopes by W, those by log p, and a `DualPoint`'s arrays."""
    rows = np.sqrt(p)[:, None] * a
    values, vectors = np.linalg.eigh(rows @ w @ rows.T)
    roots = np.sqrt(np.maximum(values, len(values) * EPS * values[-1]))
    turned = vectors.T @ rows
    return float(roots.sum()), (turned.T / roots) @ turned, 0.5 * np.square(vectors) @ roots, turned, roots


def nuclear_norm(r: Array, mass: Array, rest: int, more: int) -> float:
    """Return || E^½ A L ||_*, rounded down.

    Args:
        r: R over cells, shape (k, k), definite.
        mass: weight of the squared error of each step of a cell, shape (k,), > 0.
        rest, more: steps of the last cell, >= 1, and how many more each other one has, >= 0.
    """
    k = len(r)
    n = (k - 1) * (rest + more) + rest
    scale = float(np.mean(mass) * np.mean(r.diagonal()))  # of 1 / mu
    u = np.arange(math.floor(math.log(1e-5 / (float(n) ** 2 * k)) / STEP) * STEP, FAR, STEP)
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
    weights[used] += math.exp(-u[used] / 2) / math.expm1(STEP / 2)
    return float(weights @ logs) * STEP / (2 * math.pi) * math.sqrt(scale) * (1 - ROUNDING)


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
