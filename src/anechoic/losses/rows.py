"""Rows of decoders B that are not Toeplitz but nearly so, and differences of the rows between restarts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np
from scipy import fft

from anechoic._validate import Array

# Entries of the array in which periods are correlated at once.
CHUNK = 2**20


def scaled_rows(
    b: Array, inverse: Array, gains: Array, numerator: Array, denominator: Array, first: int
) -> Iterator[Array]:
    """Rows first, …, n-1 of B = T diag(gains) K, row t with t + 1 entries: latest column last.

    T has the series numerator / denominator and K is Toeplitz with first column `inverse`, so that each row
    follows from the len(denominator) - 1 rows before it. Rows before `first` are those of the Toeplitz matrix
    with first column `b`.
    """
    n = len(inverse)
    backwards = inverse[::-1].copy()
    lags = np.flatnonzero(numerator)
    kept = len(denominator) - 1
    earlier = deque((b[t::-1] for t in range(first - 1, -1, -1)[:kept]), maxlen=kept)  # latest first
    for t in range(first, n):
        row = numerator[0] * gains[t] * backwards[n - 1 - t :]
        for lag in lags[1:]:
            if lag <= t:
                row[: t + 1 - lag] += numerator[lag] * gains[t - lag] * backwards[n - 1 - t + lag :]
        for weight, before in zip(denominator[1:], earlier, strict=False):
            row[: len(before)] -= weight * before
        row /= denominator[0]
        earlier.appendleft(row)
        yield row


def restart_squares_of_rows(rows: Iterable[Array], n: int, period: int) -> Array:
    """Squared norms of the rows of Lambda B, shape (n,), from the rows 0, …, n-1 of B in order."""
    squares = np.empty(n)
    end = np.empty(0)
    for t, row in enumerate(rows):
        relative = row.copy()
        relative[: len(end)] -= end
        is_end = (t + 1) % period == 0
        squares[t] = relative @ relative / (1 if is_end else period)
        if is_end:
            end = row
    return squares


def restart_squares(b: Array, period: int) -> Array:
    """Squared norms of the rows of Lambda B, shape (n,), for Toeplitz B with first column b: O(n log n).

    Row s of a period whose predecessor ended with row e (from 1) holds b_{i+s} - b_i for i < e, and
    b_0, …, b_{s-1}. So every finished period adds, for each s, the sum of its squared differences at lag s,
    which is one correlation. Differences do not change when a constant is taken off, and the mean of what is
    correlated is, so that little cancels.
    """
    n = len(b)
    length = min(period, n)
    count = -(-n // length)
    padded = np.pad(
        b, (0, (count + 1) * length - n), mode="edge"
    )  # what is added reaches no row that is kept
    squares = np.zeros((count, length))
    squares[:] = np.cumsum(np.square(padded[:length]))
    size = fft.next_fast_len(2 * length, real=True)
    at_once = max(1, CHUNK // size)
    total = np.zeros(length)
    for start in range(0, count - 1, at_once):
        stop = min(start + at_once, count - 1)
        pairs = np.lib.stride_tricks.sliding_window_view(padded, 2 * length)[
            start * length : stop * length : length
        ]
        pairs = pairs - pairs.mean(axis=1, keepdims=True)
        sums = np.cumsum(np.square(pairs), axis=1)
        own = sums[:, length - 1 : length]
        later = sums[:, length:] - sums[:, :length]  # at lags 1, …, length
        spectrum = fft.rfft(pairs, size, axis=1) * np.conj(fft.rfft(pairs[:, :length], size, axis=1))
        products = fft.irfft(spectrum, size, axis=1)[:, 1 : length + 1]
        added = np.cumsum(np.maximum(own + later - 2.0 * products, 0.0), axis=0) + total
        squares[start + 1 : stop + 1] += added
        total = added[-1]
    flat = squares.reshape(-1)[:n] / period
    flat[period - 1 :: period] *= period
    return flat
