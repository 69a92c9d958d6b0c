"""PyTorch form of a stream's arrays: NumPy's operations on the CPU, the same arithmetic on other devices.

Fresh rows by AES-256 are made on the CPU and moved, those by ChaCha20 where they are wanted. On a device
every operation is a kernel of its own, so that no product is fused with a sum, and the bits are those of the
CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anechoic._validate import Array
from anechoic.noise.arrays import Plan, checked_precision
from anechoic.noise.device_rows import fill_on_device, made_here
from anechoic.noise.fresh import FreshRows
from anechoic.noise.gaussian import in_blocks
from anechoic.noise.numpy_arrays import aligned_empty, run_on_numpy

if TYPE_CHECKING:
    import torch

_CHUNK = 2**20  # columns whose products take memory at a time


class DeviceColumns:
    """All columns of a stream on one device; see `anechoic.noise.arrays.MemoryColumns`."""

    def __init__(self, memory: torch.Tensor, row: torch.Tensor, fresh: FreshRows, precision: str) -> None:
        self.memory, self.row = memory, row
        self._fresh, self._precision = fresh, precision

    def draw(self, target: torch.Tensor, *weights: float) -> None:
        import torch

        if made_here(self._fresh.cipher, target.device):
            self._draw_here(target, np.array(weights))
            return
        made, factors = aligned_empty(tuple(target.shape), self._precision), np.array(weights)

        def fill(part: slice) -> None:
            self._fresh.fill(made[part], part.start, factors)

        in_blocks(fill, len(made), torch.get_num_threads())
        target.copy_(torch.from_numpy(made))

    def _draw_here(self, target: torch.Tensor, weights: Array) -> None:
        rows, other = self._fresh.rows(weights), None
        first, weight = next(rows)
        fill_on_device(first, target, self._fresh.offset, weight)
        for row, weight in rows:
            other = target.new_empty(target.shape) if other is None else other
            fill_on_device(row, other, self._fresh.offset, weight)
            target.add_(other)

    def combine(self, weights: Array, rows: torch.Tensor, out: torch.Tensor) -> None:
        for start in range(0, out.shape[0], _CHUNK):
            here, past = out[start : start + _CHUNK], rows[:, start : start + _CHUNK]
            here.zero_()
            for factor, row in zip(self._rounded(weights), past, strict=True):
                here.add_(row * factor)

    def add(
        self,
        sums: Sequence[tuple[Array, torch.Tensor]],
        out: torch.Tensor,
        copy: torch.Tensor | None = None,
    ) -> None:
        for weights, rows in sums:
            for start in range(0, out.shape[0], _CHUNK) if len(rows) else ():
                here, past = out[start : start + _CHUNK], rows[:, start : start + _CHUNK]
                total = here.new_empty(here.shape)
                self.combine(weights, past, total)
                here.add_(total)
        if copy is not None:
            copy.copy_(out)

    def look_ahead(self, weights: Array, used: list[int], slots: list[int]) -> None:
        for start in range(0, self.row.shape[0], _CHUNK):
            here = self.memory[:, start : start + _CHUNK]
            sums = here.new_empty((len(slots), here.shape[1]))
            for factors, total in zip(weights, sums, strict=True):
                self.combine(factors, here[used[0] : used[-1] + 1], total)
            for slot, total in zip(slots, sums, strict=True):
                here[slot].copy_(total)

    def assign(self, rows: torch.Tensor, row: torch.Tensor) -> None:
        rows.copy_(row)

    def feed_back(self, weights: Array, decays: Array) -> None:
        self.add([(weights, self.memory)], self.row)
        for fade, past in zip(self._rounded(decays), self.memory, strict=True):
            past.mul_(fade).add_(self.row)

    def feed_state(self, weights: Array, transition: Array, entry: Array) -> None:
        self.add([(weights, self.memory)], self.row)
        inputs = self._rounded(entry)
        for start in range(0, self.row.shape[0], _CHUNK):  # so that the copy of the state stays small
            here, past = self.row[start : start + _CHUNK], self.memory[:, start : start + _CHUNK]
            mixed = past.new_empty(past.shape)
            for i in range(len(mixed)):
                self.combine(transition[i], past, mixed[i])
                mixed[i].add_(here * inputs[i])
            past.copy_(mixed)

    def _rounded(self, weights: Array) -> list[float]:
        rounded: list[float] = weights.astype(self._precision).tolist()
        return rounded


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

    def draws(self, cipher: str) -> bool:
        """Whether fresh rows are made on the device, and not on the CPU for it."""
        return not self._on_cpu and made_here(cipher, self._device)

    def empty(self, *shape: int) -> torch.Tensor:
        import torch

        with torch.inference_mode(False):
            if self._on_cpu:
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
            if self._on_cpu:
                run_on_numpy(plan, memory.numpy(), row.numpy(), fresh, torch.get_num_threads())
            else:
                plan(DeviceColumns(memory, row, fresh, self.precision))

    def export(self, rows: torch.Tensor, *, copy: bool) -> torch.Tensor:
        import torch

        with torch.inference_mode(False):
            plain = rows.detach().to("cpu")
            return plain.clone() if copy and self._on_cpu else plain

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
