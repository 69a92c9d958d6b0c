"""Patterns in which only neighbouring participations interact: exact for any signs, by dynamic programming.

The Gram matrix of such a pattern is tridiagonal. Choosing the sign of one row after the other makes every
product non-negative, so the bound of Lemma 3.15(a), sum |M[t, t']|, is attained already at dimension 1.
"""

from __future__ import annotations

import numpy as np

from anechoic._validate import Array
from anechoic.sensitivity.gram import Gram
from anechoic.sensitivity.scheduling import best_schedule

WORK = 3_000_000_000  # additions that a dynamic programme may take


def best_pair(gram: Gram, separation: int) -> float:
    """max of M[t, t] + M[t', t'] + 2 |M[t, t']| over t' - t >= separation: sens^2 for two participations."""
    norms = gram.diagonal(0)
    best = float(best_schedule(norms, max(separation, gram.bandwidth), 2))
    for lag in range(separation, gram.bandwidth):
        pairs = norms[: gram.n - lag] + norms[lag:] + 2 * np.abs(gram.diagonal(lag))
        best = max(best, float(pairs.max()))
    return best


def separated_chain_work(n: int, bandwidth: int, separation: int, count: int) -> int:
    """Additions taken by `best_separated_chain`."""
    levels = 1 if count >= -(-n // separation) else count
    return n * levels * max(1, bandwidth - separation)


def best_separated_chain(band: Array, separation: int, count: int) -> float:
    """max over min-sep patterns of sum_p M[t_p, t_p] + 2 sum_p |M[t_p, t_{p+1}]|.

    This is sens^2 where M vanishes at lags >= 2 separation: no two participations but neighbours interact.

    Args:
        band: |M[t, t + lag]| as array[lag, t], zero beyond its rows.
        separation: b >= 1.
        count: k >= 1.
    """
    width, n = band.shape
    unlimited = count >= -(-n // separation)
    apart = max(width, separation)  # from this lag on nothing interacts
    # best[l, t]: at most l + 1 participations, the last one at t; unlimited: any number
    best = np.zeros((1 if unlimited else count, n))
    reach = np.zeros((len(best), n + 1))  # reach[:, t]: largest best[:, s] over s < t
    for start in range(0, n, separation):  # the steps of one block depend on earlier blocks only
        stop = min(start + separation, n)
        before = reach[:, np.maximum(np.arange(start, stop) - apart + 1, 0)]
        for lag in range(separation, min(width, stop)):
            first = max(start, lag)
            earlier = slice(first - lag, stop - lag)
            later = before[:, first - start :]
            np.maximum(later, best[:, earlier] + 2 * band[lag, earlier], out=later)
        if not unlimited:
            before = np.concatenate([np.zeros((1, stop - start)), before[:-1]])
        best[:, start:stop] = band[0, start:stop] + before
        running = np.maximum.accumulate(best[:, start:stop], axis=1)
        reach[:, start + 1 : stop + 1] = np.maximum(running, reach[:, start : start + 1])
    return float(reach[-1, n])


def best_epoch_chain(band: Array, period: int) -> float:
    """max over one step an epoch of sum_e M[t_e, t_e] + 2 sum_e |M[t_e, t_{e+1}]|.

    This is sens^2 where M vanishes at lags > period, or in two epochs; then only adjacent epochs interact.

    Args:
        band: |M[t, t + lag]| as array[lag, t], zero beyond its rows.
        period: steps of an epoch; the last one may be cut short.
    """
    width, n = band.shape
    best = band[0, : min(period, n)]
    for start in range(period, n, period):
        earlier = np.arange(start - period, start)
        steps = np.arange(start, min(start + period, n))
        lags = steps[None, :] - earlier[:, None]
        coupling = np.where(lags < width, band[np.minimum(lags, width - 1), earlier[:, None]], 0.0)
        best = band[0, steps] + (best[:, None] + 2 * coupling).max(axis=0)
    return float(best.max())
