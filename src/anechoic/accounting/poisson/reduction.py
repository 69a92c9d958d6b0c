"""From a strategy C and g groups to pairs that dominate a run with (cyclic) Poisson sampling.

An example of group r may take part in steps r, r + g, …, each independently with probability q. Let C_r hold
these columns. docs/proofs/conditional-composition.md proves two ways on:

* The spectral norm. For s >= ||C_r||, the noise of std v has the law of C_r (v / s) Z' + W, since
  v^2 (I - C_r C_r^T / s^2) is positive semidefinite. A run is thus post-processing of independent noise of
  std v / s, added to the contribution of one step after the other. Signs do not matter, nor does adjacency.
  With at most g bands the columns of C_r are orthogonal: Theorem 3.21.
* Independent draws (`accounting.poisson.conditional`), for C >= 0. Only the inner products of columns matter
  there, and larger ones are never harder to tell apart. Rows are cut into blocks that begin where a column of
  C_r does; E_kl is the norm of column l in block k, and <E_k, E_l> is at least the inner product.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from anechoic._validate import Array
from anechoic.accounting.poisson.conditional import (
    MOST_COEFFICIENTS,
    MOST_STEPS,
    HistoryChain,
    dense_chain,
    toeplitz_chain,
)
from anechoic.errors import UnsupportedError
from anechoic.strategies.base import Strategy

MOST_DENSE = 4096  # steps of a matrix that is held as a whole

_ITERATIONS = 300
_PATIENCE = 20  # iterations in which the bound must fall by one part in 10^4
_ROUNDING = 1e-10


def spectral_bound(strategy: Strategy, groups: int) -> float:
    """At least max_r ||C_r||, from above: by Collatz and Wielandt, max_j (M u)_j / u_j, M = |C_r|^T |C_r|.

    Every u > 0 gives a bound; power iteration finds a good one.

    Args:
        strategy: square; entries of any sign.
        groups: g >= 1.

    Raises:
        UnsupportedError: for a strategy that is not Toeplitz and too large to be held.
    """
    n = strategy.n
    if strategy.structure.toeplitz:
        c = np.abs(strategy.coefficients[: strategy.structure.bands])
        if n > MOST_DENSE:  # u = 1, far from the last step
            phases = np.pad(c, (0, -len(c) % groups)).reshape(-1, groups).sum(axis=0)
            return float(np.linalg.norm(phases)) * (1 + _ROUNDING)
        return _toeplitz_norm(c, n, groups) * (1 + _ROUNDING)
    dense = np.abs(held(strategy))
    norms = [_norm(dense[:, first::groups]) for first in range(min(groups, n))]
    return max(norms) * (1 + _ROUNDING)


def chain_of(strategy: Strategy, groups: int, rate: float) -> HistoryChain | None:
    """Independent draws that dominate every group; None where their matrix would be too large.

    Args:
        strategy: square, entrywise non-negative.
        groups: g >= 1.
        rate: q in (0, 1).

    Raises:
        UnsupportedError: for a strategy that is not Toeplitz and too large to be held.
    """
    size = -(-strategy.n // groups)
    if strategy.structure.toeplitz:
        c = strategy.coefficients[: strategy.structure.bands]
    else:
        dense = held(strategy)
        if size <= MOST_STEPS:
            return dense_chain(group_matrix(dense, groups), rate)
        # larger entries are never harder to tell apart: the least Toeplitz matrix above C
        c = np.array([dense.diagonal(-lag).max() for lag in range(strategy.structure.bands)])
    blocks = np.linalg.norm(np.pad(c, (0, -len(c) % groups)).reshape(-1, groups), axis=1)
    return toeplitz_chain(blocks, size, rate) if len(blocks) <= MOST_COEFFICIENTS else None


def group_matrix(dense: Array, groups: int) -> Array:
    """E that dominates every group: entry by entry the largest norm of a column in a block.

    Args:
        dense: C >= 0, shape (n, n), lower-triangular with positive diagonal.
        groups: g >= 1.
    """
    n = len(dense)
    worst = np.zeros((-(-n // groups), -(-n // groups)))
    for first in range(min(groups, n)):
        starts = np.arange(first, n, groups)
        norms = np.sqrt(np.add.reduceat(np.square(dense[:, starts]), starts, axis=0))
        here = worst[: len(starts), : len(starts)]
        np.maximum(here, norms, out=here)
    return worst


def _norm(matrix: Array) -> float:
    """An upper bound on the spectral norm of a non-negative matrix, close to it."""
    return _collatz_wielandt(lambda u: np.asarray(matrix.T @ (matrix @ u)), matrix.shape[1])


def _toeplitz_norm(c: Array, n: int, groups: int) -> float:
    # the columns of another group are those of group 0 in fewer rows
    spread = np.zeros(n)

    def gram(u: Array) -> Array:
        spread[::groups] = u
        image = np.convolve(spread, c)[:n]
        return np.asarray(np.convolve(image[::-1], c)[:n][::-1][::groups])

    return _collatz_wielandt(gram, -(-n // groups))


def _collatz_wielandt(gram: Callable[[Array], Array], size: int) -> float:
    u, best, since = np.ones(size), math.inf, 0
    for _ in range(_ITERATIONS):
        image = gram(u)
        bound = float((image / u).max())
        since = 0 if bound < best * (1 - 1e-4) else since + 1
        best = min(best, bound)
        if since >= _PATIENCE:
            break
        # a part of u stays, so that no entry vanishes
        u = image / image.max() + 1e-3 * u
    return math.sqrt(best)


def held(strategy: Strategy) -> Array:
    if strategy.n > MOST_DENSE:
        raise UnsupportedError(
            f"n={strategy.n}: a strategy that is not Toeplitz is held as a whole to be accounted with more"
            f" bands than groups, up to n={MOST_DENSE}. Take a Toeplitz strategy, or at most as many bands as"
            " groups."
        )
    return strategy.to_dense()
