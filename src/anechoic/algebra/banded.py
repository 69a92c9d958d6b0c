"""Algebra of banded lower-triangular matrices C, stored by columns, and selected entries of (C^T C)^-1.

`columns` has shape (n, bands): columns[j, i] = C[j + i, j], zero where j + i >= n. Where a recursion runs
over the steps, it runs over blocks of at least bands - 1 of them: C is then block bidiagonal, and the work
is O(n bands^2) in products of blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from anechoic._validate import Array

# Steps in a block at least, and numbers in the arrays of one stretch of blocks (128 MB).
SMALLEST = 24
STRETCH = 2**24


def multiply(columns: Array, x: Array) -> Array:
    """C x along axis 0; x has shape (n, ...)."""
    n, bands = columns.shape
    shape = (-1,) + (1,) * (x.ndim - 1)
    y = columns[:, 0].reshape(shape) * x
    for lag in range(1, bands):
        y[lag:] += columns[: n - lag, lag].reshape(shape) * x[: n - lag]
    return np.asarray(y)


def solve(columns: Array, z: Array) -> Array:
    """C^-1 z along axis 0, by forward substitution; z has shape (n, ...)."""
    from scipy.linalg.lapack import dtbtrs

    # the transpose of `columns` is the band storage of LAPACK; its diagonal is positive, so that info is 0
    solved, _ = dtbtrs(columns.T, z.reshape(len(z), -1), uplo="L")
    return np.ascontiguousarray(solved).reshape(z.shape)


def solve_adjoint(columns: Array, z: Array) -> Array:
    """C^-T z along axis 0, by back substitution; z has shape (n, ...)."""
    from scipy.linalg.lapack import dtbtrs

    solved, _ = dtbtrs(columns.T, z.reshape(len(z), -1), uplo="L", trans="T")
    return np.ascontiguousarray(solved).reshape(z.shape)


def of_toeplitz(coefficients: Array, n: int) -> Array:
    """The columns of a Toeplitz matrix, shape (n, coefficients)."""
    return inside(np.tile(coefficients, (n, 1)))


def inside(columns: Array) -> Array:
    """`columns` itself, with zeros where a column would go on under the last row."""
    n, bands = columns.shape
    for lag in range(1, bands):
        columns[max(0, n - lag) :, lag] = 0.0
    return columns


def dense(columns: Array) -> Array:
    """C as an (n, n) array."""
    n, bands = columns.shape
    matrix = np.zeros((n, n))
    for lag in range(bands):
        np.fill_diagonal(matrix[lag:], columns[: n - lag, lag])
    return matrix


def from_dense(matrix: Array, bands: int) -> Array:
    """The columns of the first `bands` bands of an (n, n) array, shape (n, bands)."""
    n = len(matrix)
    columns = np.zeros((n, bands))
    for lag in range(bands):
        columns[: n - lag, lag] = matrix.diagonal(-lag)
    return columns


def rows(columns: Array) -> Array:
    """C by rows: array[t, i] = C[t, t - i], zero where i > t; shape (n, bands)."""
    n, bands = columns.shape
    array = np.zeros((n, bands))
    for lag in range(bands):
        array[lag:, lag] = columns[: n - lag, lag]
    return array


def product(left: Array, right: Array) -> Array:
    """The columns of the product of two such matrices: one band fewer than they have together, at most n."""
    n, bands = left.shape
    out = np.zeros((n, bands + right.shape[1] - 1))
    for lag in range(right.shape[1]):
        out[: n - lag, lag : lag + bands] += left[lag:] * right[: n - lag, lag, None]
    return out[:, :n]


def product_adjoint(image: Array, right: Array, bands: int) -> Array:
    """The adjoint of `product` in its left argument: from derivatives by the product to those by `left`."""
    n = len(image)
    out = np.zeros((n, bands))
    for lag in range(right.shape[1]):
        part = image[: n - lag, lag : lag + bands]
        out[lag:, : part.shape[1]] += part * right[: n - lag, lag, None]
    return out


class Blocks(NamedTuple):
    """C cut into blocks of `size` steps, the last filled up by an identity; each array (blocks, size, size).

    Attributes:
        diagonal: the blocks on the diagonal.
        below: those under them; below[k] stands in the rows of block k and the columns of block k - 1.
    """

    diagonal: Array
    below: Array


def block_size(bands: int, n: int) -> int:
    """Steps of a block, so that only neighbouring blocks touch; small ones cost overhead, large ones work."""
    return min(n, max(bands - 1, SMALLEST))


def split(columns: Array, size: int) -> Blocks:
    """Blocks of `size` >= bands - 1 steps."""
    n, bands = columns.shape
    count = -(-n // size)
    filled = np.zeros((count * size, bands))
    filled[:n] = columns
    filled[n:, 0] = 1.0
    filled = filled.reshape(count, size, bands)
    diagonal, below = np.zeros((2, count, size, size))
    for j in range(size):
        own = min(bands, size - j)
        diagonal[:, j : j + own, j] = filled[:, j, :own]
        below[1:, : bands - own, j] = filled[:-1, j, own:]
    return Blocks(diagonal, below)


def join(blocks: Blocks, n: int, bands: int) -> Array:
    """The columns, shape (n, bands), of a block matrix whose entries outside of the bands are left out."""
    count, size, _ = blocks.diagonal.shape
    columns = np.zeros((count, size, bands))
    for j in range(size):
        own = min(bands, size - j)
        columns[:, j, :own] = blocks.diagonal[:, j : j + own, j]
        columns[:-1, j, own:] = blocks.below[1:, : bands - own, j]
    return inside(columns.reshape(-1, bands)[:n])


class Propagation(NamedTuple):
    """y = C^-1 z for white z, block by block: y_k = transfer_k y_{k-1} + inverse_k z_k.

    Attributes:
        inverse: inverses of the diagonal blocks.
        transfer: - inverse times the block below the diagonal.
        covariance: of y_k: the diagonal blocks of (C^T C)^-1.
    """

    inverse: Array
    transfer: Array
    covariance: Array


def propagate(blocks: Blocks, before: Array | None = None) -> Propagation:
    """The block form of Takahashi's selected inverse.

    `before` is the covariance of the block before the first one, where these are not the first of all.
    """
    inverse = np.asarray(np.linalg.inv(blocks.diagonal), dtype=np.float64)
    transfer: Array = -(inverse @ blocks.below)
    covariance: Array = inverse @ inverse.transpose(0, 2, 1)
    for k in range(len(covariance)):
        earlier = before if k == 0 else covariance[k - 1]
        if earlier is not None:
            covariance[k] += transfer[k] @ earlier @ transfer[k].T
    return Propagation(inverse, transfer, covariance)


class Sums(NamedTuple):
    """A recursion F y = K C^-1 z, for banded matrices in blocks of as many steps.

    Its state is x = C^-1 z and y of one block, so that K need have no inverse of few bands, and differences
    of sums are never taken: gains in K that differ by many orders of magnitude cost no digits, as they do in
    the entries of C K^-1 F.

    Attributes:
        strategy: C.
        filter: F.
        gains: K.
    """

    strategy: Blocks
    filter: Blocks
    gains: Blocks

    def tail(self, skipped: int) -> Sums:
        """Without the first blocks."""
        return Sums(*(Blocks(x.diagonal[skipped:], x.below[skipped:]) for x in self))


def sums_block_size(bands: int, n: int) -> int:
    """Steps of a block for C, F and K of at most so many bands: states are twice as long."""
    return min(n, max(bands - 1, SMALLEST // 2))


def propagate_sums(sums: Sums, before: Array | None = None) -> Propagation:
    """As `propagate`, for states (x, y) of twice the size; noise enters x alone."""
    own, filtered = np.linalg.inv(sums.strategy.diagonal), np.linalg.inv(sums.filter.diagonal)
    count, size, _ = own.shape
    driven = filtered @ (sums.gains.diagonal @ own)
    inverse = np.zeros((count, 2 * size, 2 * size))
    inverse[:, :size, :size], inverse[:, size:, :size], inverse[:, size:, size:] = own, driven, filtered
    transfer = np.zeros_like(inverse)
    transfer[:, :size, :size] = -(own @ sums.strategy.below)
    transfer[:, size:, :size] = filtered @ sums.gains.below - driven @ sums.strategy.below
    transfer[:, size:, size:] = -(filtered @ sums.filter.below)
    noisy = inverse[:, :, :size]
    covariance: Array = noisy @ noisy.transpose(0, 2, 1)
    for k in range(count):
        earlier = before if k == 0 else covariance[k - 1]
        if earlier is not None:
            covariance[k] += transfer[k] @ earlier @ transfer[k].T
    return Propagation(inverse, transfer, covariance)


def sum_variances(covariance: Array) -> Array:
    """The variances of y, one block after the other."""
    half = covariance.shape[1] // 2
    return variances(covariance[:, half:, half:])


def sums_squared(columns: Array, filter_columns: Array, gains: Array) -> Array:
    """Squared norms of the rows of F^-1 K C^-1, shape (n,), in O(n bands^2)."""
    n, matrices = len(columns), (columns, filter_columns, gains)
    size = sums_block_size(max(matrix.shape[1] for matrix in matrices), n)
    squares = np.empty(n)
    stretch = max(1, STRETCH // (4 * size) ** 2) * size
    before, kept = None, 0
    for start in range(0, n, stretch):
        # the block before is cut along, for what its columns put into this stretch
        part = slice(start - kept, start + stretch)
        sums = Sums(*(split(matrix[part], size) for matrix in matrices))
        covariance = propagate_sums(sums.tail(1) if kept else sums, before).covariance
        squares[start : start + stretch] = sum_variances(covariance)[: n - start]
        before, kept = covariance[-1], size
    return squares


def variances(covariance: Array) -> Array:
    """The diagonals of the blocks, one after the other."""
    return np.asarray(np.einsum("kii->ki", covariance)).reshape(-1)


def inverse_row_norms_squared(columns: Array) -> Array:
    """Squared norms of the rows of C^-1, shape (n,): O(n bands^2), whatever their entries."""
    n, bands = columns.shape
    size = block_size(bands, n)
    squares = np.empty(n)
    stretch = max(1, STRETCH // size**2) * size
    before, carried = None, np.zeros((0, bands))
    for start in range(0, n, stretch):
        # the block before is cut along, for what its columns put into this stretch
        kept = len(carried)
        blocks = split(np.concatenate([carried, columns[start : start + stretch]]), size)
        if kept:
            blocks = Blocks(blocks.diagonal[1:], blocks.below[1:])
        covariance = propagate(blocks, before).covariance
        squares[start : start + stretch] = variances(covariance)[: n - start]
        before, carried = covariance[-1], columns[start + stretch - size : start + stretch]
    return squares
