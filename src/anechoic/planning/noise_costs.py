"""What the noise of a step costs, kept or made again: bytes, and milliseconds by the speeds of a machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, singledispatch

import numpy as np

from anechoic._validate import byte_count, positive_int
from anechoic.noise.gaussian import FreshRow
from anechoic.noise.recurrence import Buffered, Recurrence
from anechoic.statement.rounding import size

_WORD = 8  # bytes of the keystream that a fresh entry takes
_MEASURED = 2**20  # fresh entries, and numbers that are copied, when speeds are measured: twice 8 MiB


@dataclass(frozen=True)
class NoiseCost:
    """One way to have the noise of a step.

    Attributes:
        way: the word for `NoiseStream(memory=…)`.
        memory: bytes that are kept between steps.
        milliseconds: predicted, of a step: what is drawn, and what is moved.
    """

    way: str
    memory: int
    milliseconds: float

    def __str__(self) -> str:
        return f"memory={self.way!r}: {size(self.memory)}, {self.milliseconds:.3g} ms a step"


@singledispatch
def rows_moved(recurrence: Recurrence) -> int:
    """Rows that a step reads or writes, the emitted one too: a window is read, and a row put into it."""
    return recurrence.rows + 1 + (recurrence.rows > 0)


@rows_moved.register
def _(recurrence: Buffered) -> int:
    return 2 * recurrence.rows + 1  # every buffer is read and written


def noise_costs(
    recurrence: Recurrence,
    dimension: int,
    number_bytes: int = 4,
    bandwidth: float | str | None = None,
    keystream: float | str | None = None,
) -> tuple[NoiseCost, ...]:
    """Stored, and where a row is a sum of few fresh ones, made again.

    Args:
        dimension: entries of a row.
        number_bytes: of one number of memory and row.
        bandwidth: bytes that are moved in a second, or a text such as "4TB"; None measures one core here.
        keystream: bytes of it that become variates in a second, 8 an entry; None measures one core here.

    Raises:
        ValueError: for a value out of range.
    """
    positive_int("dimension", dimension)
    moved = copied_per_second() if bandwidth is None else byte_count("bandwidth", bandwidth)
    drawn = drawn_per_second() if keystream is None else byte_count("keystream", keystream)
    row, fresh = number_bytes * dimension, _WORD * dimension / drawn
    ways = [NoiseCost("store", recurrence.rows * row, 1e3 * (fresh + rows_moved(recurrence) * row / moved))]
    if recurrence.rows and recurrence.sources is not None:
        ways.append(NoiseCost("regenerate", 0, 1e3 * (recurrence.sources * fresh + row / moved)))
    return tuple(ways)


@cache
def copied_per_second() -> float:
    """Bytes that one core reads and writes in a second when it copies memory."""
    source, target = np.ones(_MEASURED), np.zeros(_MEASURED)
    return 2 * source.nbytes / _shortest(lambda: np.copyto(target, source))


@cache
def drawn_per_second() -> float:
    """Bytes of the keystream that one core makes variates of in a second."""
    row, out = FreshRow(bytes(32), 0), np.empty(_MEASURED, np.float32)
    return _WORD * _MEASURED / _shortest(lambda: row.fill(out, 0))


def _shortest(work: Callable[[], None], times: int = 4) -> float:
    found = []
    for _ in range(times):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return max(min(found), 1e-6)
