"""The filter of each kind of recurrence."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from anechoic._validate import one_of
from anechoic.noise.filters.base import MEMORY, Filter
from anechoic.noise.filters.mixed import BufferedFilter, NestedFilter, StackedFilter, StateSpaceFilter
from anechoic.noise.filters.regenerated import RegeneratedFilter
from anechoic.noise.filters.windowed import AutoregressiveFilter, MovingAverageFilter
from anechoic.noise.recurrence import (
    Autoregressive,
    Buffered,
    MovingAverage,
    Nested,
    Recurrence,
    Stacked,
    StateSpace,
)


def make_filter(recurrence: Recurrence, std: float, precision: str, memory: str = "store") -> Filter[Any]:
    """The filter of a recurrence.

    Raises:
        ValueError: if the recurrence is of none of the kinds known, or needs memory that is not wanted.
    """
    made = stored_filter if one_of("memory", memory, MEMORY) == "store" else regenerated_filter
    return made(recurrence, std, precision)


@singledispatch
def stored_filter(recurrence: Recurrence, std: float, precision: str) -> Filter[Any]:
    """The filter that keeps rows; a kind of recurrence of your own registers one.

    Raises:
        ValueError: if the recurrence is of none of the kinds known.
    """
    raise ValueError(
        f"{type(recurrence).__name__} is not a kind of recurrence that streams know: return Autoregressive, "
        "MovingAverage, Buffered, StateSpace, Nested or Stacked from recurrence()."
    )


stored_filter.register(Autoregressive, AutoregressiveFilter)
stored_filter.register(MovingAverage, MovingAverageFilter)
stored_filter.register(Buffered, BufferedFilter)
stored_filter.register(StateSpace, StateSpaceFilter)
stored_filter.register(Nested, NestedFilter)
stored_filter.register(Stacked, StackedFilter)


@singledispatch
def regenerated_filter(recurrence: Recurrence, std: float, precision: str) -> Filter[Any]:
    """The filter that makes rows from the rows of C^-1, and keeps none.

    Raises:
        ValueError: where these are not at hand.
    """
    raise ValueError(
        "memory='regenerate' makes rows from those of C^-1, which are at hand for dense, banded,"
        f" Toeplitz strategies and their inverses, but this one's noise is"
        f" {type(recurrence).__name__} and keeps {recurrence.rows} rows: use memory='store'."
    )


regenerated_filter.register(Autoregressive, RegeneratedFilter)
regenerated_filter.register(MovingAverage, RegeneratedFilter)
