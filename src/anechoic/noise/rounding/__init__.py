"""Rows of noise rounded to integers exactly: one filter for each kind of recurrence.

The proof is docs/proofs/float-safe.md.
"""

from __future__ import annotations

from functools import singledispatch

from anechoic.noise.rounding.base import PAD, Fresh, RoundedFilter, advance
from anechoic.noise.rounding.fading import (
    DRIFT,
    RoundedBuffered,
    RoundedStateSpace,
    before_drift,
)
from anechoic.noise.rounding.nested import RoundedNested
from anechoic.noise.rounding.rows import IntegerArrays
from anechoic.noise.rounding.stacked import RoundedStacked
from anechoic.noise.rounding.windowed import RoundedAutoregressive, RoundedMovingAverage
from anechoic.strategies.recurrence import (
    Autoregressive,
    Buffered,
    MovingAverage,
    Nested,
    Recurrence,
    Stacked,
    StateSpace,
)

__all__ = [
    "DRIFT",
    "PAD",
    "Fresh",
    "IntegerArrays",
    "RoundedFilter",
    "advance",
    "before_drift",
    "rounded_filter",
]


@singledispatch
def rounded_filter(recurrence: Recurrence, std: float) -> RoundedFilter:
    """The filter that emits `recurrence`'s rows times `std`, rounded to integers.

    Raises:
        ValueError: if the recurrence is of none of the kinds known.
    """
    raise ValueError(
        f"{type(recurrence).__name__} is not a kind of recurrence that can be rounded exactly: return"
        " Autoregressive, MovingAverage, Buffered, StateSpace, Nested or Stacked from"
        " recurrence()."
    )


rounded_filter.register(Autoregressive, RoundedAutoregressive)
rounded_filter.register(MovingAverage, RoundedMovingAverage)
rounded_filter.register(Buffered, RoundedBuffered)
rounded_filter.register(StateSpace, RoundedStateSpace)
rounded_filter.register(Nested, RoundedNested)
rounded_filter.register(Stacked, RoundedStacked)
