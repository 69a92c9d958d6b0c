"""Choice of the filter for a recurrence: in floats or on a grid, rows stored or regenerated."""

from __future__ import annotations

from typing import Any

from anechoic._validate import byte_count, one_of
from anechoic.noise.filters.states import BufferedFilter, NestedFilter, StateSpaceFilter
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
from anechoic.noise.rounding.states import RoundedBuffered, RoundedStates
from anechoic.noise.rounding.windowed import (
    RegeneratedMovingAverage,
    RoundedAutoregressive,
    RoundedMovingAverage,
)

MEMORY = ("store", "regenerate")
#: Filters in floats and on a grid: those that keep rows, and those that make fresh ones again.
STORED = {
    Autoregressive: AutoregressiveFilter,
    MovingAverage: MovingAverageFilter,
    Buffered: BufferedFilter,
    StateSpace: StateSpaceFilter,
    Nested: NestedFilter,
}
REGENERATED = {MovingAverage: RegeneratedFilter}
ROUNDED = {
    Autoregressive: RoundedAutoregressive,
    MovingAverage: RoundedMovingAverage,
    Buffered: RoundedBuffered,
    StateSpace: RoundedStates,
    Nested: RoundedStates,
}
ROUNDED_REGENERATED = {MovingAverage: RegeneratedMovingAverage}
#: Bytes of a number, by precision: "integers" are those of a grid.
BYTES = {"float32": 4, "float64": 8, "integers": 8}


def select_filter(
    memory: str | float, recurrence: Recurrence, std: float, dimension: int, length: int, precision: str
) -> tuple[str, Any]:
    """Select a word of MEMORY, and its filter for rows times `std`: the one that stores, if bytes suffice.

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
    filters: Any = (ROUNDED, ROUNDED_REGENERATED) if on_grid else (STORED, REGENERATED)
    if isinstance(memory, str) and not any(map(str.isdigit, memory)):
        word = one_of("memory", memory, MEMORY)
        return word, _filter_of(filters[MEMORY.index(word)], recurrence)(recurrence, std, more)
    room, stored = byte_count("memory", memory), _filter_of(filters[0], recurrence)(recurrence, std, more)
    needed = stored.rows * length * BYTES[precision]
    if needed <= room:
        return MEMORY[0], stored
    if recurrence.sources is None:
        raise ValueError(
            f"memory={memory!r}: the rows that this noise follows from take {needed} bytes. Give as many, or"
            " a strategy that keeps fewer rows: a banded inverse need keep none."
        )
    return MEMORY[1], _filter_of(filters[1], recurrence)(recurrence, std, more)


def rounded_filter(recurrence: Recurrence, std: float, dimension: int = 1) -> RoundedFilter[Any]:
    """The filter that keeps rows, rounded to integers.

    Raises:
        ValueError: if the recurrence is of none of the kinds known.
    """
    found: RoundedFilter[Any] = _filter_of(ROUNDED, recurrence)(recurrence, std, dimension)
    return found


def _filter_of(filters: dict[type, Any], recurrence: Recurrence) -> Any:
    kinds = type(recurrence).__mro__
    for kind in kinds:
        if kind in filters:
            return filters[kind]
    name = type(recurrence).__name__
    if not STORED.keys() & kinds:
        known = ", ".join(kind.__name__ for kind in STORED)
        raise ValueError(f"{name} is not a kind of recurrence that streams know: return one of {known}.")
    raise ValueError(
        "memory='regenerate' makes rows of few fresh ones, as banded inverses and Output do. This noise is"
        f" {name}, and follows from {recurrence.rows} earlier rows: use memory='store'."
    )
