"""Narrow rows, many at once: Python floats in place of arrays, which cost more.

float64 decides here as in `base.advance`, by the same bound on its error and with the same memory, by the
operations of `split_sums`, one by one: rows and memory are the same bits. Of filters that have no
such form, rows are made one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import singledispatch
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array
from anechoic.noise.fresh import FreshRows
from anechoic.noise.rounding.base import RoundedFilter, check_entry, error_bound, exactly
from anechoic.noise.rounding.states import RoundedBuffered

#: Entries of a row up to which floats are faster.
NARROW = 8


@singledispatch
def narrow_rows(
    rounded: RoundedFilter[Any], t: int, memory: Array, draw: Callable[[], Array], fresh: FreshRows
) -> list[NDArray[np.int64]]:
    """Rows t, t + 1, … of a filter whose rows are all made alike; memory is then that of the step after.

    Args:
        memory: shape (rounded.rows, m + PAD).
        draw: gives the fresh rows, shape (count, m).
        fresh: the same rows, with enclosures.

    Returns:
        As many rows as were drawn, shape (m,) each; none of a filter without such a form.

    Raises:
        GuaranteeError: as `base.advance`, by each entry itself instead of the largest one of its row.
    """
    return []


@narrow_rows.register
def _(
    rounded: RoundedBuffered, t: int, memory: Array, draw: Callable[[], Array], fresh: FreshRows
) -> list[NDArray[np.int64]]:
    if not rounded.is_steady(t):
        return []
    own = draw()
    made = np.empty(own.shape, np.int64)
    width = own.shape[1]
    for i in range(width):
        made[:, i] = _column(rounded, t, memory[:, i], own[:, i].tolist(), i, fresh)
    rounded.measure(memory)
    return list(made)


def _column(
    rounded: RoundedBuffered, t: int, memory: Array, own: list[float], coordinate: int, fresh: FreshRows
) -> list[int]:
    plan, d = rounded.plan(t), rounded.rows // 2
    lead = float(plan.lead)
    weights = np.zeros(2 * d)
    weights[plan.weights.slots] = plan.weights.floats
    terms, factors = len(plan.weights.slots), weights.tolist()
    inexact, steepness = fresh.error * abs(lead), abs(lead)
    past, sums, made = memory.tolist(), rounded.sums or (), []
    for step, variate in enumerate(own, t):
        value, total = lead * variate, steepness * abs(variate)
        for factor, number in zip(factors, past, strict=True):
            term = factor * number
            value += term
            total += abs(term)
        error = error_bound(terms, total, inexact)
        check_entry(step, abs(value))
        entry = math.floor(value + 0.5)
        off = abs(value - entry)  # exact, as in `advance`
        if off >= 0.5 - error and abs(off - 0.5) <= error:
            entry = exactly(plan, np.array(past), step, coordinate, fresh)
        made.append(entry)
        row = float(entry)
        for k, part in enumerate(sums):
            past[k], past[d + k] = part.fed(past[k], past[d + k], row)
            part.check(max(abs(past[k]), abs(row)))
    memory[...] = past
    return made
