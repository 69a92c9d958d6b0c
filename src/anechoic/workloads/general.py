"""Workloads without a Toeplitz factor: any lower triangle, and the differences between restarts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from anechoic._serialize import serializable
from anechoic._validate import Array, lower_triangular, positive_int, rows_of, scale_rows, steps_within
from anechoic.workloads.base import GeneralWorkload, Workload, checked_workload
from anechoic.workloads.optimizers import Scheduled
from anechoic.workloads.sums import PrefixSum, ToeplitzWorkload

# Relative: what three roundings of a product leave between entries that are equal in exact arithmetic.
SAME = 8 * np.finfo(np.float64).eps


@serializable
@dataclass(frozen=True, eq=False)
class LowerTriangular(GeneralWorkload):
    """An explicit workload.

    Args:
        matrix: A, shape (n, n), finite, zero above the diagonal, positive on it.
    """

    n: int = 0
    matrix: ArrayLike | None = None

    def __init__(self, matrix: ArrayLike, n: int | None = None) -> None:
        array = lower_triangular(matrix, n, "a sum cannot hold later gradients.")
        object.__setattr__(self, "n", len(array))
        object.__setattr__(self, "matrix", array)

    @property
    def _a(self) -> Array:
        return cast("Array", self.matrix)

    def multiply(self, x: ArrayLike) -> Array:
        return np.asarray(np.tensordot(self._a, rows_of(self.n, x), axes=1))

    def solve(self, x: ArrayLike) -> Array:
        from scipy.linalg import solve_triangular

        rows = rows_of(self.n, x)
        return np.asarray(solve_triangular(self._a, rows.reshape(self.n, -1), lower=True)).reshape(rows.shape)

    def adjoint_multiply(self, x: ArrayLike) -> Array:
        return np.asarray(np.tensordot(self._a.T, rows_of(self.n, x), axes=1))

    def to_dense(self) -> Array:
        return self._a.copy()

    def truncate(self, steps: int) -> LowerTriangular:
        steps = steps_within(self.n, steps)
        return LowerTriangular(self._a[:steps, :steps])


def from_dense(matrix: ArrayLike) -> Workload:
    """Return the workload with this matrix: Toeplitz, or Toeplitz times a diagonal, where it is one.

    Structure counts as there where the entries agree to within 8 ulps; the workload then has the entries of
    the first column and of the diagonal, and every fast path. Anything else keeps its n x n array.

    Args:
        matrix: A, shape (n, n), finite, zero above the diagonal, positive on it.

    Raises:
        ValueError: if it is not.

    Example:
        >>> from_dense([[1.0, 0.0], [0.5, 2.0]]).is_toeplitz
        False
    """
    general = LowerTriangular(matrix)
    a = general.to_dense()
    column, rates = a[:, 0], a.diagonal() / a[0, 0]
    for j in range(general.n):
        expected = column[: general.n - j] * rates[j]
        if (np.abs(a[j:, j] - expected) > SAME * np.abs(expected)).any():
            return general
    if (a == np.tril(np.ones_like(a))).all():
        return PrefixSum(general.n)
    plain = ToeplitzWorkload(general.n, column[: int(np.flatnonzero(column)[-1]) + 1])
    return plain if (np.abs(rates - 1.0) <= SAME).all() else Scheduled(plain, rates)


@serializable
@dataclass(frozen=True, eq=False)
class RestartDifferences(GeneralWorkload):
    """Lambda_tau A: every sum relative to the last restart, where restarts come every `period` steps.

    With rows y_t of A x counted from 1 and y_0 = 0, a row that ends a period is y_t - y_{t - period}; the
    others are (y_t - y_s) / sqrt(period), with s the end of the period before. For prefix sums that is
    block-diagonal. The RMS error of a strategy for this workload is the objective of DP-MF+.

    Args:
        base: A.
        period: tau, >= 1; beyond n, no step ends a period.

    References:
        Koloskova, McKenna, Charles, Rush and McMahan, Gradient Descent with Linearly Correlated Noise (2023),
        Eq. (15) and Appendix B.
    """

    n: int
    base: Workload
    period: int

    def __init__(self, base: Workload, period: int, n: int | None = None) -> None:
        checked_workload(base, "base")
        if n is not None and n != base.n:
            raise ValueError(f"n={n} differs from the workload's {base.n} steps.")
        object.__setattr__(self, "n", base.n)
        object.__setattr__(self, "base", base)
        object.__setattr__(self, "period", positive_int("period", period))

    @property
    def restarts(self) -> tuple[Workload, int]:
        return self.base, self.period

    @property
    def row_scales(self) -> Array:
        """Factor of every difference, 1 / sqrt(period) or 1; shape (n,)."""
        return restart_scales(self.n, self.period)

    def multiply(self, x: ArrayLike) -> Array:
        x = rows_of(self.n, x)
        gains = self._gains_of_sums
        if gains is not None:
            # sums since the restart: a difference of sums would lose the digits of small ones
            sums = self._flat(np.cumsum(self._in_blocks(scale_rows(gains, x)), axis=1))
            return scale_rows(self.row_scales, sums)
        blocks = self._in_blocks(self.base.multiply(x))
        blocks[1:] -= blocks[:-1, -1:].copy()
        return scale_rows(self.row_scales, self._flat(blocks))

    def solve(self, x: ArrayLike) -> Array:
        blocks = self._in_blocks(scale_rows(1.0 / self.row_scales, rows_of(self.n, x)))
        gains = self._gains_of_sums
        if gains is not None:
            blocks[:, 1:] -= blocks[:, :-1].copy()
            return scale_rows(1.0 / gains, self._flat(blocks))
        blocks[1:] += np.cumsum(blocks[:-1, -1:], axis=0)
        return self.base.solve(self._flat(blocks))

    def adjoint_multiply(self, x: ArrayLike) -> Array:
        blocks = self._in_blocks(scale_rows(self.row_scales, rows_of(self.n, x)))
        gains = self._gains_of_sums
        if gains is not None:
            return scale_rows(gains, self._flat(np.cumsum(blocks[:, ::-1], axis=1)[:, ::-1]))
        blocks[:-1, -1] -= blocks[1:].sum(axis=1)
        return self.base.adjoint_multiply(self._flat(blocks))

    def truncate(self, steps: int) -> RestartDifferences:
        return RestartDifferences(self.base.truncate(steps_within(self.n, steps)), self.period)

    @property
    def _gains_of_sums(self) -> Array | None:
        """D where A = A_pre D, shape (n,), else None."""
        if self.base.is_prefix_sum:
            return np.ones(self.n)
        if not self.base.has_toeplitz_factor or self.base.rates is None:
            return None
        above, below = self.base.fraction
        whole = list(above) == [1.0] and list(below) == [1.0, -1.0][: self.n]
        return self.base.rates if whole else None

    def _in_blocks(self, x: Array) -> Array:
        """A copy of x with shape (periods, steps of a period, ...), filled up with zeros."""
        length = min(self.period, self.n)
        count = -(-self.n // length)
        padded = np.zeros((count * length, *x.shape[1:]))
        padded[: self.n] = x
        return padded.reshape(count, length, *x.shape[1:])

    def _flat(self, blocks: Array) -> Array:
        return blocks.reshape(-1, *blocks.shape[2:])[: self.n].copy()


def restart_scales(n: int, period: int) -> Array:
    """Factors of the differences of n rows: 1 at the end of a period, 1 / sqrt(period) elsewhere."""
    scales = np.full(n, 1.0 / np.sqrt(period))
    scales[period - 1 :: period] = 1.0
    return scales


def restart_differences(workload: Workload, *, period: int) -> Workload:
    """Return Lambda_tau A, whose RMS error is the restart objective of DP-MF+; see `RestartDifferences`.

    Args:
        workload: A, n steps.
        period: tau, >= 1; beyond n, no step ends a period.

    Raises:
        ValueError: for an argument out of range.

    Example:
        >>> from anechoic.workloads import prefix_sum
        >>> restart_differences(prefix_sum(4), period=2).multiply([1.0, 1.0, 1.0, 1.0]).round(4).tolist()
        [0.7071, 2.0, 0.7071, 2.0]
    """
    return RestartDifferences(workload, period)
