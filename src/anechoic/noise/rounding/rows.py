"""Integer rows behind a stream: NumPy's, handed to torch or moved to its device."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array, one_of
from anechoic.noise.fresh import FreshRows
from anechoic.noise.gaussian import available_threads, in_blocks
from anechoic.noise.rounding.base import PAD, RoundedFilter, RowPlan, Work, advance
from anechoic.noise.rounding.scalar_rows import NARROW, narrow_rows
from anechoic.noise.torch_arrays import make_arrays

#: Rows that are made together at most.
TOGETHER = 2**12


class IntegerArrays:
    """In the place of `Arrays`: rows are int64, memory is float64 with PAD columns behind.

    Noise and its memory are made on the CPU whatever the device, and rows are moved.

    Attributes:
        exactly: entries of the last row that needed exact arithmetic.
    """

    precision = "integers"

    def __init__(self, backend: str, dtype: Any, device: Any) -> None:
        if dtype is not None:
            raise ValueError(f"dtype={dtype!r}: rows on a grid are int64. Leave dtype out.")
        self.backend = one_of("backend", backend, ("numpy", "torch"))
        self.floats: Any = make_arrays(backend, "float64", device)  # refuses devices that there are not
        self._device = device
        self.exactly = 0

    def empty(self, *shape: int) -> Any:
        """A row of integers, or float64 memory for two axes."""
        if len(shape) == 2:
            memory = np.empty((shape[0], shape[1] + PAD))
            memory[:, shape[1] :] = np.nan  # no row of it has a size, or is a sum made ahead
            return memory
        if self.backend == "numpy":
            return np.empty(shape, np.int64)
        import torch

        with torch.inference_mode(False):
            return torch.empty(shape, dtype=torch.int64, device=self._device)

    def check_row(self, row: Any, dimension: int) -> Any:
        """`row` if a stream may write into it; ValueError otherwise."""
        expected = self.empty(0)
        if type(row) is not type(expected) or row.dtype != expected.dtype or tuple(row.shape) != (dimension,):
            raise ValueError(f"out must hold int64 in shape ({dimension},), of {self.backend}.")
        if self.backend == "numpy":
            fits = row.flags.c_contiguous and row.flags.writeable
        else:
            fits = row.is_contiguous() and row.device == expected.device and not row.is_inference()
        if not fits:
            raise ValueError("out must be contiguous, writeable, and on the device of the stream.")
        return row

    def run(self, plan: RowPlan, memory: Any, row: Any, fresh: FreshRows) -> None:
        """Make one row, on the threads that there are."""
        if self.backend == "numpy":
            self.exactly = advance(plan, fresh.step, memory, fresh, row, self._each)
            return
        import torch

        with torch.inference_mode(False), torch.no_grad():
            on_cpu = row.device.type == "cpu"
            made: NDArray[np.int64] = row.numpy() if on_cpu else np.empty(len(row), np.int64)
            self.exactly = advance(plan, fresh.step, memory, fresh, made, self._each)
            if not on_cpu:
                row.copy_(torch.from_numpy(made))

    def several(
        self, rounded: RoundedFilter[Any], memory: Array, count: int, fresh: FreshRows
    ) -> list[NDArray[np.int64]]:
        """As many of the next `count` rows as are made faster together: none, or some."""
        width, count = memory.shape[1] - PAD, min(count, TOGETHER)
        if self.backend != "numpy" or width > NARROW:
            return []
        return narrow_rows(rounded, fresh.step, memory, lambda: fresh.together(count, width), fresh)

    def _each(self, work: Work, length: int) -> list[list[dict[int, float]]]:
        threads = available_threads()
        if self.backend == "torch":
            import torch

            threads = torch.get_num_threads()
        found: list[list[dict[int, float]]] = []
        in_blocks(lambda part: found.append(work(part)), length, threads)
        return found

    def export(self, rows: Any, *, copy: bool) -> Any:
        """Plain array of the backend with the contents of `rows`."""
        if self.backend == "numpy":
            return rows.copy() if copy else rows
        import torch

        with torch.inference_mode(False):
            return torch.from_numpy(rows.copy() if copy else rows)

    def load(self, exported: Any, rows: Any) -> None:
        """rows[...] = exported; ValueError where type, shape or precision differ."""
        given = exported
        if self.backend == "torch":
            import torch

            given = exported.detach().cpu().numpy() if isinstance(exported, torch.Tensor) else None
        if not isinstance(given, np.ndarray) or given.dtype != np.float64 or given.shape != rows.shape:
            raise ValueError(f"rows is not a float64 array of {self.backend} in shape {rows.shape}.")
        rows[...] = given
