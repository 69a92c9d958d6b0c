"""The Gram matrix of bins for long runs of exponentially fading columns, without its n diagonals.

For c_t = sum_a w_a l_a^(t-1), c_0 = 1, and columns p < q of C = T diag(s),

    <C_p, C_q> = s_p s_q sum_a w_a l_a^(q-p-1) (1 + l_a g_a(q)),   g_a(q) = sum_{0 < m < n-q} l_a^(m-1) c_m.

Summed over the columns of two bins, the part of q is a vector and that of p a geometric sum over the passes:
O(b^2 passes) in all, of terms of one sign where C has no negative entry.
"""

from __future__ import annotations

from functools import singledispatch

import numpy as np

from anechoic._validate import Array
from anechoic.strategies import BLT
from anechoic.strategies.base import Strategy
from anechoic.strategies.column_scaled import ColumnScaled


@singledispatch
def folded_gram(strategy: Strategy, bins: int, scales: Array | float = 1.0) -> Array | None:
    """Scalar products of the sums of columns i, i + bins, … of C diag(scales); None for other classes.

    Args:
        strategy: C, n steps.
        bins: b, >= 1.
        scales: shape (n,), or one for all.
    """
    return None


@folded_gram.register
def _(strategy: ColumnScaled, bins: int, scales: Array | float = 1.0) -> Array | None:
    return folded_gram(strategy.base, bins, scales * np.asarray(strategy.scales))


@folded_gram.register
def _(strategy: BLT, bins: int, scales: Array | float = 1.0) -> Array:
    n, passes = strategy.n, -(-strategy.n // bins)

    def by_passes(x: Array) -> Array:
        return np.pad(x, (0, passes * bins - n)).reshape(passes, bins)

    s = np.broadcast_to(np.asarray(scales, dtype=np.float64), (n,))
    firsts = by_passes(s)
    lags = (np.arange(bins)[None, :] - np.arange(bins)[:, None]).astype(np.float64)  # of column j after i
    ahead = lags > 0
    half = np.zeros((bins, bins))  # of pairs p < q
    own = np.square(firsts).sum(axis=0)  # of pairs p = q
    for scale, decay in zip(np.asarray(strategy.scale), np.asarray(strategy.decay), strict=True):
        fading = decay ** np.arange(n - 1.0) * strategy.coefficients[1:]
        rest = np.concatenate([[0.0], np.cumsum(fading)])[::-1]
        lasts = by_passes(scale * s * (1.0 + decay * rest))
        sums = np.zeros((passes, bins))  # of the columns of a bin up to each pass, as they have faded
        for place in range(passes):
            sums[place] = firsts[place] + (decay**bins * sums[place - 1] if place else 0.0)
        before = np.concatenate([np.zeros((1, bins)), sums[:-1]])
        half += np.where(ahead, sums.T @ lasts, before.T @ lasts) * decay ** (
            np.where(ahead, lags, lags + bins) - 1
        )
        own += (firsts * by_passes(scale * s * rest)).sum(axis=0)
    return np.asarray(half + half.T + np.diag(own))
