"""The contract of the matrix: C and its left inverse against dense algebra, flags, norms, blocks, files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import numpy as np

from anechoic._validate import Array
from anechoic.strategies.base import Strategy
from anechoic.testing._compare import (
    ROUNDING,
    ZERO,
    check_no_blocks,
    check_refused,
    close,
    require,
)


def is_square(strategy: Strategy) -> bool:
    """Whether C is n x n, so that its left inverse is its inverse."""
    return strategy.rows == strategy.n


def solver(strategy: Strategy) -> Callable[[Any], Array]:
    """`solve` of a square strategy that has it, otherwise `correlate`."""
    return getattr(strategy, "solve", strategy.correlate) if is_square(strategy) else strategy.correlate


def lower_triangular(strategy: Strategy) -> Array:
    """The square matrix with the noise of a rectangular strategy: R^-1 with R R^T = L L^T."""
    left = strategy.correlate(np.eye(strategy.rows))
    return np.asarray(np.tril(np.linalg.inv(np.linalg.cholesky(left @ left.T))))


def check_dense(strategy: Strategy) -> None:
    """C is (rows, n) and finite, `multiply` agrees with it, and `correlate` is a left inverse.

    A square C is lower-triangular with positive diagonal (of another one take an LQ); a rectangular one has
    more rows than columns.
    """
    n, rows, dense = strategy.n, strategy.rows, strategy.to_dense()
    require(strategy, dense.shape == (rows, n), f"to_dense() has shape {dense.shape}, not ({rows}, {n})")
    require(strategy, dense.dtype == np.float64, f"to_dense() is {dense.dtype}, not float64")
    require(strategy, bool(np.isfinite(dense).all()), "to_dense() has entries that are not finite")
    require(strategy, rows >= n, f"C has {rows} rows, fewer than its {n} columns: it has no left inverse")
    if is_square(strategy):
        require(strategy, not np.triu(dense, 1).any(), "to_dense() has entries above the diagonal")
        require(strategy, bool((dense.diagonal() > 0).all()), "the diagonal of C is not positive")
    close(strategy, strategy.multiply(np.eye(n)), dense, "multiply(identity) = to_dense()")
    left = strategy.correlate(np.eye(rows))
    require(strategy, left.shape == (n, rows), f"correlate(identity) has shape {left.shape}, not {(n, rows)}")
    scale = float((np.abs(left) @ np.abs(dense)).max())
    rule = "solve(to_dense()) = identity" if is_square(strategy) else "correlate(to_dense()) = identity"
    close(strategy, left @ dense, np.eye(n), rule, scale=scale)
    dense[...] = np.nan  # what is handed out is a copy
    require(strategy, bool(np.isfinite(strategy.to_dense()).all()), "to_dense() hands out its own storage")


def check_algebra(strategy: Strategy, seed: int = 0) -> None:
    """multiply, solve and correlate = dense products, on one to three axes; <y, C x> = <C^T y, x>."""
    n, rows, dense, rng = strategy.n, strategy.rows, strategy.to_dense(), np.random.default_rng(seed)
    solve, name = solver(strategy), "solve" if hasattr(strategy, "solve") else "correlate"
    left = strategy.correlate(np.eye(rows))
    for axes in ((), (3,), (2, 2)):
        shape = (n, *axes)
        x, z = rng.standard_normal(shape), rng.standard_normal((rows, *axes))
        kept_x, kept_z = x.copy(), z.copy()
        product = strategy.multiply(x)
        close(strategy, product, np.tensordot(dense, x, axes=1), f"multiply(x) = C x for x of shape {shape}")
        scale = float((np.abs(left) @ np.abs(dense)).max() * np.abs(x).max())
        close(strategy, solve(product), x, f"{name}(multiply(x)) = x, shape {shape}", scale=scale)
        solved = solve(z)
        scale = float(np.tensordot(np.abs(left), np.abs(z), axes=1).max())
        close(strategy, solved, np.tensordot(left, z, axes=1), f"{name}(z) = L z, shape {shape}", scale=scale)
        if is_square(strategy):
            scale = float(np.tensordot(np.abs(dense), np.abs(solved), axes=1).max())
            again = np.tensordot(dense, solved, axes=1)
            close(strategy, again, z, f"C {name}(z) = z, shape {shape}", scale=scale)
            close(strategy, strategy.multiply(solved), z, f"multiply({name}(z)) = z, {shape}", scale=scale)
        unchanged = bool((x == kept_x).all() and (z == kept_z).all())
        require(strategy, unchanged, f"multiply or {name} changed its argument")
        a, b = (z * product).sum(), (np.tensordot(dense.T, z, axes=1) * x).sum()
        close(strategy, a, b, "<y, C x> = <C^T y, x>", scale=np.abs(z).sum() * np.abs(product).max())


def check_structure(strategy: Strategy) -> None:
    """Each flag of `structure` is true of the dense matrix; theorems are chosen by nothing else.

    `bands` of a rectangular C is said of the lower-triangular matrix that has its noise.
    """
    n, dense, structure = strategy.n, strategy.to_dense(), strategy.structure
    gram = dense.T @ dense
    lag = np.subtract.outer(np.arange(n), np.arange(n))
    tiny = ZERO * np.abs(dense).max()

    bands, gram_bands = structure.bands, structure.gram_bands
    rule = f"1 <= gram_bands={gram_bands} <= bands={bands} <= n={n}"
    require(strategy, 1 <= gram_bands <= bands <= n, rule)
    square = dense if is_square(strategy) else lower_triangular(strategy)
    outside = float(np.abs(square[lag >= bands]).max(initial=0.0))
    allowed = tiny if is_square(strategy) else ROUNDING * np.abs(square).max()
    require(strategy, outside <= allowed, f"bands={bands} but C has {outside} at a lag >= {bands}")
    outside = float(np.abs(gram[np.abs(lag) >= gram_bands]).max(initial=0.0))
    rule = f"gram_bands={gram_bands} but C^T C has {outside} at a lag >= {gram_bands}"
    require(strategy, outside <= ZERO * gram.max(), rule)
    if structure.nonnegative:
        require(strategy, float(dense.min()) >= -tiny, f"nonnegative but C has an entry {dense.min()}")
    if structure.toeplitz:
        require(strategy, is_square(strategy), "toeplitz but C is not square")
        column = strategy.coefficients
        require(strategy, column.shape == (n,), f"coefficients has shape {column.shape}, not ({n},)")
        expected = np.where(lag >= 0, column[np.maximum(lag, 0)], 0.0)
        close(strategy, dense, expected, "toeplitz: C[i, j] = coefficients[i - j]")
    if structure.nonincreasing:
        both = structure.toeplitz and structure.nonnegative
        require(strategy, both, "nonincreasing without toeplitz, nonnegative")
        rise = float(np.diff(dense[:, 0]).max(initial=0.0))
        require(strategy, rise <= tiny, f"nonincreasing but the coefficients rise by {rise}")


def check_norms(strategy: Strategy) -> None:
    """Column norms, the largest of them, and the norms of all combs of columns."""
    n, dense = strategy.n, strategy.to_dense()
    norms = np.square(dense).sum(axis=0)
    close(strategy, strategy.column_norms_squared(), norms, "column_norms_squared()")
    close(strategy, strategy.largest_column_norm(), np.sqrt(norms.max()), "largest_column_norm()")
    for separation in {1, 2, 3, max(1, n // 2), n, n + 2}:
        most = -(-n // separation)
        for count in {1, min(2, most), most}:
            comb = dense[:, : (count - 1) * separation + 1 : separation].sum(axis=1)
            found = strategy.comb_norm_squared(separation, count)
            close(strategy, found, comb @ comb, f"comb_norm_squared({separation}, {count})")


def check_truncate(strategy: Strategy, seed: int = 0) -> None:
    """truncate(t) makes the first t rows of noise, and is a strategy in its own right.

    Of a square C it is the leading t x t block. Of a rectangular one it may have fewer rows; its injected
    noise has the leading block of the covariance L L^T.
    """
    n, dense = strategy.n, strategy.to_dense()
    z = np.random.default_rng(seed).standard_normal((strategy.rows, 2))
    rows = solver(strategy)(z)
    left = strategy.correlate(np.eye(strategy.rows))
    for steps in {1, max(1, n // 2), max(1, n - 1), n}:
        block = strategy.truncate(steps)
        require(strategy, block.n == steps, f"truncate({steps}) has n={block.n}")
        if is_square(strategy):
            close(strategy, block.to_dense(), dense[:steps, :steps], f"truncate({steps}) = leading block")
            found, rule = solver(block)(z[:steps]), f"truncate({steps}).solve = leading rows"
            close(strategy, found, rows[:steps], rule)
        else:
            check_dense(block)
            part = block.correlate(np.eye(block.rows))
            covariance = left[:steps] @ left[:steps].T
            close(strategy, part @ part.T, covariance, f"truncate({steps}): leading block of L L^T")
        check_structure(block)
        check_norms(block)


def check_varied(strategies: list[Strategy]) -> None:
    """Each parameter of a class takes another value than its default in one of the strategies."""
    for kind in {type(strategy) for strategy in strategies}:
        own = [strategy for strategy in strategies if type(strategy) is kind]
        for parameter in fields(kind) if is_dataclass(kind) else ():
            default = parameter.default
            if not parameter.init or default is MISSING or default is None or parameter.name == "n":
                continue
            same = all(np.array_equal(getattr(strategy, parameter.name), default) for strategy in own)
            rule = f"{parameter.name} is {default!r} in all strategies of the contract: give others, too"
            require(own[0], not same, rule)


def check_refusals(strategy: Strategy) -> None:
    """Arguments of the wrong length, and blocks that do not exist, are refused with ValueError."""
    n, rows, solve = strategy.n, strategy.rows, solver(strategy)
    wrong: list[tuple[str, Callable[[], object]]] = [
        (f"multiply of {n + 1} rows", lambda: strategy.multiply(np.zeros(n + 1))),
        (f"solve or correlate of {rows + 1} rows", lambda: solve(np.zeros((rows + 1, 2)))),
        ("multiply of a scalar", lambda: strategy.multiply(0.0)),
    ]
    check_refused(strategy, wrong)
    check_no_blocks(strategy, n)
