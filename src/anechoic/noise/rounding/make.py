"""The rounded filter of each kind of recurrence."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from anechoic.noise.recurrence import (
    Autoregressive,
    Buffered,
    MovingAverage,
    Nested,
    Recurrence,
    Stacked,
    StateSpace,
)
from anechoic.noise.rounding.base import RoundedFilter
from anechoic.noise.rounding.mixed import RoundedBuffered, RoundedMixed
from anechoic.noise.rounding.windowed import RoundedAutoregressive, RoundedMovingAverage


@singledispatch
def rounded_filter(recurrence: Recurrence, std: float) -> RoundedFilter[Any]:
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
for kind in (StateSpace, Nested, Stacked):
    rounded_filter.register(kind, RoundedMixed)
