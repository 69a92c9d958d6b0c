"""|K| for K = diag(p)^½ A diag(q)^½: what the dense optimisers need of a workload.

(K^T K)^½ and (K K^T)^½ have the nuclear norm of K as their trace. `MatrixModulus` serves any A; see
`optimize.full.bidiagonal` for the ones that need no n x n array.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from scipy.linalg import svd

from anechoic._validate import Array
from anechoic.optimize.full.newton import SingularPair


class Diagonals(NamedTuple):
    """Diagonals of the moduli of K.

    Attributes:
        columns: of (K^T K)^½, shape (n,).
        rows: of (K K^T)^½, shape (rows,), or None where they were not asked for.
        certain: no more than the nuclear norm of K, whatever was rounded or approximated.
    """

    columns: Array
    rows: Array | None
    certain: float


class Modulus(Protocol):
    """A workload as the dense optimisers see it.

    Attributes:
        n: columns of A.
        symmetric: A is its own flip, J A^T J = A, so that optimal p and q are flips of one another.
        patience: evaluations after which Newton steps are worth their price, where `singular` gives some.
    """

    n: int
    symmetric: bool
    patience: int

    def diagonals(self, p: Array, q: Array, *, rows: bool) -> Diagonals:
        """Diagonals of (K^T K)^½ and, if `rows`, of (K K^T)^½; p, q > 0."""

    def singular(self, p: Array, q: Array) -> SingularPair | None:
        """Singular values and vectors of K for Newton steps, or None where n is too large for them."""

    def flipped_gram(self, p: Array, q: Array) -> Array:
        """diag(q)^-½ (K^T K)^½ diag(q)^-½ with rows and columns reversed; (n, n), the upper half counts."""


class MatrixModulus:
    """Diagonals and entries of |K| for any matrix, from the singular vectors of K.

    Eigenvectors of K K^T would take a third of the time, but leave nothing of singular values below 1e-8 of
    the largest, which weights near 0 bring about.

    Args:
        matrix: rows of A, shape (rows, n), of full row rank.
        symmetric: A is its own flip.
    """

    patience = 5

    def __init__(self, matrix: Array, *, symmetric: bool) -> None:
        self.matrix, self.symmetric = matrix, symmetric
        self.n = matrix.shape[1]
        self._last: tuple[Array, Array, SingularPair] | None = None

    def diagonals(self, p: Array, q: Array, *, rows: bool) -> Diagonals:
        left, values, right = self.singular(p, q)
        # computed singular values are those of a matrix that differs by a few n u of the largest (Weyl)
        doubt = 4.0 * max(self.n, 16) * np.finfo(float).eps / 2 * float(values[0])
        certain = float(np.maximum(values - doubt, 0.0).sum())
        return Diagonals(values @ np.square(right), np.square(left) @ values if rows else None, certain)

    def singular(self, p: Array, q: Array) -> SingularPair:
        if self._last is None or self._last[0] is not p or self._last[1] is not q:
            matrix = np.sqrt(p)[:, None] * self.matrix * np.sqrt(q)
            found = svd(matrix, full_matrices=False, overwrite_a=True, check_finite=False)
            self._last = (p, q, SingularPair(*found))
        return self._last[2]

    def flipped_gram(self, p: Array, q: Array) -> Array:
        _, values, right = self.singular(p, q)
        half = np.sqrt(values)[:, None] * right[:, ::-1] / np.sqrt(q[::-1])
        return np.asarray(half.T @ half)
