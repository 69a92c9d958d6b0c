"""PyTorch form of a stream's arrays: NumPy's operations on the CPU, the same arithmetic on other devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anechoic.noise.arrays import Plan, checked_precision
from anechoic.noise.device_rows import made_here
from anechoic.noise.fresh import FreshRows
from anechoic.noise.fused_columns import columns_for
from anechoic.noise.host_memory import check_device, pieces
from anechoic.noise.numpy_arrays import aligned_empty, run_on_numpy

if TYPE_CHECKING:
    import torch


class TorchArrays:
    """PyTorch rows on any device."""

    backend = "torch"

    def __init__(self, dtype: Any, device: Any) -> None:
        import torch

        dtype = torch.float32 if dtype is None else dtype
        self.precision = checked_precision(dtype, str(dtype).removeprefix("torch."))
        self._dtype: torch.dtype = getattr(torch, self.precision)
        self._device = torch.empty(0, device="cpu" if device is None else device).device
        self._on_cpu = self._device.type == "cpu"
        self.held: dict[str, Any] = {"device": self._device}  # where memory is

    def pin(self) -> None:
        check_device(self._device)
        self.held = {"pin_memory": True}

    def draws(self, cipher: str) -> bool:
        """Whether fresh rows are made on the device, and not on the CPU for it."""
        return not self._on_cpu and made_here(cipher, self._device)

    def empty(self, *shape: int) -> torch.Tensor:
        import torch

        with torch.inference_mode(False):
            if self._on_cpu:
                return torch.from_numpy(aligned_empty(shape, self.precision))
            held = self.held if len(shape) == 2 else {"device": self._device}
            return torch.empty(shape, dtype=self._dtype, **held)

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
            if self._on_cpu:
                run_on_numpy(plan, memory.numpy(), row.numpy(), fresh, torch.get_num_threads())
            else:
                for part, here in pieces(memory, len(row), len(row), row.device):
                    columns = columns_for(here, row[part], fresh.after(part.start), self.precision)
                    plan(columns)
                    columns.settle()

    def export(self, rows: torch.Tensor, *, copy: bool) -> torch.Tensor:
        import torch

        with torch.inference_mode(False):
            plain = rows.detach().to("cpu")
            return plain.clone() if copy and rows.device.type == "cpu" else plain

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
