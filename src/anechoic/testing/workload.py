"""The contract of a workload: A against dense algebra, its flags, leading blocks and files."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np

from anechoic.losses.dispatch import error
from anechoic.strategies import BandedToeplitz, Identity
from anechoic.strategies.base import Strategy
from anechoic.testing._compare import (
    ZERO,
    Contract,
    check_no_blocks,
    check_refused,
    close,
    require,
    rule,
)
from anechoic.workloads.base import Workload


def check_triangle(workload: Workload) -> None:
    """A is n x n, float64, finite, zero above the diagonal and positive on it; it is a copy."""
    n, dense = workload.n, workload.to_dense()
    require(workload, dense.shape == (n, n), f"to_dense() has shape {dense.shape}, not ({n}, {n})")
    require(workload, dense.dtype == np.float64, f"to_dense() is {dense.dtype}, not float64")
    require(workload, bool(np.isfinite(dense).all()), "to_dense() has entries that are not finite")
    require(workload, not np.triu(dense, 1).any(), "to_dense() has entries above the diagonal")
    require(workload, bool((dense.diagonal() > 0).all()), "the diagonal of A is not positive")
    before = dense.copy()
    dense[:] = np.nan
    require(workload, bool((workload.to_dense() == before).all()), "to_dense() gave away its own storage")


def check_products(workload: Workload, seed: int = 0) -> None:
    """multiply, solve and adjoint_multiply on one to three axes; arguments of another length are refused."""
    n, dense, rng = workload.n, workload.to_dense(), np.random.default_rng(seed)
    inverse = np.linalg.inv(dense)
    for axes in ((), (3,), (2, 2)):
        x = rng.standard_normal((n, *axes))
        kept = x.copy()
        found = workload.multiply(x), workload.adjoint_multiply(x), workload.solve(x)
        require(workload, bool((x == kept).all()), "multiply, solve or adjoint_multiply changed its argument")
        names = "multiply(x) = A x", "adjoint_multiply(x) = A^T x", "solve(x) = A^-1 x"
        for name, product, matrix in zip(names, found, (dense, dense.T, inverse), strict=True):
            scale = float(np.tensordot(np.abs(matrix), np.abs(x), axes=1).max())
            rule = f"{name}, shape {x.shape}"
            close(workload, product, np.tensordot(matrix, x, axes=1), rule, scale=scale)
    longer = np.zeros((n + 1, 2))
    products = "multiply", "solve", "adjoint_multiply"
    wrong = [(f"{name} of {n + 1} rows", partial(getattr(workload, name), longer)) for name in products]
    check_refused(workload, wrong)


def check_factor(workload: Workload) -> None:
    """A = T D with what `coefficients`, `fraction`, `inverse_coefficients` and `rates` say; and the flags."""
    n, dense = workload.n, workload.to_dense()
    lag = np.subtract.outer(np.arange(n), np.arange(n))
    ones = bool(np.allclose(dense, lag >= 0, rtol=0, atol=ZERO))
    require(workload, not workload.is_prefix_sum or ones, "is_prefix_sum but A is not all ones")
    plain = workload.has_toeplitz_factor and workload.rates is None
    require(workload, workload.is_toeplitz == plain, "is_toeplitz is not `T D` with D = I")
    if not workload.has_toeplitz_factor:
        return
    column, rates = workload.coefficients, workload.rates
    require(workload, column.shape == (n,), f"coefficients has shape {column.shape}, not ({n},)")
    factor = np.where(lag >= 0, column[np.maximum(lag, 0)], 0.0)
    scaled = factor if rates is None else factor * rates
    close(workload, dense, scaled, "A[i, j] = coefficients[i - j] rates[j]")
    above, below = workload.fraction
    require(workload, max(len(above), len(below)) <= n, "fraction has a polynomial of more than n entries")
    product = np.convolve(below, column)[:n]
    scale = float(np.convolve(np.abs(below), np.abs(column))[:n].max())
    expected = np.pad(above, (0, n - len(above)))
    close(workload, product, expected, "fraction: q(x) T(x) = p(x)", scale=scale)
    inverse = workload.inverse_coefficients
    product = np.convolve(inverse, column)[:n]
    scale = float(np.convolve(np.abs(inverse), np.abs(column))[:n].max())
    unit = (np.arange(n) == 0).astype(np.float64)
    close(workload, product, unit, "inverse_coefficients times coefficients is 1", scale=scale)


def check_blocks(workload: Workload) -> None:
    """truncate(t) is the leading block; lengths that do not exist are refused."""
    n, dense = workload.n, workload.to_dense()
    for steps in {1, max(1, n // 2), max(1, n - 1), n}:
        block = workload.truncate(steps)
        require(workload, block.n == steps, f"truncate({steps}) has n={block.n}")
        close(workload, block.to_dense(), dense[:steps, :steps], f"truncate({steps}) = leading block")
        check_factor(block)
    check_no_blocks(workload, n)


def check_errors(workload: Workload) -> None:
    """`error` under independent and under correlated noise, against row norms of the dense A C^-1."""
    n = workload.n
    strategies: list[Strategy] = [Identity(n), BandedToeplitz(n, [1.0, 0.5][:n])]
    for strategy in strategies:
        rows = np.sqrt(np.square(workload.to_dense() @ strategy.correlate(np.eye(n))).sum(axis=1))
        found = error(workload, strategy)
        name = f"error under {strategy.describe()}"
        close(workload, found.per_step, rows, f"{name}, per step")
        close(workload, found.rms, np.sqrt(np.square(rows).mean()), f"{name}, RMS")
        close(workload, found.max, rows.max(), f"{name}, max")


class WorkloadContract(Contract[Workload]):
    """Tests of a workload class, for pytest: inherit it in a class named Test…, and give `workloads`.

    Give at least n = 1, an odd n, and one of every kind that your constructor can make.

    Attributes:
        serialized: whether workloads must survive a round trip through JSON.
        seed: of the random vectors compared.
    """

    gives = "workloads"

    def workloads(self) -> Iterable[Workload]:
        """The workloads to test, small enough for dense algebra."""
        raise NotImplementedError("give workloads(): the workloads to test, n = 1 and an odd n among them.")

    test_the_matrix_is_lower_triangular_with_a_positive_diagonal = rule(check_triangle)
    test_products_agree_with_dense_algebra = rule(check_products, "seed")
    test_the_toeplitz_factor_is_one = rule(check_factor)
    test_truncate_is_the_workload_of_the_first_steps = rule(check_blocks)
    test_errors_agree_with_dense_algebra = rule(check_errors)
