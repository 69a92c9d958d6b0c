"""Squared errors of a banded strategy, what changes them, and what no strategy of its bands can beat.

Let G = C A^-1, so that B = A C^-1 = G^-1. Where A^-1 has few bands, so has G, and the squared error of step t
is the variance of step t of the process G^-1 z: `propagate` carries its covariance from block to block, and
a pass backwards carries the cost of what is still to come. For e = sum_t w_t e_t^2 and the covariances
P_k and costs L_k of the blocks, the derivatives by the blocks of G are

    by the diagonal block D_k: -2 D_k^-T L_k P_k,    by the block below: -2 D_k^-T L_k F_k P_{k-1},

with F_k = -D_k^-1 E_k: O(n bands^2) in all, n / bands steps of a few products of small matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from scipy.linalg import solve_triangular

from anechoic._validate import Array
from anechoic.algebra import banded
from anechoic.algebra.banded import Blocks, Propagation, Sums
from anechoic.workloads.base import Workload
from anechoic.workloads.inverses import recursion_columns

# Squared errors -> the mean that is minimised, and its derivatives by them (weights).
Mean = Callable[[Array], tuple[float, Array]]

# Steps up to which n x n arrays are used: an evaluation then takes seconds.
DENSE = 4096


class Evaluation(NamedTuple):
    """The mean of the squared errors, its weights w at these errors, and its derivatives by the columns."""

    value: float
    weights: Array
    gradient: Array


class Objective(Protocol):
    """The squared errors of all banded C, stored by columns, shape (n, bands), for one workload."""

    def squares(self, columns: Array) -> Array:
        """Squared errors of the steps, shape (n,)."""

    def __call__(self, columns: Array, mean: Mean) -> Evaluation:
        """`mean` of them, with derivatives."""

    def multipliers(self, columns: Array, weights: Array) -> Array:
        """In-band entries of M^-1 A^T W A M^-1 for M = C^T C, by columns, shape (n, bands)."""


def objective_of(workload: Workload, bands: int) -> Objective | None:
    """By covariances of blocks where a recursion gives A, by dense products for few steps, else None."""
    parts = recursion_columns(workload)
    few = parts is not None and 4 * (bands + max(part.shape[1] for part in parts)) <= workload.n
    if not few and workload.n <= DENSE:
        return DenseObjective(workload.to_dense())
    if parts is None:
        return None
    return BlockObjective(*parts, bands) if len(parts) == 1 else SumsObjective(*parts, bands)


FEW = 64  # bands up to which rows are substituted one by one, each for all steps


class DenseObjective:
    """For any workload, given as A, in O(n^3)."""

    def __init__(self, a: Array) -> None:
        self._a = a
        self.n = len(a)

    def squares(self, columns: Array) -> Array:
        return np.asarray(np.square(self._b(columns)).sum(axis=1))

    def __call__(self, columns: Array, mean: Mean) -> Evaluation:
        b = self._b(columns)
        value, weights = mean(np.square(b).sum(axis=1))
        # -2 B^T W B C^-T, its bands alone
        decoders, n = np.ascontiguousarray(b.T), self.n
        images = -2.0 * self._solve(columns, decoders) * weights
        gradient = np.zeros_like(columns)
        for lag in range(min(columns.shape[1], n)):
            gradient[: n - lag, lag] = np.einsum("jt,jt->j", images[: n - lag], decoders[lag:])
        return Evaluation(value, weights, gradient)

    def multipliers(self, columns: Array, weights: Array) -> Array:
        b: Array = np.sqrt(weights)[:, None] * self._b(columns)
        image = banded.solve(columns, b.T)
        return banded.from_dense(image @ image.T, columns.shape[1])

    def _b(self, columns: Array) -> Array:
        n, bands = columns.shape
        if bands > FEW:
            return np.asarray(solve_triangular(banded.dense(columns), self._a.T, lower=True, trans="T").T)
        b = np.array(self._a.T, order="C")
        for j in range(n - 1, -1, -1):  # rows of B^T, of which the last `bands` matter
            b[j, j:] -= columns[j, 1 : n - j] @ b[j + 1 : j + bands, j:]
            b[j, j:] /= columns[j, 0]
        return b.T

    def _solve(self, columns: Array, z: Array) -> Array:
        n, bands = columns.shape
        if bands > FEW:
            return np.asarray(solve_triangular(banded.dense(columns), z, lower=True))
        # rows[j, i] = C[j, j - bands + 1 + i]
        rows = np.zeros((n, bands))
        for lag in range(min(bands, n)):
            rows[lag:, bands - 1 - lag] = columns[: n - lag, lag]
        x = z.copy()
        for j in range(n):
            first = max(0, j - bands + 1)
            x[j] -= rows[j, bands - 1 - (j - first) : bands - 1] @ x[first:j]
            x[j] /= rows[j, bands - 1]
        return x


class RestOfRun(NamedTuple):
    """What the rest of the run is to a window: covariances of the blocks before, costs of those after."""

    covariance: Array
    cost: Array


class BlockObjective:
    """For workloads whose inverse has few bands, in O(n bands^2).

    Args:
        inverse: A^-1 by columns, shape (n, its bands).
        bands: of C.
    """

    def __init__(self, inverse: Array, bands: int) -> None:
        self.inverse, self.bands = inverse, bands
        self.n, self.past = inverse.shape[0], inverse.shape[1] - 1
        self.size = banded.block_size(bands + self.past, self.n)
        self.count = -(-self.n // self.size)

    def squares(self, columns: Array) -> Array:
        return banded.inverse_row_norms_squared(banded.product(columns, self.inverse))

    def __call__(self, columns: Array, mean: Mean) -> Evaluation:
        forward = self.forward(columns)
        value, weights = mean(self.variances(forward.covariance)[: self.n])
        cost = costs(forward.transfer, self.in_blocks(weights))
        gradient = self.gradient(_derivatives(forward, cost), 0, self.n, self.n)
        return Evaluation(value, weights, banded.inside(gradient))

    def forward(
        self,
        columns: Array,
        low: int = 0,
        length: int | None = None,
        skipped: int = 0,
        before: Array | None = None,
    ) -> Propagation:
        """The recursion of `length` steps from `low` on, its first `skipped` blocks known by `before`.

        `columns` are those from `low` on, and `past` more than `length` where there are as many.
        """
        g = banded.product(columns, self.inverse[low : low + len(columns)])[:length]
        blocks = banded.split(g, self.size)
        return banded.propagate(Blocks(blocks.diagonal[skipped:], blocks.below[skipped:]), before)

    def variances(self, covariance: Array) -> Array:
        """Squared errors of the steps of the blocks, from the covariances of their states."""
        return banded.variances(covariance)

    def gradient(self, derivatives: Blocks, low: int, length: int, total: int, skipped: int = 0) -> Array:
        """By `total` columns from `low` on, from the derivatives by the blocks after the skipped ones."""
        image = np.zeros((total, min(self.bands + self.past, length)))
        offset = skipped * self.size
        image[offset:length] = banded.join(derivatives, length - offset, image.shape[1])
        return banded.product_adjoint(image, self.inverse[low : low + total], self.bands)

    def state(self, columns: Array, weights: Array) -> RestOfRun:
        """Covariances and costs of all blocks."""
        forward = self.forward(columns)
        return RestOfRun(forward.covariance, costs(forward.transfer, self.in_blocks(weights)))

    def window(self, columns: Array, weights: Array, state: RestOfRun, blocks: range) -> ColumnsWindow:
        """The same objective as a function of the columns of some blocks, all others fixed."""
        return ColumnsWindow(self, columns, self.in_blocks(weights), state, blocks)

    def multipliers(self, columns: Array, weights: Array) -> Array:
        # Z = M^-1 A^T W A M^-1 fulfils C Z = B^T W B C^-T, whose blocks near the diagonal are known: they are
        # minus half the derivatives by C. Solved from block to block.
        forward = self.forward(columns)
        cost = costs(forward.transfer, self.in_blocks(weights))
        own, below = (-0.5 * part for part in self.by_strategy(_derivatives(forward, cost)))
        c = banded.split(columns, self.size)
        inverse = np.linalg.inv(c.diagonal)
        step, own, below = inverse @ c.below, inverse @ own, inverse @ below
        for k in range(1, self.count):
            below[k] -= step[k] @ own[k - 1]
            own[k] -= step[k] @ below[k].T
        return banded.join(Blocks(own, below), self.n, self.bands)

    def by_strategy(self, derivatives: Blocks) -> Blocks:
        """Derivatives by the blocks of C, in the bands and outside of them, from those by G = C A^-1."""
        right = banded.split(self.inverse, self.size)
        right_own, right_below = right.diagonal.transpose(0, 2, 1), right.below.transpose(0, 2, 1)
        # times A^-T; what the block before last would add lies outside of the bands
        own = derivatives.diagonal @ right_own
        own[1:] += derivatives.below[1:] @ right_below[1:]
        return Blocks(own, derivatives.below @ right_own[np.r_[0, : self.count - 1]])

    def in_blocks(self, weights: Array) -> Array:
        """Weights of the states of each block: those of the steps."""
        filled = np.zeros(self.count * self.size)
        filled[: self.n] = weights
        return filled.reshape(self.count, self.size)


class SumsObjective(BlockObjective):
    """The same for A = F^-1 K whose inverse has many bands, or digits to lose: by states without differences.

    Args:
        filter_columns, gains: F and K by columns, shapes (n, their bands).
        bands: of C.
    """

    def __init__(self, filter_columns: Array, gains: Array, bands: int) -> None:
        super().__init__(filter_columns, bands)
        self.gains = gains
        self.past = 0  # C itself is cut into blocks
        self.size = banded.sums_block_size(max(bands, filter_columns.shape[1], gains.shape[1]), self.n)
        self.count = -(-self.n // self.size)

    def squares(self, columns: Array) -> Array:
        return banded.sums_squared(columns, self.inverse, self.gains)

    def forward(
        self,
        columns: Array,
        low: int = 0,
        length: int | None = None,
        skipped: int = 0,
        before: Array | None = None,
    ) -> Propagation:
        part = slice(low, low + len(columns))
        matrices = columns, self.inverse[part], self.gains[part]
        sums = Sums(*(banded.split(matrix, self.size) for matrix in matrices))
        return banded.propagate_sums(sums.tail(skipped), before)

    def variances(self, covariance: Array) -> Array:
        return banded.sum_variances(covariance)

    def gradient(self, derivatives: Blocks, low: int, length: int, total: int, skipped: int = 0) -> Array:
        gradient = np.zeros((total, self.bands))
        offset = skipped * self.size
        gradient[offset:length] = banded.join(self.by_strategy(derivatives), length - offset, self.bands)
        return gradient

    def by_strategy(self, derivatives: Blocks) -> Blocks:
        return Blocks(*(part[:, : self.size, : self.size] for part in derivatives))

    def in_blocks(self, weights: Array) -> Array:
        steps = super().in_blocks(weights)
        return np.concatenate([np.zeros_like(steps), steps], axis=1)


class ColumnsWindow:
    """The objective as a function of the columns `free`: those of all its blocks but the first and the last.

    At an end of the run, the outermost block is free too. The value leaves out the errors of other blocks.
    """

    def __init__(
        self, whole: BlockObjective, columns: Array, weights: Array, state: RestOfRun, blocks: range
    ) -> None:
        first, last = blocks.start, blocks.stop
        size, n = whole.size, whole.n
        self._whole, self._weights = whole, weights[first:last].copy()
        self._ends = last == whole.count
        self._before = None if first == 0 else state.covariance[first - 1].copy()
        self._cost = None if self._ends else state.cost[last - 1].copy()
        if not self._ends:
            self._weights[-1] = 0.0
        # one block more on the left for its columns' entries in the window, a few columns more on the right
        self._low, self._high = max(first - 1, 0) * size, min(last * size, n)
        reach = min(self._high + whole.past, n)
        self._columns = columns[self._low : reach].copy()
        start = 0 if first == 0 else (first + 1) * size
        self.free = slice(start, n if self._ends else (last - 1) * size)
        self._inner = slice(start - self._low, self.free.stop - self._low)
        self._skipped = 0 if first == 0 else 1

    def __call__(self, free: Array) -> tuple[float, Array]:
        """Value, and its derivatives by the free columns; both shapes (free columns, bands)."""
        whole = self._whole
        self._columns[self._inner] = free
        length = self._high - self._low
        forward = whole.forward(self._columns, self._low, length, self._skipped, self._before)
        weights = self._weights[:, -whole.size :]
        value = float(whole.variances(forward.covariance) @ weights.reshape(-1))
        if self._cost is not None:
            value += float((self._cost * forward.covariance[-1]).sum())
        derivatives = _derivatives(forward, costs(forward.transfer, self._weights, self._cost))
        gradient = whole.gradient(derivatives, self._low, length, len(self._columns), self._skipped)[
            self._inner
        ]
        return value, banded.inside(gradient) if self._ends else gradient


def costs(transfer: Array, weights: Array, after: Array | None = None) -> Array:
    """L_k, derivatives of the mean by P_k: diag(w_k) + F_{k+1}^T L_{k+1} F_{k+1}; `after` for the last."""
    count, size = weights.shape
    cost = np.zeros((count, size, size))
    cost[:, np.arange(size), np.arange(size)] = weights
    if after is not None:
        cost[-1] += after
    for k in range(count - 2, -1, -1):
        cost[k] += transfer[k + 1].T @ cost[k + 1] @ transfer[k + 1]
    return cost


def _derivatives(forward: Propagation, cost: Array) -> Blocks:
    """Derivatives by the blocks of G."""
    left = -2.0 * (forward.inverse.transpose(0, 2, 1) @ cost)
    diagonal = left @ forward.covariance
    below = np.zeros_like(diagonal)
    below[1:] = (left[1:] @ forward.transfer[1:]) @ forward.covariance[:-1]
    return Blocks(diagonal, below)
