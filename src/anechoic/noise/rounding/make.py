"""The rounded filter of each kind of recurrence."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from anechoic._validate import one_of
from anechoic.noise.filters.base import MEMORY
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
from anechoic.noise.rounding.windowed import (
    RegeneratedMovingAverage,
    RoundedAutoregressive,
    RoundedMovingAverage,
)


def make_rounded(recurrence: Recurrence, std: float, dimension: int, memory: str) -> RoundedFilter[Any]:
    """The filter that emits `recurrence`'s rows times `std`, of `dimension` entries, rounded to integers.

    Raises:
        ValueError: if the recurrence is of none of the kinds known, or needs memory that is not wanted.
    """
    made = rounded_filter if one_of("memory", memory, MEMORY) == "store" else rounded_without_memory
    return made(recurrence, std, dimension)


@singledispatch
def rounded_without_memory(recurrence: Recurrence, std: float, dimension: int = 1) -> RoundedFilter[Any]:
    """The filter that keeps no rows.

    Raises:
        ValueError: where what is emitted depends on integers that were rounded before.
    """
    raise ValueError(
        "memory='regenerate' on a grid makes rows of fresh ones, as banded inverses and Output do. This noise"
        f" is {type(recurrence).__name__}, and follows from {recurrence.rows} rows that were rounded: use"
        " memory='store'."
    )


@singledispatch
def rounded_filter(recurrence: Recurrence, std: float, dimension: int = 1) -> RoundedFilter[Any]:
    """The filter that keeps rows.

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
rounded_without_memory.register(MovingAverage, RegeneratedMovingAverage)
for kind in (StateSpace, Nested, Stacked):
    rounded_filter.register(kind, RoundedMixed)
