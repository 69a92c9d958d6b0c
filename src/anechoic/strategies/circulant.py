"""The factorisation by a circulant matrix, which reaches Mathias's upper bound for prefix sums."""

from __future__ import annotations

import numpy as np

from anechoic._validate import Array
from anechoic.strategies.base import warn_dense
from anechoic.strategies.dense import Dense
from anechoic.strategies.factorized import from_factorization
from anechoic.workloads.base import Workload, checked_workload


def circulant_root(workload: Workload) -> Dense:
    """The strategy of the square root of a circulant matrix that holds the Toeplitz workload A.

    A is the leading block of the 2n x 2n circulant matrix M with first column (a_0, …, a_{n-1}, 0, …, 0).
    With M = F* diag(l) F, take C as the first n columns of F* diag(|l|^(1/2)) F, and B as the first n rows of
    F* diag(l / |l|^(1/2)) F. Then B C = A, and all columns of C and all rows of B have the norm (mean of
    |l|)^(1/2): every step has the same error, and the max loss is the mean of |l|, for prefix sums
    `lower_bounds.prefix_sums.mathias_upper_bound(n)`.

    The result is the lower-triangular strategy with this noise (`from_factorization`); its sensitivity is
    that of C or smaller. Its stream keeps all earlier rows.

    Args:
        workload: A, Toeplitz with a_0 > 0; n up to a few thousand, as 2n x n arrays are made.

    Raises:
        ValueError: if the workload is not Toeplitz.

    References:
        Henzinger and Upadhyay, Improved differentially private continual observation using group algebra,
        SODA 2025; Mathias (1993), Corollary 3.5; monograph, Section 2.12.
    """
    return from_factorization(*circulant_factors(workload))


def circulant_factors(workload: Workload) -> tuple[Array, Array]:
    """B of shape (n, 2n) and C of shape (2n, n) of `circulant_root`, before they are made triangular."""
    checked_workload(workload)
    if not workload.is_toeplitz:
        raise ValueError(f"workload={workload!r} must be Toeplitz: no other matrix is part of a circulant.")
    n = workload.n
    warn_dense(2 * n, "circulant_root")
    values = np.fft.fft(np.concatenate([workload.coefficients, np.zeros(n)]))
    sizes = np.sqrt(np.abs(values))
    phases = np.divide(values, sizes, out=np.zeros_like(values), where=sizes > 1e-9 * sizes.max())
    lag = np.subtract.outer(np.arange(2 * n), np.arange(2 * n)) % (2 * n)
    root = np.real(np.fft.ifft(sizes))[lag[:, :n]]
    decoder = np.real(np.fft.ifft(phases))[lag[:n]]
    return decoder, root
