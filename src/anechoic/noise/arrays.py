"""Arrays behind a stream, and the arithmetic of a noise step, which is the same on every backend.

Every number of a step is made by additions and multiplications in the precision of the rows, each rounded
once, in an order that is fixed here: so it depends neither on the other columns nor on the processor, the
number of threads or the backend. Weights are rounded to that precision first. A weighted sum of rows is

    0 + w_0 x_0 + w_1 x_1 + …      from left to right, every product rounded, then every sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from anechoic._validate import Array
from anechoic.noise.fresh import FreshRows

PRECISIONS = ("float32", "float64")


class MemoryColumns(Protocol):
    """Some columns of the memory, shape (rows, k), and of the row being made, shape (k,)."""

    memory: Any
    row: Any

    def draw(self, target: Any, *weights: float) -> None:
        """target = sum_j weights[j] z_{t-j}: each z times its weight in float64 and rounded, then added."""

    def combine(self, weights: Array, rows: Any, out: Any) -> None:
        """out = weights @ rows; `out` does not overlap `rows`."""

    def add(self, sums: Sequence[tuple[Array, Any]], out: Any, copy: Any = None) -> None:
        """out += weights @ rows for each (weights, rows), the sum of the rows first; then copy[...] = out.

        `out` does not overlap the rows. A row of weight 1 that is alone has no entry -0, so that it is its
        own sum.
        """

    def look_ahead(self, weights: Array, used: list[int], slots: list[int]) -> None:
        """memory[slots] = weights @ memory[used], all from what was there before.

        Args:
            weights: shape (len(slots), len(used)).
            used: rows of the memory, one after another, ascending.
            slots: rows of the memory, which may be among those used.
        """

    def assign(self, rows: Any, row: Any) -> None:
        """rows[...] = row, for one row or several."""

    def feed_back(self, weights: Array, decays: Array) -> None:
        """row += weights @ memory, and then memory = decays * memory + row."""

    def feed_state(self, weights: Array, transition: Array, entry: Array) -> None:
        """row += weights @ memory, and then memory = transition @ memory + entry[:, None] * row."""


#: One step's work, as it is done for some of the columns.
Plan = Callable[[MemoryColumns], None]


class Arrays(Protocol):
    """Rows of a stream, shape (m,), and its memory, shape (rows, m), on one backend."""

    backend: str
    precision: str

    def empty(self, *shape: int) -> Any:
        """Uninitialised memory."""

    def check_row(self, row: Any, dimension: int) -> Any:
        """`row` if a stream may write into it; ValueError otherwise."""

    def run(self, plan: Plan, memory: Any, row: Any, fresh: FreshRows) -> None:
        """Do the plan for all columns, on the threads that there are."""

    def export(self, rows: Any, *, copy: bool) -> Any:
        """Plain array on the CPU with the contents of `rows`."""

    def load(self, exported: Any, rows: Any) -> None:
        """rows[...] = exported; ValueError where type, shape or precision differ."""


def checked_precision(dtype: Any, name: str) -> str:
    """`name` if it is one of PRECISIONS.

    Raises:
        ValueError: otherwise.
    """
    if name not in PRECISIONS:
        raise ValueError(
            f"dtype={dtype!r} must be float32 or float64: in lower precision rounding errors would build up "
            "in the stream's memory. Cast the emitted rows instead."
        )
    return name
