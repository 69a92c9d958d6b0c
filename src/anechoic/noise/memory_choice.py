"""What a stream keeps: all that later rows need, nothing, or whichever a number of bytes has room for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anechoic._validate import byte_count
from anechoic.noise.filters.base import MEMORY
from anechoic.noise.host_memory import PINNED
from anechoic.noise.recurrence import Recurrence

#: Bytes of a number, by precision.
BYTES = {"float32": 4, "float64": 8, "integers": 8}


def chosen(
    memory: str | float, make: Callable[[str], Any], recurrence: Recurrence, length: int, precision: str
) -> tuple[str, Any]:
    """A word of MEMORY, and the filter that `make` makes of it: the one that stores, where bytes are enough.

    Args:
        memory: one of MEMORY, PINNED, or bytes, as a number or a text.
        length: entries of a row.
        precision: of the stream's arrays.

    Raises:
        ValueError: for another word, or where there is no room and a row is not a sum of few fresh ones.
    """
    if memory == PINNED:
        return PINNED, make(MEMORY[0])
    if memory in MEMORY:
        return str(memory), make(str(memory))
    if isinstance(memory, str) and not any(map(str.isdigit, memory)):
        return memory, make(memory)  # which names the words that there are
    room, stored = byte_count("memory", memory), make(MEMORY[0])
    needed = stored.rows * length * BYTES[precision]
    if needed <= room:
        return MEMORY[0], stored
    if recurrence.sources is None:
        raise ValueError(
            f"memory={memory!r}: the rows that this noise follows from take {needed} bytes. Give as many, or"
            " a strategy that keeps fewer rows; memory='regenerate' keeps none where C^-1 is at hand, and"
            " makes all fresh rows of the past again in every step."
        )
    return "regenerate", make("regenerate")
