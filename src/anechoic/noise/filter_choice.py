"""The filter of each kind of recurrence, in floats and on a grid: it stores rows, or makes them again."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from anechoic._validate import byte_count, one_of
from anechoic.noise.filters.base import Filter
from anechoic.noise.filters.mixed import BufferedFilter, NestedFilter, StateSpaceFilter
from anechoic.noise.filters.windowed import AutoregressiveFilter, MovingAverageFilter, RegeneratedFilter
from anechoic.noise.recurrence import (
    Autoregressive,
    Buffered,
    MovingAverage,
    Nested,
    Recurrence,
    StateSpace,
)
from anechoic.noise.rounding.base import RoundedFilter
from anechoic.noise.rounding.mixed import RoundedBuffered, RoundedMixed
from anechoic.noise.rounding.windowed import (
    RegeneratedMovingAverage,
    RoundedAutoregressive,
    RoundedMovingAverage,
)

MEMORY = ("store", "regenerate")
#: Bytes of a number, by precision: "integers" are those of a grid.
BYTES = {"float32": 4, "float64": 8, "integers": 8}


def chosen(
    memory: str | float, recurrence: Recurrence, std: float, dimension: int, length: int, precision: str
) -> tuple[str, Any]:
    """A word of MEMORY, and the filter of that kind which emits `recurrence`'s rows times `std`.

    The one that stores, where the bytes are enough.

    Args:
        memory: one of MEMORY, or bytes, as a number or a text.
        std: of one entry of the scaled fresh rows, in units of the grid where there is one.
        dimension: entries of a whole row.
        length: entries of a row that are kept.
        precision: of the stream's arrays.

    Raises:
        ValueError: for another word, a recurrence of none of the kinds known, or where there is no room and a
            row is not a sum of few fresh ones.
    """
    on_grid = precision == "integers"
    more: Any = dimension if on_grid else precision
    makers: Any = (rounded_filter, rounded_without_memory) if on_grid else (stored_filter, regenerated_filter)
    if isinstance(memory, str) and not any(map(str.isdigit, memory)):
        word = one_of("memory", memory, MEMORY)
        return word, makers[MEMORY.index(word)](recurrence, std, more)
    room, stored = byte_count("memory", memory), makers[0](recurrence, std, more)
    needed = stored.rows * length * BYTES[precision]
    if needed <= room:
        return MEMORY[0], stored
    if recurrence.sources is None:
        raise ValueError(
            f"memory={memory!r}: the rows that this noise follows from take {needed} bytes. Give as many, or"
            " a strategy that keeps fewer rows; memory='regenerate' keeps none where C^-1 is at hand, and"
            " makes all fresh rows of the past again in every step."
        )
    return MEMORY[1], makers[1](recurrence, std, more)


@singledispatch
def stored_filter(recurrence: Recurrence, std: float, precision: str) -> Filter[Any]:
    """The filter that keeps rows; a kind of recurrence of your own registers one.

    Raises:
        ValueError: if the recurrence is of none of the kinds known.
    """
    raise ValueError(
        f"{type(recurrence).__name__} is not a kind of recurrence that streams know: return Autoregressive,"
        " MovingAverage, Buffered, StateSpace or Nested from recurrence()."
    )


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


@singledispatch
def rounded_filter(recurrence: Recurrence, std: float, dimension: int = 1) -> RoundedFilter[Any]:
    """The filter that keeps rows, rounded to integers.

    Raises:
        ValueError: if the recurrence is of none of the kinds known.
    """
    raise ValueError(
        f"{type(recurrence).__name__} is not a kind of recurrence that can be rounded exactly: return"
        " Autoregressive, MovingAverage, Buffered, StateSpace or Nested from recurrence()."
    )


@singledispatch
def rounded_without_memory(recurrence: Recurrence, std: float, dimension: int = 1) -> RoundedFilter[Any]:
    """The filter that keeps no rows, and rounds to integers.

    Raises:
        ValueError: where what is emitted depends on integers that were rounded before.
    """
    raise ValueError(
        "memory='regenerate' on a grid makes rows of fresh ones, as banded inverses and Output do. This noise"
        f" is {type(recurrence).__name__}, and follows from {recurrence.rows} rows that were rounded: use"
        " memory='store'."
    )


stored_filter.register(Autoregressive, AutoregressiveFilter)
stored_filter.register(MovingAverage, MovingAverageFilter)
stored_filter.register(Buffered, BufferedFilter)
stored_filter.register(StateSpace, StateSpaceFilter)
stored_filter.register(Nested, NestedFilter)
regenerated_filter.register(Autoregressive, RegeneratedFilter)
regenerated_filter.register(MovingAverage, RegeneratedFilter)
rounded_filter.register(Autoregressive, RoundedAutoregressive)
rounded_filter.register(MovingAverage, RoundedMovingAverage)
rounded_filter.register(Buffered, RoundedBuffered)
for kind in (StateSpace, Nested):
    rounded_filter.register(kind, RoundedMixed)
rounded_without_memory.register(MovingAverage, RegeneratedMovingAverage)
