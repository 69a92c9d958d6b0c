"""PyTorch form of a stream's arrays: NumPy's operations, and rows moved to the device or drawn there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anechoic._validate import one_of
from anechoic.noise.device_rows import DeviceColumns, draws_on_device
from anechoic.noise.fresh import FreshRows
from anechoic.noise.numpy_arrays import NumpyArrays, Plan, aligned_empty, checked_precision, run_on_numpy

if TYPE_CHECKING:
    import torch


class TorchArrays:
    """PyTorch rows on any device; memory is on the CPU.

    Rows that need no memory are drawn on the device where that gives the CPU's bits. Others are moved there.
    """

    backend = "torch"

    def __init__(self, dtype: Any, device: Any) -> None:
        import torch

        dtype = torch.float32 if dtype is None else dtype
        self.precision = checked_precision(dtype, str(dtype).removeprefix("torch."))
        self._dtype: torch.dtype = getattr(torch, self.precision)
        self._device = torch.empty(0, device="cpu" if device is None else device).device
        self._on_cpu = self._device.type == "cpu"

    def empty(self, *shape: int) -> torch.Tensor:
        import torch

        with torch.inference_mode(False):
            if self._on_cpu or len(shape) == 2:
                return torch.from_numpy(aligned_empty(shape, self.precision))
            return torch.empty(shape, dtype=self._dtype, device=self._device)

    def check_row(self, row: Any, dimension: int) -> torch.Tensor:
        import torch

        if not isinstance(row, torch.Tensor) or tuple(row.shape) != (dimension,) or row.dtype != self._dtype:
            raise ValueError(f"out must be a tensor of shape ({dimension},) and type {self.precision}.")
        if row.device != self._device or not row.is_contiguous() or row.requires_grad or row.is_inference():
            raise ValueError(
                f"out must be contiguous, on {self._device}, without requires_grad, and made outside "
                "inference mode."
            )
        return row

    def run(self, plan: Plan, memory: torch.Tensor, row: torch.Tensor, fresh: FreshRows) -> None:
        import torch

        with torch.inference_mode(False), torch.no_grad():
            if not self._on_cpu and not len(memory) and draws_on_device(fresh.cipher, self._device):
                drawn: Any = DeviceColumns(row, fresh)  # rows without memory ask for nothing else
                plan(drawn)
                return
            made = row if self._on_cpu else torch.from_numpy(aligned_empty(tuple(row.shape), self.precision))
            run_on_numpy(plan, memory.numpy(), made.numpy(), fresh, torch.get_num_threads())
            if not self._on_cpu:
                row.copy_(made)

    def export(self, rows: torch.Tensor, *, copy: bool) -> torch.Tensor:
        import torch

        with torch.inference_mode(False):
            return rows.clone() if copy else rows

    def load(self, exported: Any, rows: torch.Tensor) -> None:
        import torch

        if not isinstance(exported, torch.Tensor):
            raise ValueError(f"rows is a {type(exported).__name__}, not a tensor.")
        if exported.dtype != self._dtype or exported.shape != rows.shape:
            raise ValueError(
                f"rows is {exported.dtype} of shape {tuple(exported.shape)}, not {self._dtype} of shape "
                f"{tuple(rows.shape)}."
            )
        with torch.inference_mode(False):
            rows.copy_(exported.detach())


def make_arrays(backend: str, dtype: Any, device: Any) -> NumpyArrays | TorchArrays:
    """The operations of `backend` for `dtype` on `device`.

    Raises:
        ValueError: if the backend is unknown, the precision too low, or the device not one of NumPy's.
    """
    if one_of("backend", backend, ("numpy", "torch")) == "torch":
        return TorchArrays(dtype, device)
    if device is not None and str(device) != "cpu":
        raise ValueError(f"device={device!r}: NumPy's arrays live on the CPU. Use backend='torch'.")
    return NumpyArrays(dtype)
