"""The arithmetic of a noise step on a device: every operation is a kernel of its own.

So no product is fused with a sum, and the bits are those of the CPU. Fresh rows by AES-256 are made on the
CPU and moved, those by ChaCha20 where they are wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from anechoic._validate import Array
from anechoic.noise.device_rows import fill_on_device, made_here
from anechoic.noise.fresh import FreshRows
from anechoic.noise.gaussian import in_blocks
from anechoic.noise.numpy_arrays import aligned_empty

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

    def settle(self) -> None:
        """Finish what was put off, before anything else is read or written: nothing here."""

    def _draw_here(self, target: torch.Tensor, weights: Array) -> None:
        rows, other = self._fresh.rows(weights), None
        first, weight = next(rows)
        fill_on_device(first, target, self._fresh.offset, weight)
        for row, weight in rows:
            other = target.new_empty(target.shape) if other is None else other
            fill_on_device(row, other, self._fresh.offset, weight)
            target.add_(other)

    def combine(self, weights: Array, rows: torch.Tensor, out: torch.Tensor) -> None:
        self.settle()
        for start in range(0, out.shape[0], _CHUNK):
            here, past = out[start : start + _CHUNK], rows[:, start : start + _CHUNK]
            here.zero_()
            for factor, row in zip(self._rounded(weights), past, strict=True):
                here.add_(row * factor)

    def add(
        self, sums: Sequence[tuple[Array, torch.Tensor]], out: torch.Tensor, copy: torch.Tensor | None = None
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
        self.settle()
        for start in range(0, self.row.shape[0], _CHUNK):
            here = self.memory[:, start : start + _CHUNK]
            sums = here.new_empty((len(slots), here.shape[1]))
            for factors, total in zip(weights, sums, strict=True):
                self.combine(factors, here[used[0] : used[-1] + 1], total)
            for slot, total in zip(slots, sums, strict=True):
                here[slot].copy_(total)

    def assign(self, rows: torch.Tensor, row: torch.Tensor) -> None:
        self.settle()
        rows.copy_(row)

    def feed_back(self, weights: Array, decays: Array) -> None:
        self.add([(weights, self.memory)], self.row)
        for fade, past in zip(self._rounded(decays), self.memory, strict=True):
            past.mul_(fade).add_(self.row)

    def feed_state(self, weights: Array, transition: Array, entry: Array) -> None:
        self.settle()
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
