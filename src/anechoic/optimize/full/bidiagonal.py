"""|K| for K = diag(p)^½ A diag(q)^½ where A^-1 is bidiagonal: O(n) for its diagonal, whatever n is.

The inverse of K is a bidiagonal matrix B, so that (K^T K)^½ = (B B^T)^(-½) is a sum over some 20 poles of
inverses of the tridiagonal matrices B B^T + sigma. With squares e_i = B[i, i]^2 and f_i = B[i, i-1]^2 and the
factorisation B B^T + sigma = L D L^T,

    D_i = e_i + s_i,   s_i = sigma + f_i s_{i-1} / (e_{i-1} + s_{i-1}),

    Z_i = 1 / D_i + (f_{i+1} e_i / D_i^2) Z_{i+1}   is the diagonal of the inverse.

All terms are positive: nothing cancels, and every number is right but for a relative error of a few units
in the last place per step (the differential form of the qd algorithm, with its mixed stability). Hence the
sum of the diagonals, divided by the excess of the rational approximation, is a lower bound of the nuclear
norm of K in floating point too, at any n. Recursions run over many blocks of steps at once, and then over
the blocks: maps from the value before a block to the one after it are composed first.
"""

from __future__ import annotations

import math

import numpy as np

from anechoic._validate import Array
from anechoic.optimize.full.modulus import Diagonals, MatrixModulus
from anechoic.optimize.full.newton import SingularPair
from anechoic.optimize.full.quadrature import InverseRoot, inverse_root
from anechoic.workloads.base import Workload
from anechoic.workloads.inverses import inverse_columns

# Entries of a work array: poles are taken in groups, so that memory stays at some of these whatever n is.
CHUNK = 2**21
# Steps up to which singular vectors are computed where the cheap iteration is slow (decay, max loss).
DENSE = 2048
# Half-units in the last place per step that the proof of the lower bound grants to rounding.
ROUNDING = 64.0


def bidiagonal_inverse(workload: Workload) -> tuple[Array, Array] | None:
    """Diagonal and subdiagonal of A^-1, each shape (n,), the latter with 0 first; None if A^-1 has more."""
    columns = inverse_columns(workload)
    if columns is None or columns[:, 2:].any():
        return None
    below = np.zeros(workload.n)
    below[1:] = columns[:-1, 1:2].sum(axis=1)
    return columns[:, 0].copy(), below


class BidiagonalModulus:
    """Diagonals and entries of |K| from the two diagonals of A^-1.

    Args:
        diagonal, below: of A^-1, each shape (n,); below[0] = 0.
        symmetric: A is its own flip (J A^T J = A), as Toeplitz matrices are.
        tolerance: relative error allowed to the rational approximation.
    """

    patience = 40

    def __init__(self, diagonal: Array, below: Array, *, symmetric: bool, tolerance: float) -> None:
        self.n, self.symmetric, self.tolerance = len(diagonal), symmetric, tolerance
        self._diagonal, self._below = diagonal, below
        self._e, self._f, self._signs = np.square(diagonal), np.square(below), -np.sign(below * diagonal)
        self._matrix: MatrixModulus | None = None

    def diagonals(self, p: Array, q: Array, *, rows: bool) -> Diagonals:
        """Diagonals of (K^T K)^½ and, if `rows`, of (K K^T)^½; p, q > 0, each shape (n,)."""
        e, f = self._squares(p, q)
        root = self._root(e, f)
        columns = _weighted_inverse(e, f, root)
        certain = float(columns.sum()) / root.excess
        certain *= 1.0 - ROUNDING * self.n * np.finfo(float).eps / 2
        if not rows:
            return Diagonals(columns, None, certain)
        # K K^T has the inverse B^T B: the same recursions from the other end
        f = np.append(0.0, f[:0:-1])
        return Diagonals(columns, _weighted_inverse(e[::-1], f, root)[::-1], certain)

    def singular(self, p: Array, q: Array) -> SingularPair | None:
        if self.n > DENSE:
            return None
        if self._matrix is None:
            self._matrix = MatrixModulus(self._entries(), symmetric=self.symmetric)
        return self._matrix.singular(p, q)

    def _entries(self) -> Array:
        """A from the diagonals of its inverse: each row follows from the one above it."""
        matrix = np.diag(1.0 / self._diagonal)
        for i in range(1, self.n):
            matrix[i, :i] = (-self._below[i] / self._diagonal[i]) * matrix[i - 1, :i]
        return matrix

    def flipped_gram(self, p: Array, q: Array) -> Array:
        """M = diag(q)^-½ (K^T K)^½ diag(q)^-½ with rows and columns reversed; shape (n, n), upper half only.

        Below the diagonal, (B B^T + sigma)^-1 [i, j] is Z_i times the ratios of the steps j + 1, …, i.
        """
        n = self.n
        e, f = self._squares(p, q)
        root = self._root(e, f)
        s, z = (_unfold(x, n) for x in _pivots(e, f, root.shifts))
        ratios = np.zeros_like(s)
        ratios[1:] = (self._signs[1:] * np.sqrt(f[1:] * e[:-1]))[:, None] / (e[:-1, None] + s[:-1])
        scales = 1.0 / np.sqrt(q)
        ends = z * root.weights * scales[:, None]
        reach = np.empty((len(root.shifts), n))
        flipped = np.zeros((n, n))
        for i in range(n):
            reach[:, n - i :] *= ratios[i][:, None]
            reach[:, n - 1 - i] = scales[i]
            np.matmul(ends[i], reach[:, n - 1 - i :], out=flipped[n - 1 - i, n - 1 - i :])
        return flipped

    def _squares(self, p: Array, q: Array) -> tuple[Array, Array]:
        """Squares of the diagonals of B = diag(q)^-½ A^-1 diag(p)^-½."""
        f = self._f.copy()
        f[1:] /= q[1:] * p[:-1]
        return self._e / (q * p), f

    def _root(self, e: Array, f: Array) -> InverseRoot:
        """The approximation on an interval that holds the spectrum of B B^T."""
        # B B^T + S B B^T S = 2 diag(e + f) for S of alternating signs; the inverse of B B^T is K^T K
        largest = 2.0 * float((e + f).max())
        trace = float(_weighted_inverse(e, f, InverseRoot(np.zeros(1), np.ones(1), 1.0)).sum())
        return inverse_root((1.0 - 1e-3) / trace, largest, self.tolerance)


def _weighted_inverse(e: Array, f: Array, root: InverseRoot) -> Array:
    """Diagonal of sum_k weights_k (B B^T + shifts_k)^-1, shape (n,)."""
    total = np.zeros(len(e))
    width = max(1, CHUNK // len(e))
    for start in range(0, len(root.shifts), width):
        part = slice(start, start + width)
        total += _unfold(_pivots(e, f, root.shifts[part])[1] @ root.weights[part], len(e))
    return total


def _fold(x: Array, filling: float) -> Array:
    """n numbers as (steps of a block, blocks, 1), filled up."""
    # loops run over the steps of one block and over the blocks, of which the first are dearer
    blocks = max(1, math.isqrt(2 * len(x)))
    length = -(-len(x) // blocks)
    padded = np.full(length * blocks, filling)
    padded[: len(x)] = x
    return np.ascontiguousarray(padded.reshape(blocks, length).T)[:, :, None]


def _unfold(x: Array, n: int) -> Array:
    """(steps of a block, blocks, ...) as (n, ...)."""
    return x.swapaxes(0, 1).reshape(-1, *x.shape[2:])[:n]


def _pivots(e: Array, f: Array, shifts: Array) -> tuple[Array, Array]:
    """s and Z as above, folded: each shape (steps of a block, blocks, shifts)."""
    own, coupling = _fold(e, 1.0), _fold(f, 0.0)
    before = _fold(np.append(1.0, e[:-1]), 1.0)
    s = _forward(before, coupling, shifts)
    pivots = own + s
    ends = 1.0 / pivots
    carried = _fold(np.append(f[1:], 0.0), 0.0) * own * ends * ends
    return s, _backward(carried, ends)


def _forward(before: Array, coupling: Array, shifts: Array) -> Array:
    """s_i = shift + f_i s_{i-1} / (e_{i-1} + s_{i-1}); shape (length, blocks, shifts)."""
    length, blocks, _ = before.shape
    # A block maps s to (top s + bottom balance) / (s + balance): top and bottom are its values at s = inf
    # and s = 0, which run through the same recursion.
    top = shifts + coupling[0]
    bottom = np.broadcast_to(shifts, top.shape).copy()
    balance = np.broadcast_to(before[0], top.shape).copy()
    for r in range(1, length):
        above, below = top + before[r], bottom + before[r]
        balance *= below / above
        top = shifts + coupling[r] * (top / above)
        bottom = shifts + coupling[r] * (bottom / below)
    entering = np.empty_like(top)
    s = np.zeros_like(shifts)
    for block in range(blocks):
        entering[block] = s
        s = (top[block] * s + bottom[block] * balance[block]) / (s + balance[block])
    values = np.empty((length, blocks, len(shifts)))
    last = entering
    for r in range(length):
        last = np.divide(last, last + before[r], out=values[r])
        last *= coupling[r]
        last += shifts
    return values


def _backward(carried: Array, ends: Array) -> Array:
    """Z_i = ends_i + carried_i Z_{i+1}; arguments and result have shape (length, blocks, shifts)."""
    length, blocks, poles = ends.shape
    z, reach = ends, carried  # in place: Z without the blocks to come, and the factor of what they add
    for r in range(length - 2, -1, -1):
        z[r] += reach[r] * z[r + 1]
        reach[r] *= reach[r + 1]
    entering = np.zeros((blocks, poles))
    for block in range(blocks - 2, -1, -1):
        entering[block] = z[0, block + 1] + reach[0, block + 1] * entering[block + 1]
    z += reach * entering
    return z
