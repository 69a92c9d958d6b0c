"""Newton's method for the dual of `lower_bounds.dual` where the weights of the rows are free.

Let K = diag(p)^½ A L = U Sigma V^T for W = L L^T, block by block, and let p (1 + d) and L (I + D) L^T be the
weights and the multiplier after a relative step, D zero outside the patterns. To second order,

    ||K||_* + ½ <U Sigma U^T, diag(d)> + ½ <V Sigma V^T, D>
            - ¼ sum_ab s_a s_b / (s_a + s_b) ((V^T D V)_ab - (U^T diag(d) U)_ab)^2,

with the same few nodes for s_a s_b / (s_a + s_b) as in `optimize.full.newton`. The steps are on

    log ||K||_* + (tau / n) (sum_t log p_t + sum_pi log det W_pi),   sum p = 1, W_tt = v_pi, sum v = 1,

which is concave. At its maximiser the blocks of M / (2 ||K||_*) + (tau / n) W^-1 are diagonal and have one
trace, ½ + tau, so that M with these diagonals in the place of its blocks, which is no less than M, has a loss
of at most 1 + 2 tau times the bound. L-BFGS comes near the bound soon, but M near its solution is far off
where it is ill-conditioned.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular, svd

from anechoic._validate import Array
from anechoic.lower_bounds.dual import DualPoint, Multiplier, columns
from anechoic.optimize.full.newton import BOUNDARY

PARAMETERS = 4096  # weights and multipliers up to which a step, of their number cubed, is worth its price
# Of the nodes in log t, as in `optimize.full.newton`: 15 % for a single a = b, and much less for their sums,
# which costs no further step.
SPACING = 2.5
BLEND = 1e-3  # of even weights and uncorrelated steps with the point begun from
BACKWARDS = 6  # times that a step that leads down is shortened


def serves(workload: Array, patterns: NDArray[np.intp]) -> bool:
    """Whether the patterns partition the steps, and the numbers to solve for are not too many."""
    n, columns_of = workload.shape
    count, k = patterns.shape
    steps = np.sort(patterns[patterns >= 0])
    return (
        n == columns_of and n + count * k * (k + 1) // 2 <= PARAMETERS and np.array_equal(steps, np.arange(n))
    )


class PatternNewton:
    """Newton steps on the barrier problem for patterns that partition the steps.

    Args:
        workload: A, shape (n, n).
        patterns: shape (count, k), -1 beyond the end; each step in exactly one of them.
        begin: p, > 0, and W, definite, with lower-triangular factors.

    Attributes:
        point: the dual function where the steps have led.
    """

    point: DualPoint

    def __init__(self, workload: Array, patterns: NDArray[np.intp], begin: DualPoint) -> None:
        self.workload, self.patterns = workload, patterns
        self._inside = patterns >= 0
        self._pairs = np.tril_indices(patterns.shape[1])
        # one number for each pair of places and each pattern, in this order; some patterns are shorter
        kept = self._inside[:, self._pairs[0]] & self._inside[:, self._pairs[1]]
        self._kept = np.flatnonzero(kept.T)
        # of an orthonormal basis of symmetric matrices, over the root of 2
        self._scales = np.where(self._pairs[0] == self._pairs[1], 0.5**0.5, 1.0)
        n = len(workload)
        factors = np.linalg.cholesky(
            (1 - BLEND) * np.matmul(begin.multiplier.factors, begin.multiplier.factors.transpose(0, 2, 1))
            + BLEND * begin.multiplier.largest[:, None, None] * np.eye(patterns.shape[1])
        )
        factors = np.where(self._inside[:, :, None], factors, 0.0)
        self._go((1 - BLEND) * begin.weights + BLEND / n, factors / np.sqrt(begin.multiplier.largest.sum()))

    def step(self, barrier: float) -> None:
        """A step for a barrier tau > 0.

        Raises:
            LinAlgError: if rounding leaves no curvature.
        """
        n = len(self.workload)
        step = self._solved(barrier)
        d, blocks = step[:n], self._blocks(step[n:])
        least = min(float(d.min()), float(np.linalg.eigvalsh(blocks)[:, 0].min()))
        length = min(1.0, BOUNDARY / max(-least, 1e-300))
        weights, factors = self.point.weights, self.point.multiplier.factors
        before = self._value(barrier)
        eye = np.eye(self.patterns.shape[1])
        for _ in range(BACKWARDS):
            self._go(weights * (1 + length * d), factors @ np.linalg.cholesky(eye + length * blocks))
            if self._value(barrier) >= before - 1e-13:
                break
            length *= 0.25

    def gram(self, barrier: float) -> Array:
        """M with the diagonals that it has at the maximiser in the place of its blocks, shape (n, n)."""
        m = self.point.gram()
        total = self.point.value
        for steps, factor in zip(self.patterns, self.point.multiplier.factors, strict=True):
            kept = steps[steps >= 0]
            inverse = solve_triangular(factor[: len(kept), : len(kept)], np.eye(len(kept)), lower=True)
            added = 2 * total * barrier / len(m) * np.square(inverse).sum(axis=0)
            m[np.ix_(kept, kept)] = np.diag(m[kept, kept] + added)
        return m

    def _go(self, weights: Array, factors: Array) -> None:
        weights = weights / weights.sum()
        multiplier = Multiplier(self.patterns, factors / math.sqrt(np.square(factors[:, 0]).sum()))
        rows = np.sqrt(weights)[:, None] * self.workload
        left, values, right = svd(
            multiplier.images(rows), full_matrices=False, overwrite_a=True, check_finite=False
        )
        values = np.maximum(values, np.finfo(float).eps * values[0])
        total = float(values.sum())
        self.point = DualPoint(weights, multiplier, total, left.T @ rows, values)
        self._left, self._right = left, right.T

    def _value(self, barrier: float) -> float:
        point = self.point
        pivots = np.einsum("ijj->ij", point.multiplier.factors)[self._inside]
        logs = float(np.log(point.weights).sum()) + 2 * float(np.log(pivots).sum())
        return math.log(point.value) + barrier / len(self.workload) * logs

    def _blocks(self, entries: Array) -> Array:
        """D, shape (count, k, k), of the numbers kept."""
        count, k = self.patterns.shape
        numbers = np.zeros(len(self._scales) * count)
        numbers[self._kept] = entries
        values = numbers.reshape(-1, count).T * self._scales / math.sqrt(2)
        result = np.zeros((count, k, k))
        result[:, self._pairs[0], self._pairs[1]] = values
        return result + result.transpose(0, 2, 1)

    def _numbers(self, blocks: Array) -> Array:
        """The numbers kept of symmetric blocks: the adjoint of `_blocks`; shape (kept, ...)."""
        chosen = blocks[:, self._pairs[0], self._pairs[1]] * (math.sqrt(2) * self._scales)
        return np.asarray(chosen.T.reshape(-1)[self._kept])

    def _solved(self, barrier: float) -> Array:
        """d, and the numbers kept of D."""
        n = len(self.workload)
        count, k = self.patterns.shape
        values, left = self.point.roots, self._left
        right = self._right.reshape(count, k, -1)
        total = self.point.value
        gradient = np.concatenate(
            [
                0.5 * (np.square(left) @ values) / total + barrier / n,
                self._numbers(
                    0.5 * np.matmul(right * values, right.transpose(0, 2, 1)) / total
                    + barrier / n * np.eye(k)
                ),
            ]
        )
        curvature = self._curvature() / (2 * total)
        self._add_slack(curvature, gradient[:n], barrier)
        constraints = self._constraints()
        factor = cholesky(curvature, lower=True, overwrite_a=True, check_finite=False)
        solved = solve_triangular(
            factor, np.column_stack([gradient, constraints]), lower=True, check_finite=False
        )
        normal = solved[:, 1:].T @ solved
        multipliers = np.linalg.solve(normal[:, 1:], normal[:, 0])
        rest = solved[:, 0] - solved[:, 1:] @ multipliers
        return np.asarray(solve_triangular(factor, rest, lower=True, trans="T", check_finite=False))

    def _add_slack(self, curvature: Array, slopes: Array, barrier: float) -> None:
        """Adds the curvature of the barrier, in its primal-dual form.

        Where p_t or an eigenvalue of W is to vanish, its multiplier in the place of tau / itself makes the
        step end at the right size; at the maximiser both are the same.
        """
        n = len(self.workload)
        places = np.arange(n)
        curvature[places, places] += np.maximum(
            barrier / n, (0.5 + barrier) * self.point.weights - slopes + barrier / n
        )
        slack = self._slack(barrier)
        k = self.patterns.shape[1]
        first, second = self._pairs
        basis = np.zeros((len(first), k, k))
        basis[np.arange(len(first)), first, second] = self._scales / math.sqrt(2)
        basis += basis.transpose(0, 2, 1)
        # tr(E S E') for any two matrices of the basis
        local = np.einsum("xij,pjk,yki->pxy", basis, slack, basis, optimize=True)
        local = 0.5 * (local + local.transpose(0, 2, 1))
        count = len(self.patterns)
        index = np.full(len(first) * count, -1)
        index[self._kept] = n + np.arange(len(self._kept))
        numbers = index.reshape(len(first), count)
        for pattern in range(count):
            kept = np.flatnonzero(numbers[:, pattern] >= 0)
            at = numbers[kept, pattern]
            curvature[np.ix_(at, at)] += local[pattern][np.ix_(kept, kept)]

    def _slack(self, barrier: float) -> Array:
        """L^T (diag(mu) - M / (2 ||K||_*)) L for the multipliers mu of W_tt = v_pi; at least tau / n."""
        n = len(self.workload)
        k = self.patterns.shape[1]
        factors = self.point.multiplier.factors
        chosen = columns(self.point.vectors, self.patterns)
        m = np.matmul(chosen.transpose(0, 2, 1) / self.point.roots, chosen) / (2 * self.point.value)
        w = np.matmul(factors, factors.transpose(0, 2, 1))
        v = self.point.multiplier.largest
        sizes = self._inside.sum(axis=1)
        mu = np.where(self._inside, (np.einsum("pij,pji->pi", m, w) + barrier / n) / v[:, None], 0.0)
        mu += ((0.5 + barrier - mu.sum(axis=1)) / sizes)[:, None]
        slack = np.matmul(factors.transpose(0, 2, 1), (mu[:, :, None] * np.eye(k) - m) @ factors)
        values, vectors = np.linalg.eigh(slack)
        values = np.maximum(values, barrier / n)
        return np.asarray(np.matmul(vectors * values[:, None, :], vectors.transpose(0, 2, 1)))

    def _constraints(self) -> Array:
        """Columns whose products with a step must vanish: sums, and differences of the diagonal of W."""
        n = len(self.workload)
        count = len(self.patterns)
        first, second = self._pairs
        factors = self.point.multiplier.factors
        # (L D L^T)_ii by the numbers of D, shape (pairs, count, k)
        slopes = (factors[:, :, first] * factors[:, :, second] * (math.sqrt(2) * self._scales)).transpose(
            2, 0, 1
        )
        found = [np.concatenate([self.point.weights, np.zeros(len(self._kept))])]
        whole = np.concatenate([np.zeros(n), slopes[:, :, 0].reshape(-1)[self._kept]])
        found.append(whole)
        for pattern in range(count):
            for place in range(1, int(self._inside[pattern].sum())):
                column = np.zeros((len(first), count))
                column[:, pattern] = slopes[:, pattern, place] - slopes[:, pattern, 0]
                found.append(np.concatenate([np.zeros(n), column.reshape(-1)[self._kept]]))
        return np.column_stack(found)

    def _curvature(self) -> Array:
        """The matrix of the quadratic form above, lower half, with room for what is added to it."""
        n = len(self.workload)
        count, k = self.patterns.shape
        first, second = self._pairs
        inverse = 1.0 / self.point.roots
        pairs = len(first)
        weights, cross = np.zeros((n, n)), np.zeros((pairs, count, n))
        blocks = np.zeros((pairs, pairs, count, count))
        low, high = math.log(0.5 / inverse.max()) - 5.0, math.log(0.5 / inverse.min()) + 3.0
        for node in np.exp(np.arange(low, high, SPACING)):
            decays = math.sqrt(math.sqrt(SPACING * node)) * np.exp(-0.5 * node * inverse)
            u, v = self._left * decays, self._right * decays
            weights += np.square(u @ u.T)
            mixed = (v @ u.T).reshape(count, k, n).transpose(1, 0, 2)
            z = np.ascontiguousarray((v @ v.T).reshape(count, k, count, k).transpose(1, 3, 0, 2))
            for row, (i, j) in enumerate(zip(first, second, strict=True)):
                cross[row] -= mixed[i] * mixed[j]
                before = slice(row + 1)
                block = z[i][first[before]] * z[j][second[before]]
                block += z[i][second[before]] * z[j][first[before]]
                blocks[row, before] += block
        blocks *= self._scales[:, None, None, None] * self._scales[:, None, None]
        cross *= math.sqrt(2) * self._scales[:, None, None]
        kept = self._kept
        curvature = np.empty((n + len(kept), n + len(kept)))
        curvature[:n, :n] = weights
        curvature[n:, :n] = cross.reshape(-1, n)[kept]
        whole = len(kept) == pairs * count
        square = curvature[n:, n:] if whole else np.empty((pairs * count, pairs * count))
        for row in range(pairs):
            square[row * count : (row + 1) * count] = blocks[row].transpose(1, 0, 2).reshape(count, -1)
        if not whole:
            curvature[n:, n:] = square[np.ix_(kept, kept)]
        return curvature
