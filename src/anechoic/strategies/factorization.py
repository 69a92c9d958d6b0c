"""Rectangular factorisations turned into square, lower-triangular strategies (monograph, Remark 1.17)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from anechoic._validate import finite_array
from anechoic.strategies.dense import Dense

# Entries of B C above the diagonal, and singular values of B, below this share of the largest count as zero.
ZERO = 1e-9


def from_factorization(B: ArrayLike, C: ArrayLike) -> Dense:
    """Return the lower-triangular C' with the noise of B (C G + Z), where A = B C is lower-triangular.

    With the LQ decomposition B = L Q, Q Q^T = I: C' = Q C = L^-1 A, and B' = A C'^-1 = L. So B' B'^T = B B^T,
    every error is the same; and ||C' U|| = ||Q C U|| <= ||C U|| for every U, so no sensitivity is larger. It
    is smaller where B ignores part of what C G + Z says, as that of `Tree` does.

    Args:
        B: shape (n, r), r >= n.
        C: shape (r, n). With B the left inverse of a strategy's C the noise is that of the strategy itself.

    Returns:
        C' as a `Dense` strategy: signs of L are chosen so that its diagonal is positive.

    Raises:
        ValueError: if the shapes do not fit, B C is not lower-triangular (to 1e-9 of its largest entry), or
            a diagonal entry of B C or a singular value of B is zero.

    Example:
        >>> import numpy as np
        >>> from anechoic.strategies import Tree
        >>> tree = Tree(4)
        >>> square = from_factorization(np.linalg.pinv(tree.to_dense()), tree.to_dense())
        >>> bool(np.isclose(square.largest_column_norm(), tree.largest_column_norm()))
        True

    References:
        Monograph, Remarks 1.16 and 1.17.
    """
    from scipy.linalg import qr

    b, c = finite_array("B", B, ndim=2), finite_array("C", C, ndim=2)
    n, r = b.shape
    if c.shape != (r, n) or r < n:
        raise ValueError(f"B has shape {b.shape} and C {c.shape}; they must be (n, r) and (r, n), r >= n.")
    workload = b @ c
    largest = float(np.abs(workload).max())
    above = float(np.abs(np.triu(workload, 1)).max())
    if above > ZERO * largest:
        raise ValueError(
            f"B C has an entry {above} above its diagonal; the workload must be lower-triangular: a release"
            " cannot use later gradients."
        )
    diagonal = workload.diagonal()
    if np.abs(diagonal).min() <= ZERO * largest:
        t = int(np.abs(diagonal).argmin())
        raise ValueError(
            f"(B C)[{t}, {t}]={diagonal[t]} must not be 0: step {t} would have no noise of its own."
        )
    q, lower = qr(b.T, mode="economic")  # B = lower^T q^T
    size = np.abs(lower.diagonal())
    if size.min() <= ZERO * size.max():
        raise ValueError("B has dependent rows: releases would be linear combinations of earlier ones.")
    signs = np.sign(lower.diagonal()) * np.sign(diagonal)
    return Dense(np.tril((signs[:, None] * q.T) @ c))
