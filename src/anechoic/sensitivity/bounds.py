"""Upper bounds for minimum separation where no theorem is exact. The smallest is taken; all are proven.

Each starts from Lemma 3.15(a): sens^2 <= max_pi sum_{t, t' in pi} |M[t, t']| with M = C^T C.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import singledispatch

import numpy as np

from anechoic._validate import Array
from anechoic.sensitivity import comb, theorems
from anechoic.sensitivity.gram import ENTRIES, Gram
from anechoic.sensitivity.result import Sensitivity
from anechoic.sensitivity.scheduling import best_schedule
from anechoic.strategies.base import Strategy

WORK = 3_000_000_000  # additions that one bound may take
CHUNK = 500_000  # numbers in one chunk of rows


def min_sep_bounds(
    strategy: Strategy, gram: Gram | None, separation: int, count: int
) -> Iterator[Sensitivity]:
    """The bounds that this strategy's structure and size allow; at least one."""
    n, structure = strategy.n, strategy.structure
    yield _triangle(strategy, separation, count)
    if structure.toeplitz and n <= ENTRIES:
        squared = comb.majorant(strategy).comb_norm_squared(separation, count)
        yield Sensitivity.of_squared(
            squared, False, "Lemma 3.16(c) of the non-increasing majorant", theorems.MAJORANT
        )
    if gram is not None and gram.fits_band:
        band = gram.band()
        squared = by_lags(band, separation, count)
        yield Sensitivity.of_squared(
            squared, False, "largest |C^T C| at each separation", theorems.ABSOLUTE_SUMS
        )
        if _rows_work(gram, separation, count) <= WORK:
            squared = by_rows(band, separation, count)
            yield Sensitivity.of_squared(
                squared, False, "arXiv 2306.08153, Algorithm 4, on |C^T C|", theorems.ABSOLUTE_SUMS
            )
    yield from bounds_of_class(strategy, separation, count)


@singledispatch
def bounds_of_class(strategy: Strategy, separation: int, count: int) -> Iterable[Sensitivity]:
    """Bounds of strategies that know more than their structure says; none for all others."""
    return ()


def _triangle(strategy: Strategy, separation: int, count: int) -> Sensitivity:
    if strategy.n <= ENTRIES and strategy.n * count <= WORK:
        norms = np.sqrt(strategy.column_norms_squared())
        value = float(best_schedule(norms, separation, count))
    else:
        value = count * strategy.largest_column_norm()
    return Sensitivity(value, False, "triangle inequality over the columns of a pattern", theorems.TRIANGLE)


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
