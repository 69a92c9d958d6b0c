"""Integer rows behind a stream: NumPy's, handed to torch or moved to its device."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array
from anechoic.noise.fresh import FreshRows
from anechoic.noise.gaussian import in_blocks
from anechoic.noise.rounding.base import PAD, RoundedFilter, RowPlan, Work, advance
from anechoic.noise.rounding.scalar_rows import NARROW, narrow_rows
from anechoic.noise.torch_arrays import RowArrays

#: Rows that are made together at most.
TOGETHER = 2**12


class IntegerArrays(RowArrays):
    """Rows are int64, memory is float64 with PAD columns behind.

    Noise and its memory are made on the CPU whatever the device, and rows are moved.

    Attributes:
        exactly: entries of the last row that needed exact arithmetic.
        floats: of fresh rows.
    """

    def __init__(self, backend: str, dtype: Any, device: Any) -> None:
        if dtype is not None:
            raise ValueError(f"dtype={dtype!r}: rows on a grid are int64. Leave dtype out.")
        super().__init__(backend, "int64", device)
        self.floats = RowArrays(backend, "float64", device)
        self.precision, self.exactly = "integers", 0

    def empty(self, *shape: int) -> Any:
        if len(shape) == 1:
            return super().empty(*shape)
        memory = np.empty((shape[0], shape[1] + PAD))
        memory[:, shape[1] :] = np.nan  # no row of it has a size, or is a sum made ahead
        return memory

    def run(self, plan: RowPlan, memory: Array, row: Any, fresh: FreshRows) -> None:  # type: ignore[override]
        """Make one row, on the threads that there are."""
        with self.written(row) as made:
            self.exactly = advance(plan, fresh.step, memory, fresh, made, self._each)

    def several(
        self, rounded: RoundedFilter[Any], memory: Array, count: int, fresh: FreshRows
    ) -> list[NDArray[np.int64]]:
        """As many of the next `count` rows as are made faster together: none, or some."""
        width, count = memory.shape[1] - PAD, min(count, TOGETHER)
        if self.backend != "numpy" or width > NARROW:
            return []
        return narrow_rows(rounded, fresh.step, memory, lambda: fresh.together(count, width), fresh)

    def _each(self, work: Work, length: int) -> list[list[dict[int, float]]]:
        found: list[list[dict[int, float]]] = []
        in_blocks(lambda part: found.append(work(part)), length, self.threads)
        return found
