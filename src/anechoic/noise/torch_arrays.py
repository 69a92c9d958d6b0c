"""Rows of a stream as arrays of NumPy or PyTorch. Its memory is NumPy's, whatever the device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array, one_of
from anechoic.noise.device_rows import DeviceColumns, draws_on_device
from anechoic.noise.fresh import FreshRows
from anechoic.noise.gaussian import available_threads, in_blocks
from anechoic.noise.numpy_arrays import Plan, run_on_numpy
from anechoic.noise.rounding.base import PAD, RoundedFilter, RowPlan, Work, advance
from anechoic.noise.rounding.scalar_rows import NARROW, narrow_rows

_ALIGNMENT = 64
PRECISIONS = ("float32", "float64")
#: Rows that are made together at most.
TOGETHER = 2**12


class RowArrays:
    """Rows, shape (m,), and memory, shape (rows, m), of one type.

    PyTorch's rows are on any device. Those that need no memory are drawn there where that gives the CPU's
    bits; others are moved there.

    Args:
        backend: "numpy" or "torch".
        kind: type of the numbers, as NumPy calls it.
        device: of torch; None for the CPU.

    Raises:
        ValueError: if the backend is unknown, or the device not one of NumPy's.
    """

    def __init__(self, backend: str, kind: str, device: Any) -> None:
        self.backend = one_of("backend", backend, ("numpy", "torch"))
        self.precision = self._kind = kind
        self._on_cpu = True
        if backend == "torch":
            import torch

            self._device = torch.empty(0, device="cpu" if device is None else device).device
            self._on_cpu = self._device.type == "cpu"
        elif device is not None and str(device) != "cpu":
            raise ValueError(f"device={device!r}: NumPy's arrays live on the CPU. Use backend='torch'.")

    def empty(self, *shape: int) -> Any:
        """Uninitialised: a row, or memory for two axes."""
        if self.backend == "numpy" or len(shape) == 2:
            return aligned_empty(shape, self._kind)
        import torch

        with torch.inference_mode(False):
            if self._on_cpu:
                return torch.from_numpy(aligned_empty(shape, self._kind))
            return torch.empty(shape, dtype=getattr(torch, self._kind), device=self._device)

    def check_row(self, row: Any, dimension: int) -> Any:
        """`row` if a stream may write into it; ValueError otherwise."""
        expected = self.empty(0)
        of_kind = isinstance(row, type(expected)) and row.dtype == expected.dtype
        if not of_kind or tuple(row.shape) != (dimension,):
            what = f"{self._kind} in shape ({dimension},)"
            raise ValueError(f"out must be an array of {self.backend} that holds {what}.")
        if self.backend == "numpy":
            fits = row.flags.c_contiguous and row.flags.writeable
        else:
            apart = row.requires_grad or row.is_inference()
            fits = row.is_contiguous() and row.device == expected.device and not apart
        if not fits:
            raise ValueError(
                "out must be contiguous, writeable, on the device of the stream, without requires_grad, and"
                " made outside inference mode."
            )
        return row

    @property
    def threads(self) -> int:
        """Threads that rows are made on."""
        if self.backend == "numpy":
            return available_threads()
        import torch

        return torch.get_num_threads()

    @contextmanager
    def written(self, row: Any) -> Iterator[NDArray[Any]]:
        """Yield the row as an array of NumPy; what is written there is moved to its device."""
        if self.backend == "numpy":
            yield row
            return
        import torch

        with torch.inference_mode(False), torch.no_grad():
            made = row.numpy() if self._on_cpu else aligned_empty(tuple(row.shape), self._kind)
            yield made
            if not self._on_cpu:
                row.copy_(torch.from_numpy(made))

    def run(self, plan: Plan, memory: NDArray[Any], row: Any, fresh: FreshRows) -> None:
        """Do the plan for all columns, on the threads that there are."""
        if not self._on_cpu and not len(memory) and draws_on_device(fresh.cipher, self._device):
            import torch

            with torch.inference_mode(False), torch.no_grad():
                drawn: Any = DeviceColumns(row, fresh)  # rows without memory ask for nothing else
                plan(drawn)
            return
        with self.written(row) as made:
            run_on_numpy(plan, memory, made, fresh, self.threads)

    def export(self, rows: NDArray[Any], *, copy: bool) -> Any:
        """Plain array of the backend, on the CPU, with the contents of rows of memory."""
        found = rows.copy() if copy else rows
        if self.backend == "numpy":
            return found
        import torch

        with torch.inference_mode(False):
            return torch.from_numpy(found)

    def load(self, exported: Any, rows: NDArray[Any]) -> None:
        """rows[...] = exported; ValueError where type, shape or precision differ."""
        given, fits = exported, isinstance(exported, np.ndarray)
        if self.backend == "torch":
            import torch

            fits = isinstance(exported, torch.Tensor)
            given = exported.detach().cpu().numpy() if fits else exported
        wanted = f"not {rows.dtype} of shape {rows.shape} of {self.backend}"
        if not fits:
            raise ValueError(f"rows is a {type(exported).__name__}, {wanted}.")
        if given.dtype != rows.dtype or given.shape != rows.shape:
            raise ValueError(f"rows is {given.dtype} of shape {given.shape}, {wanted}.")
        rows[...] = given


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


def aligned_empty(shape: tuple[int, ...], precision: str) -> NDArray[Any]:
    """Uninitialised array that starts at a multiple of 64 bytes, which is a little faster.

    NumPy asks the kernel for huge pages, which spares a long row most page faults.
    """
    size = math.prod(shape) * np.dtype(precision).itemsize
    raw = np.empty(size + _ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size].view(precision).reshape(shape)


def make_arrays(backend: str, dtype: Any, device: Any) -> RowArrays:
    """Arrays of `backend` for floats of `dtype`, float32 for None, on `device`.

    Raises:
        ValueError: as `RowArrays`, or if the precision is too low.
    """
    kind = str(dtype).removeprefix("torch.") if backend == "torch" else _name_of(dtype)
    if dtype is not None and kind not in PRECISIONS:
        raise ValueError(
            f"dtype={dtype!r} must be float32 or float64: in lower precision rounding errors would build up "
            "in the stream's memory. Cast the emitted rows instead."
        )
    return RowArrays(backend, PRECISIONS[0] if dtype is None else kind, device)


def _name_of(dtype: Any) -> str:
    try:
        return str(np.dtype(dtype).name)
    except TypeError:
        return ""
