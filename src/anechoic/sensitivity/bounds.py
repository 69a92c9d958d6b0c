"""Upper bounds for minimum separation where no theorem is exact. The smallest is taken; all are proven.

Each starts from Lemma 3.15(a): sens^2 <= max_pi sum_{t, t' in pi} |M[t, t']| with M = C^T C.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from anechoic._validate import Array
from anechoic.sensitivity import comb, nodes
from anechoic.sensitivity.gram import ENTRIES, Gram, gram_of
from anechoic.sensitivity.result import Sensitivity
from anechoic.sensitivity.scheduling import best_schedule
from anechoic.strategies import ColumnScaled, FullTree, Restarted, Strategy, Tree, TreeAggregation

WORK = 3_000_000_000  # additions that one bound may take
CHUNK = 500_000  # numbers in one chunk of rows


def min_sep_bounds(
    strategy: Strategy, gram: Gram | None, separation: int, count: int
) -> Iterator[Sensitivity]:
    """The bounds that this strategy's structure and size allow; at least one."""
    from anechoic.sensitivity.min_sep import min_sep

    n, structure = strategy.n, strategy.structure
    yield _triangle(strategy, separation, count)
    if structure.toeplitz and n <= ENTRIES:
        squared = comb.majorant(strategy).comb_norm_squared(separation, count)
        yield Sensitivity.of_squared(squared, False, "Lemma 3.16(c) of the non-increasing majorant")
    if isinstance(strategy, (Tree, FullTree, TreeAggregation)):
        squared = nodes.by_heights(strategy, separation, count)
        yield Sensitivity.of_squared(squared, False, "most participations that nodes of each height can hold")
    if gram is not None and gram.fits_band:
        band = gram.band()
        squared = by_lags(band, separation, count)
        yield Sensitivity.of_squared(squared, False, "largest |C^T C| at each separation")
        if _rows_work(gram, separation, count) <= WORK:
            squared = by_rows(band, separation, count)
            yield Sensitivity.of_squared(squared, False, "arXiv 2306.08153, Algorithm 4, on |C^T C|")
    if isinstance(strategy, ColumnScaled):
        inner = min_sep(strategy.base, separation, count)
        # C D U has rows of D U of norm at most max D
        yield Sensitivity(
            float(np.max(strategy.scales)) * inner.value, False, f"largest column scale times {inner.method}"
        )
        if strategy.base.structure.toeplitz and n * count <= WORK:
            squared = by_scaled_rows(strategy, separation, count)
            yield Sensitivity.of_squared(squared, False, "scheduled row sums of the unscaled |C^T C|")
    if isinstance(strategy, Restarted):
        inner_count = min(count, -(-strategy.base.n // separation))
        block = min_sep(strategy.base, separation, inner_count) if inner_count > 1 else None
        value = strategy.base.largest_column_norm() if block is None else block.value
        yield Sensitivity.of_squared(
            min(strategy.times, count) * value**2, False, "sum over the restarts a pattern can touch"
        )


def _triangle(strategy: Strategy, separation: int, count: int) -> Sensitivity:
    if strategy.n <= ENTRIES and strategy.n * count <= WORK:
        norms = np.sqrt(strategy.column_norms_squared())
        value = float(best_schedule(norms, separation, count))
    else:
        value = count * strategy.largest_column_norm()
    return Sensitivity(value, False, "triangle inequality over the columns of a pattern")


def by_lags(band: Array, separation: int, count: int) -> float:
    """sum_{p, q < k} max |M[t, t']| over |t - t'| >= |p - q| b.

    Args:
        band: |M[t, t + lag]| as array[lag, t].
    """
    largest = np.maximum.accumulate(band.max(axis=1)[::-1])[::-1]
    lags = np.arange(1, count) * separation
    inside = lags < len(largest)
    entries = largest[lags[inside]]
    return float(count * largest[0] + 2 * ((count - np.arange(1, count))[inside] * entries).sum())


def _rows_work(gram: Gram, separation: int, count: int) -> int:
    width = 2 * gram.bandwidth
    levels = 1 if count >= -(-gram.n // separation) else min(count - 1, -(-width // separation))
    return gram.n * width * levels


def by_rows(band: Array, separation: int, count: int) -> float:
    """max_pi sum_{t in pi} u_t, where u_t is the largest sum of |M[t, :]| over patterns through t.

    arXiv 2306.08153, Algorithm 4, on |M|: the same dynamic programme along each row and over the rows.

    Args:
        band: |M[t, t + lag]| as array[lag, t].
    """
    width, n = band.shape
    # besides t itself, n steps hold at most ceil(n / b) - 1 others: as many as fit is then no restriction
    others = n if count >= -(-n // separation) else count - 1
    lags = np.arange(separation, width)
    sums = np.empty(n)
    chunk = max(1, CHUNK // (2 * width))
    for start in range(0, n, chunk):
        stop = min(start + chunk, n)
        earlier = np.arange(start, stop)[:, None] - lags
        rows = np.zeros((stop - start, 2 * width - 1))  # column width - 1 + lag holds |M[t, t + lag]|
        rows[:, width - 1 + lags] = band[lags, start:stop].T
        rows[:, width - 1 - lags] = np.where(earlier >= 0, band[lags, np.maximum(earlier, 0)], 0.0)
        sums[start:stop] = band[0, start:stop] + best_schedule(rows, separation, others)
    return float(best_schedule(sums, separation, count))


def by_scaled_rows(strategy: ColumnScaled, separation: int, count: int) -> float:
    """A bound for C D with Toeplitz C, in O(n k) time and O(n) memory.

    With T = |C|^T |C| of the non-increasing majorant, 2 d_p d_q T_pq <= (d_p^2 + d_q^2) T_pq, so the sum over
    a pattern is at most sum_t d_t^2 times the sum of row t of T; and row t is largest at t +- b, t +- 2b, ….
    """
    n, b = strategy.n, separation
    gram = gram_of(comb.majorant(strategy.base))
    if gram is None:  # pragma: no cover - the caller limits n
        return float("inf")

    def add(total: Array, j: int, sign: int, *, after: bool) -> None:
        if j * b < n:
            entries = gram.diagonal(j * b)
            part = total[: n - j * b] if after else total[j * b :]
            part += sign * entries

    # a later and k - 1 - a earlier participations, for the best a
    others = np.zeros(n)
    for j in range(1, count):
        add(others, j, 1, after=False)
    best = others.copy()
    for a in range(1, count):
        add(others, a, 1, after=True)
        add(others, count - a, -1, after=False)
        np.maximum(best, others, out=best)
    scales = np.square(np.asarray(strategy.scales, dtype=np.float64))
    return float(best_schedule(scales * (gram.diagonal(0) + best), separation, count))
