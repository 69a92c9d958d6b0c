"""The Gram matrix M = C^T C by its diagonals, without an n x n array wherever C has structure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch

import numpy as np

from anechoic._validate import Array
from anechoic.strategies import Banded, FullTree, Restarted, Tree
from anechoic.strategies.banded import columns_of
from anechoic.strategies.base import Strategy, warn_dense
from anechoic.strategies.column_scaled import ColumnScaled
from anechoic.strategies.tree_aggregation import TreeAggregation

ENTRIES = 60_000_000  # numbers in the largest array made here (480 MB): dense up to n = 7745
ROUNDING = 1e-12  # entries this small against the largest one are zeros that were computed


@dataclass(frozen=True)
class Gram:
    """M for one strategy.

    Attributes:
        n: steps.
        bandwidth: M vanishes at lags >= bandwidth.
        diagonal: lag -> the entries M[t, t + lag], shape (n - lag,).
    """

    n: int
    bandwidth: int
    diagonal: Callable[[int], Array]

    @property
    def fits_band(self) -> bool:
        """Whether `band` may be asked for."""
        return self.n * self.bandwidth <= ENTRIES

    def band(self) -> Array:
        """|M[t, t + lag]| as array[lag, t], shape (bandwidth, n), zero where t + lag >= n."""
        if self.bandwidth == self.n:
            warn_dense(self.n, "this sensitivity bound")
        array = np.zeros((self.bandwidth, self.n))
        for lag in range(self.bandwidth):
            np.abs(self.diagonal(lag), out=array[lag, : self.n - lag])
        return array

    def block(self, steps: range) -> Array:
        """M at equally spaced steps, shape (k, k)."""
        k = len(steps)
        block = np.zeros((k, k))
        for j in range(k):
            lag = j * steps.step
            if lag >= self.bandwidth:
                break
            entries = self.diagonal(lag)[steps.start :: steps.step][: k - j]
            rows = np.arange(k - j)
            block[rows, rows + j] = entries
            block[rows + j, rows] = entries
        return block


def gram_of(strategy: Strategy) -> Gram | None:
    """M for `strategy`, or None where it is too large to be had by any structure known here."""
    n, structure = strategy.n, strategy.structure
    if n > ENTRIES:
        return None
    known = gram_of_class(strategy)
    if known is not None:
        return known
    if structure.toeplitz:
        return Gram(n, structure.gram_bands, _toeplitz_diagonal(strategy.coefficients[: structure.bands], n))
    if strategy.rows == n and n * structure.bands <= ENTRIES and 8 * structure.bands <= n:
        return Gram(n, structure.gram_bands, _banded_diagonal(columns_of(strategy)))
    if n * n <= ENTRIES:
        warn_dense(n, "this sensitivity bound")
        dense = strategy.to_dense()
        matrix = dense.T @ dense
        return Gram(n, structure.gram_bands, lambda lag: np.asarray(matrix.diagonal(lag)))
    return None


@singledispatch
def gram_of_class(strategy: Strategy) -> Gram | None:
    """M for strategies that know more of it than their structure says, for speed; None for others."""
    return None


@gram_of_class.register(Tree)
@gram_of_class.register(FullTree)
@gram_of_class.register(TreeAggregation)
def _(strategy: Tree | FullTree | TreeAggregation) -> Gram:  # nodes in common are counted
    return Gram(strategy.n, strategy.structure.gram_bands, strategy.gram_diagonal)


@gram_of_class.register
def _(strategy: Banded) -> Gram | None:
    if strategy.n * strategy.structure.bands > ENTRIES:
        return None
    return Gram(strategy.n, strategy.structure.gram_bands, _banded_diagonal(columns_of(strategy)))


@gram_of_class.register
def _(strategy: ColumnScaled) -> Gram | None:
    inner = gram_of(strategy.base)
    if inner is None:
        return None
    n = strategy.n
    d = np.asarray(strategy.scales, dtype=np.float64)
    return Gram(n, strategy.structure.gram_bands, lambda lag: inner.diagonal(lag) * d[: n - lag] * d[lag:])


@gram_of_class.register
def _(strategy: Restarted) -> Gram | None:
    length = strategy.base.n
    last = strategy.n - (strategy.times - 1) * length
    whole, rest = gram_of(strategy.base), gram_of(strategy.base.truncate(last))
    if whole is None or rest is None:
        return None

    def diagonal(lag: int) -> Array:
        def padded(block: Gram) -> Array:
            return np.pad(block.diagonal(lag), (0, lag)) if lag < block.n else np.zeros(block.n)

        blocks = np.concatenate([np.tile(padded(whole), strategy.times - 1), padded(rest)])
        return blocks[: strategy.n - lag]

    return Gram(strategy.n, strategy.structure.gram_bands, diagonal)


def _toeplitz_diagonal(c: Array, n: int) -> Callable[[int], Array]:
    def diagonal(lag: int) -> Array:
        if lag >= len(c):
            return np.zeros(n - lag)
        # M[t, t + lag] = sum of c_u c_{u+lag} over u < n - t - lag: partial sums, read backwards
        sums = np.cumsum(c[: len(c) - lag] * c[lag:])
        return np.concatenate([np.full(n - lag - len(sums), sums[-1]), sums[::-1]])

    return diagonal


def _banded_diagonal(columns: Array) -> Callable[[int], Array]:
    n, bands = columns.shape

    def diagonal(lag: int) -> Array:
        if lag >= bands:
            return np.zeros(n - lag)
        products = columns[: n - lag, lag:] * columns[lag:, : bands - lag]
        return np.asarray(products.sum(axis=1))

    return diagonal
