"""Bound on the noise state of a plan: the caller's budget, or a stated default."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

from anechoic._validate import byte_count, positive_int
from anechoic.noise.recurrence import Buffered, Recurrence

#: Bytes of one coordinate of the noise (float32).
BYTES = 4
#: Without a budget the noise state may be as large as this many models, which is what training with Adam
#: holds anyway: weights, gradients and two moments.
MODELS = 4
#: Or as large as this, whichever is more: a few milliseconds of a step, whatever the model.
FLOOR = 64 * 2**20
#: Where there is no room for rows, they are made again if a row is a sum of at most so many fresh ones.
MOST_AGAIN = 16
#: Nanoseconds of one core for a fresh entry of the noise, for an entry of a row that is read, and for one
#: that is read and written: measured with `NoiseStream` at two million entries, on one machine.
FRESH, READ, WRITTEN = 6.3, 0.18, 0.9


@singledispatch
def nanoseconds(recurrence: Recurrence) -> float:
    """About the time of one core for an entry of a row of noise."""
    return FRESH + READ * recurrence.rows


@nanoseconds.register
def _(recurrence: Buffered) -> float:
    return FRESH + WRITTEN * recurrence.rows


def nanoseconds_regenerated(recurrence: Recurrence) -> float | None:
    """The same without noise state, where a row is a sum of few fresh ones: these are made again."""
    return None if recurrence.sources is None else FRESH * recurrence.sources


@dataclass(frozen=True)
class MemoryBudget:
    """The bound on rows of noise state.

    Attributes:
        rows: most rows of noise state; None for any number.
        dimension: entries of a row, None where unknown.
        reason: where the bound comes from, as a sentence; "" for the caller's own budget.
    """

    rows: int | None
    dimension: int | None
    reason: str = ""

    def fits(self, rows: int) -> bool:
        """Whether so many rows of noise state are within the bound."""
        return self.rows is None or rows <= self.rows

    def memory(self, rows: int) -> int | None:
        """Bytes of so many rows; None where the dimension is unknown."""
        return None if self.dimension is None else BYTES * self.dimension * rows

    def storage(self, recurrence: Recurrence, rows: int | None = None) -> tuple[str, int]:
        """Return a word for `NoiseStream(memory=…)` and the rows that it keeps: `rows` if stored."""
        rows = recurrence.rows if rows is None else rows
        few = recurrence.sources is not None and recurrence.sources <= MOST_AGAIN
        return ("regenerate", 0) if few and not self.fits(rows) else ("store", rows)

    def seconds(self, recurrence: Recurrence, storage: str) -> float | None:
        """About the time of one core for the noise of one step; None where the dimension is unknown."""
        again = nanoseconds_regenerated(recurrence) if storage == "regenerate" else None
        return None if self.dimension is None else 1e-9 * self.dimension * (again or nanoseconds(recurrence))


def memory_limit(dimension: int | None, memory_budget: float | str | None) -> MemoryBudget:
    """The bound that follows from the number of parameters and a budget in bytes, or from the default.

    Raises:
        ValueError: for values out of range, or a budget without a dimension.
    """
    if dimension is not None:
        positive_int("dimension", dimension)
    if memory_budget is not None:
        budget = byte_count("memory_budget", memory_budget)
        if dimension is None:
            raise ValueError(
                f"memory_budget={memory_budget} needs dimension, the number of trainable parameters."
            )
        return MemoryBudget(int(budget // (BYTES * dimension)), dimension)
    if dimension is None:
        return MemoryBudget(
            None,
            None,
            "No number of parameters is given (dimension=, --dimension): nothing bounds the noise state.",
        )
    rows = max(MODELS, FLOOR // (BYTES * dimension))
    which = f"{MODELS} times the model" if rows == MODELS else f"{FLOOR // 2**20} MiB"
    reason = f"No memory_budget is given: noise state of at most {which} is compared."
    return MemoryBudget(rows, dimension, reason)
