"""Dual of optimal factorisation under several participations: a lower bound for every factorisation.

Let p >= 0 weigh the squared errors of the steps (sum 1), and let W = sum_pi S_pi with S_pi semidefinite and
zero outside the pattern pi of steps. For A = B C, W = L L^T and v_pi = the largest diagonal entry of S_pi,

    || diag(p)^½ A L ||_*  <=  || diag(p)^½ B ||_F || C L ||_F  <=  error * sens(C) * sqrt(sum_pi v_pi),

since ||C L||_F^2 = sum_pi <C^T C, S_pi>, and S_pi is v_pi times a Gram matrix of rows of norm at most 1. So
the nuclear norm over sqrt(sum v) bounds the loss of every factorisation, square or not. The best bound is
concave in (p, W). Where the patterns do not overlap it is the optimum of Problem 4.6: there M^-1 H M^-1, H
= A^T diag(p) A, is the matrix of multipliers, zero outside the patterns and constant on the diagonal of
each block; it is semidefinite, so its blocks are v_pi times correlation matrices, and its bound is tr(H
M^-1) itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from anechoic._validate import Array

EPS = float(np.finfo(np.float64).eps)
BLEND = 0.6  # of correlations with the identity, to begin with
LEAST_SHARE, LEAST_PIVOT = 1e-20, 1e-9  # of a pattern, relative to the largest one; of a unit factor


@dataclass(frozen=True, eq=False)
class Multiplier:
    """W = sum_pi F_pi F_pi^T, one factor for each pattern.

    Attributes:
        patterns: the steps of each pattern, shape (count, k); -1 beyond the end of a shorter one.
        factors: F_pi, shape (count, k, k); rows beyond the end are zero.
    """

    patterns: NDArray[np.intp]
    factors: Array

    @property
    def largest(self) -> Array:
        """v_pi, the largest diagonal entry of each summand, shape (count,)."""
        return np.asarray(np.square(self.factors).sum(axis=2).max(axis=1))

    def images(self, matrix: Array) -> Array:
        """matrix @ L with L = [F_pi], shape (rows, count k)."""
        count, k = self.patterns.shape
        blocks = np.matmul(columns(matrix, self.patterns), self.factors)
        return np.ascontiguousarray(blocks.transpose(1, 0, 2)).reshape(len(matrix), count * k)


def columns(matrix: Array, patterns: NDArray[np.intp]) -> Array:
    """The columns of `matrix` of each pattern, shape (count, rows, k), zero beyond its end."""
    chosen = matrix.T[np.maximum(patterns, 0)].transpose(0, 2, 1)
    return np.where((patterns >= 0)[:, None, :], chosen, 0.0)


def padded(patterns: Sequence[Sequence[int]]) -> NDArray[np.intp]:
    """Patterns of any lengths as one array, shape (count, longest), filled with -1."""
    array = np.full((len(patterns), max(map(len, patterns))), -1, dtype=np.intp)
    for row, steps in zip(array, patterns, strict=True):
        row[: len(steps)] = steps
    return array


def cycles(period: int, n: int) -> NDArray[np.intp]:
    """The patterns of cyclic participation, shape (min(period, n), ceil(n / period))."""
    period = min(period, n)
    steps = np.arange(period)[:, None] + period * np.arange(-(-n // period))
    return np.where(steps < n, steps, -1)


def start(workload: Array, weights: Array | None, patterns: NDArray[np.intp]) -> Multiplier:
    """The correlations of the columns of diag(p)^½ A, mixed with the identity; v equal.

    Unmixed they are optimal where there is only one pattern, and far off where there are many.
    """
    p = np.full(len(workload), 1.0 / len(workload)) if weights is None else weights
    chosen = columns(np.sqrt(p)[:, None] * workload, patterns)
    products = np.matmul(chosen.transpose(0, 2, 1), chosen)
    products *= BLEND + (1 - BLEND) * np.eye(patterns.shape[1])
    begun = rescaled(patterns, products)
    return Multiplier(patterns, begun.factors / np.sqrt(begun.largest)[:, None, None])


def rescaled(patterns: NDArray[np.intp], blocks: Array) -> Multiplier:
    """Feasible multiplier near semidefinite blocks (count, k, k): correlations, times their mean diagonal.

    At the solution of Problem 4.6 the blocks of M^-1 H M^-1 have constant diagonals, and nothing changes.
    """
    inside = patterns >= 0
    diagonal = np.where(inside, np.einsum("ijj->ij", blocks), 0.0)
    mean = diagonal.sum(axis=1) / inside.sum(axis=1)
    mean = np.maximum(mean, 1e-12 * mean.max())
    roots = np.sqrt(np.maximum(diagonal, 1e-12 * mean[:, None]))
    values, vectors = np.linalg.eigh(blocks / (roots[:, :, None] * roots[:, None, :]))
    factors = vectors * np.sqrt(np.maximum(values, 1e-9))[:, None, :]
    factors = np.where(inside[:, :, None], factors, 0.0)
    norms = np.sqrt(np.square(factors).sum(axis=2, keepdims=True))
    return Multiplier(patterns, np.sqrt(mean)[:, None, None] * factors / np.where(norms > 0, norms, 1.0))


def nuclear_bound(workload: Array, weights: Array, multiplier: Multiplier) -> float:
    """A number never above the bound ||diag(p)^½ A L||_* / sqrt(sum v), close to it; root scale.

    The nuclear norm is bounded from below by <Q, X> / ||Q||_2 for the computed polar factor Q, whatever its
    accuracy; what rounding can add to either is subtracted (products of length l err by at most
    l eps times the product of absolute values).

    Args:
        workload: A, shape (n, n).
        weights: p >= 0, shape (n,), of sum 1 up to rounding.
        multiplier: W.
    """
    weights = weights / weights.sum()
    rows = np.sqrt(weights[weights > 0])[:, None] * workload[weights > 0]
    x = multiplier.images(rows)
    values, vectors = np.linalg.eigh(x @ x.T)
    if values[0] > 1e-9 * values[-1]:
        q = (vectors / np.sqrt(values)) @ (vectors.T @ x)
        q = 1.5 * q - 0.5 * (q @ (q.T @ q))  # a step of Newton-Schulz: squares lose digits
    else:
        left, _, right = np.linalg.svd(x, full_matrices=False)
        q = left @ right
    small = q if len(q) <= q.shape[1] else q.T
    length = sum(x.shape) + multiplier.patterns.shape[1] + 16
    defect = small @ small.T - np.eye(len(small))
    largest = 1.0 + float(np.sqrt(np.square(defect).sum())) + 4 * length * EPS * len(small) ** 0.5
    magnitude = Multiplier(multiplier.patterns, np.abs(multiplier.factors)).images(np.abs(rows))
    inner = float((q * x).sum()) - 4 * length * EPS * float((np.abs(q) * magnitude).sum())
    total = float(multiplier.largest.sum()) * (1 + length * EPS)
    return max(0.0, float(inner / np.sqrt(largest * total)) * (1 - 8 * EPS))


@dataclass(frozen=True, eq=False)
class DualPoint:
    """The dual function at one (p, W), scaled to sum p = sum v = 1.

    Attributes:
        weights: p, shape (n,).
        multiplier: W.
        value: the bound that it gives, in floating point (`nuclear_bound` makes it safe).
        vectors: U^T diag(p)^½ A, where diag(p)^½ A L has the singular vectors U on the left, shape (n, n).
        roots: its singular values, shape (n,).
    """

    weights: Array
    multiplier: Multiplier
    value: float
    vectors: Array
    roots: Array

    def gram(self) -> Array:
        """M with M W M = H = A^T diag(p) A, shape (n, n): it minimises tr(H M^-1) + <M, W>."""
        return np.asarray((self.vectors.T / self.roots) @ self.vectors)


class ParticipationDual:
    """Minus the logarithm of the bound, and its gradient, in free parameters.

    The parameters are log v, the factors of the correlations R_pi relative to those that `pack` was given
    last (so that nearly singular ones are no obstacle), and log p where the weights are free.

    Args:
        workload: A, shape (n, n).
        patterns: shape (count, k), -1 beyond the end.
        weights: p, shape (n,); None leaves it free, for the max loss: max_t e_t^2 = max_p sum_t p_t e_t^2.

    Attributes:
        evaluations: eigendecompositions so far.
        barrier: tau >= 0; (tau / k) sum_pi v_pi log det R_pi, (tau / count) sum_pi log v_pi and
            (tau / n) sum_t log p_t are added to the logarithm. Its maximiser is interior, and there the M of
            `DualPoint.gram` has a loss of at most about 1 + 3 tau times the bound, also where the optimal p,
            v or R_pi vanish or are singular. A share v_pi that fell too far would not return without: the
            slope by its logarithm vanishes with it.
    """

    def __init__(self, workload: Array, patterns: NDArray[np.intp], weights: Array | None) -> None:
        self.workload, self.patterns, self.weights = workload, patterns, weights
        self.evaluations = 0
        self.barrier = 0.0
        count, k = patterns.shape
        self._lower = np.tril(np.ones((k, k), dtype=bool))
        self._inside = patterns >= 0
        self._base, self._shares = np.broadcast_to(np.eye(k), (count, k, k)), np.full(count, 1.0 / count)
        self._last: tuple[Array, DualPoint] | None = None

    def pack(self, multiplier: Multiplier, weights: Array | None = None) -> Array:
        """The parameters of a point near the given one, definite; earlier parameters lose their meaning.

        Summands that have all but vanished, and pivots that have, would have no logarithm: they are floored.
        """
        k = self.patterns.shape[1]
        factors, largest = multiplier.factors, multiplier.largest
        triangles = np.asarray(np.linalg.qr(factors.transpose(0, 2, 1), mode="r")).transpose(0, 2, 1)
        norms = np.sqrt(np.square(triangles).sum(axis=2, keepdims=True))
        kept = self._inside[:, :, None] & (norms > 1e-150)
        triangles = np.where(kept, triangles / np.where(kept, norms, 1.0), np.eye(k))
        pivots = np.einsum("ijj->ij", triangles)
        pivots[...] = np.where(np.abs(pivots) < LEAST_PIVOT, LEAST_PIVOT, pivots)
        self._base = triangles / np.sqrt(np.square(triangles).sum(axis=2, keepdims=True))
        shares = np.maximum(largest, LEAST_SHARE * largest.max())
        self._shares = shares / shares.sum()
        self._last = None
        parts = [np.log(self._shares), np.tile(np.eye(k)[self._lower], len(factors))]
        if self.weights is None:
            n = len(self.workload)
            parts.append(np.log(np.full(n, 1.0 / n) if weights is None else np.maximum(weights, 1e-12 / n)))
        return np.concatenate(parts)

    def __call__(self, x: Array) -> tuple[float, Array]:
        value, gradient, point = self._computed(x)
        self._last = x.copy(), point
        return value, gradient

    def _computed(self, x: Array) -> tuple[float, Array, DualPoint]:
        self.evaluations += 1
        count, k = self.patterns.shape
        logs, entries, log_weights = np.split(x, [count, count + count * k * (k + 1) // 2])
        v = _softmax(logs)
        inner = np.zeros((count, k, k))
        inner[:, self._lower] = entries.reshape(count, -1)
        raw = np.matmul(self._base, inner)
        norms = np.sqrt(np.square(raw).sum(axis=2, keepdims=True))
        unit = raw / norms
        inside = self._inside[:, :, None]
        roots_v = np.sqrt(v)[:, None, None]
        multiplier = Multiplier(self.patterns, np.where(inside, roots_v * unit, 0.0))
        p = _softmax(log_weights) if self.weights is None else self.weights
        total, by_factor, by_log, point = self._norm(p, multiplier)
        by_v = 0.5 * (by_factor * multiplier.factors).sum(axis=(1, 2))
        by_unit = roots_v * by_factor
        by_raw = (by_unit - (by_unit * unit).sum(axis=2, keepdims=True) * unit) / norms
        value = float(np.log(total))
        if self.barrier > 0:
            # log det R is twice the sum of the logarithms of the pivots of the unit factor
            strength = 2 * self.barrier / k * self._shares[:, None]
            pivots = np.einsum("ijj->ij", raw)
            value += float(
                (strength * np.where(self._inside, np.log(np.abs(pivots / norms[:, :, 0])), 0.0)).sum()
            )
            by_raw -= np.where(inside, strength[:, :, None] * raw / np.square(norms), 0.0)
            np.einsum("ijj->ij", by_raw)[...] += np.where(self._inside, strength / pivots, 0.0)
            value += self.barrier * float(np.log(np.maximum(v, 1e-300)).mean())
        by_inner = np.matmul(self._base.transpose(0, 2, 1), by_raw)
        by_log_v = by_v - v * by_v.sum() + self.barrier * (1.0 / count - v)
        gradient = [by_log_v, by_inner[:, self._lower].ravel()]
        if self.weights is None:
            value += self.barrier * float(np.log(np.maximum(p, 1e-300)).mean())
            gradient.append(by_log - p * by_log.sum() + self.barrier * (1.0 / len(p) - p))
        return -value, -np.concatenate(gradient), point

    def _norm(self, p: Array, multiplier: Multiplier) -> tuple[float, Array, Array, DualPoint]:
        """Return the nuclear norm, and the slopes of its logarithm by the factors F_pi and by log p."""
        rows = np.sqrt(p[p > 0])[:, None] * self.workload[p > 0]
        images = multiplier.images(rows)
        values, vectors = np.linalg.eigh(images @ images.T)
        least = len(values) * EPS * max(float(values[-1]), 1e-300)
        roots = np.sqrt(np.maximum(values, least))
        total = float(roots.sum())
        turned = vectors.T @ rows
        chosen = columns(turned, self.patterns)  # M on a pattern is chosen^T diag(1 / roots) chosen
        by_factor = (
            np.matmul((chosen / roots[:, None]).transpose(0, 2, 1), chosen @ multiplier.factors) / total
        )
        by_log = np.zeros(len(p))
        by_log[p > 0] = 0.5 * np.square(vectors) @ roots / total
        # eigenvalues that are rounding alone count in the gradient, but are no part of a bound
        certain = float(roots[values > least].sum())
        return total, by_factor, by_log, DualPoint(p, multiplier, certain, turned, roots)

    def at(self, x: Array) -> DualPoint:
        """The point of given parameters; costs nothing where they are those asked for last."""
        if self._last is None or not np.array_equal(self._last[0], x):
            self._last = x.copy(), self._computed(x)[2]
        return self._last[1]

    def ascend(self, begin: Array, done: Callable[[DualPoint, int], bool], *, rounds: int) -> DualPoint:
        """L-BFGS from parameters `begin`; `done(point, evaluations)` is asked before and after each round."""

        def callback(x: Array) -> None:
            if done(self.at(x), self.evaluations):
                raise StopIteration

        if done(self.at(begin), self.evaluations):
            return self.at(begin)
        options = {"maxiter": rounds, "maxcor": 30, "gtol": 1e-12, "ftol": 1e-15, "maxfun": 4 * rounds}
        result = scipy.optimize.minimize(
            self, begin, jac=True, method="L-BFGS-B", callback=callback, options=options
        )
        return self.at(result.x)

    def best(self, begin: Array, stalled: Callable[[list[float]], bool], *, rounds: int) -> DualPoint:
        """The best point of an ascent, which ends where `stalled` says so of the values reached so far."""
        found: list[DualPoint] = []
        reached: list[float] = []

        def done(point: DualPoint, evaluations: int) -> bool:
            if not found or point.value > found[0].value:
                found[:] = [point]
            reached.append(found[0].value)
            return stalled(reached)

        self.ascend(begin, done, rounds=rounds)
        return found[0]


def _softmax(logs: Array) -> Array:
    shares = np.exp(logs - logs.max())
    return np.asarray(shares / shares.sum())
