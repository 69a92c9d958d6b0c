"""Strategies made from another one, scaled or restarted: bounds from the sensitivity of what is inside."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from anechoic._validate import Array
from anechoic.sensitivity import comb, theorems
from anechoic.sensitivity.bounds import WORK, bounds_of_class
from anechoic.sensitivity.epochs import epoch_bounds_of_class, once_per_epoch
from anechoic.sensitivity.gram import gram_of
from anechoic.sensitivity.min_sep import min_sep
from anechoic.sensitivity.result import Sensitivity
from anechoic.sensitivity.scheduling import best_schedule
from anechoic.strategies import Restarted
from anechoic.strategies.column_scaled import ColumnScaled


@bounds_of_class.register
def _(strategy: ColumnScaled, separation: int, count: int) -> Iterator[Sensitivity]:
    yield _by_largest_scale(strategy, min_sep(strategy.base, separation, count))
    if strategy.base.structure.toeplitz and strategy.n * count <= WORK:
        squared = by_scaled_rows(strategy, separation, count)
        yield Sensitivity.of_squared(
            squared, False, "scheduled row sums of the unscaled |C^T C|", theorems.COLUMN_SCALES
        )


@bounds_of_class.register
def _(strategy: Restarted, separation: int, count: int) -> Iterator[Sensitivity]:
    inner_count = min(count, -(-strategy.base.n // separation))
    block = min_sep(strategy.base, separation, inner_count) if inner_count > 1 else None
    value = strategy.base.largest_column_norm() if block is None else block.value
    yield Sensitivity.of_squared(
        min(strategy.times, count) * value**2,
        False,
        "sum over the restarts a pattern can touch",
        theorems.RESTARTS,
    )


@epoch_bounds_of_class.register
def _(strategy: ColumnScaled, period: int) -> Iterator[Sensitivity]:
    yield _by_largest_scale(strategy, once_per_epoch(strategy.base, period))


def _by_largest_scale(strategy: ColumnScaled, inner: Sensitivity) -> Sensitivity:
    """C D U has rows of D U of norm at most max D."""
    return Sensitivity(
        float(np.max(strategy.scales)) * inner.value,
        False,
        f"largest column scale times {inner.method}",
        theorems.COLUMN_SCALES,
    )


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
