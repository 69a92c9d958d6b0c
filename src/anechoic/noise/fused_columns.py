"""Noise steps in one pass on a device: what is drawn waits for the sum that it is the beginning of.

The filters draw a row and then add memory to it, or feed it back; here both are one kernel of Triton
(`fused_kernels`). The few entries that no rectangle stands for are made afterwards: their columns are
gathered, go through the same operations as tensors of their own, and are put back.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anechoic._validate import Array
from anechoic.noise.chacha20 import ChaChaCounter
from anechoic.noise.device_columns import DeviceColumns
from anechoic.noise.device_rows import device_table, made_here, rest_of
from anechoic.noise.fresh import FreshRows, RowKeys
from anechoic.noise.fused_kernels import BLOCKS, RUNS, WARPS, kernel
from anechoic.noise.gaussian import CHACHA, FreshRow

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)
_WORDS = ChaChaCounter.block_words


class FusedColumns(DeviceColumns):
    """As `DeviceColumns`, bit for bit, where fresh rows are made by ChaCha20 on the device."""

    _waiting: tuple[torch.Tensor, FreshRow, float] | None = None

    def draw(self, target: torch.Tensor, *weights: float) -> None:
        self.settle()
        if any(weights[1:]):
            super().draw(target, *weights)
            return
        ((row, weight),) = self._fresh.rows(np.array(weights))
        self._waiting = target, row, weight

    def settle(self) -> None:
        """Make the row that waits, alone."""
        if self._waiting is None:
            return
        target, row, weight = self._waiting
        self._waiting = None
        self._launch("drawn", target, row, [weight])
        places = target.isnan().nonzero().view(-1)
        if len(places):
            target[places] = rest_of(row, places, self._fresh.offset, weight).to(target.dtype)

    def add(
        self, sums: Sequence[tuple[Array, torch.Tensor]], out: torch.Tensor, copy: torch.Tensor | None = None
    ) -> None:
        runs = [(self._rounded(weights), rows) for weights, rows in sums if len(rows)]
        alike = all(len(rows) == 1 or rows.stride(0) == self.memory.stride(0) for _, rows in runs)
        if not self._waits_for(out) or not alike or not 0 < len(runs) <= RUNS:
            self.settle()
            super().add(sums, out, copy)
            return
        import torch

        counts = [len(rows) for _, rows in runs] + [0] * (RUNS - len(runs))
        given = [rows for _, rows in runs] + [runs[0][1]] * (RUNS - len(runs))
        row, weight = self._taken()
        self._launch(
            "summed",
            out,
            row,
            [weight, *(factor for factors, _ in runs for factor in factors)],
            out if copy is None else copy,
            *given,
            torch.tensor(counts, device=out.device),
            COPIED=copy is not None,
        )
        places = out.isnan().nonzero().view(-1)
        if not len(places):
            return
        few = self._few(out, places, row, weight)
        few.add([(weights, rows[:, places]) for weights, rows in sums if len(rows)], few.row)
        out[places] = few.row
        if copy is not None:
            copy[places] = few.row

    def feed_back(self, weights: Array, decays: Array) -> None:
        if not self._waits_for(self.row):
            self.settle()
            super().feed_back(weights, decays)
            return
        row, weight = self._taken()
        self._launch(
            "fed",
            self.row,
            row,
            [weight, *self._rounded(weights), *self._rounded(decays)],
            self.memory,
            ROWS=len(self.memory),
        )
        places = self.row.isnan().nonzero().view(-1)
        if not len(places):
            return
        few = self._few(self.row, places, row, weight)
        few.feed_back(weights, decays)
        self.row[places], self.memory[:, places] = few.row, few.memory

    def _waits_for(self, out: torch.Tensor) -> bool:
        return self._waiting is not None and self._waiting[0].data_ptr() == out.data_ptr()

    def _taken(self) -> tuple[FreshRow, float]:
        (_, row, weight), self._waiting = self._waiting, None  # type: ignore[misc]
        return row, weight

    def _few(self, out: torch.Tensor, places: torch.Tensor, row: FreshRow, weight: float) -> DeviceColumns:
        """The columns at some places, with their fresh entries."""
        own = rest_of(row, places, self._fresh.offset, weight).to(out.dtype)
        return DeviceColumns(self.memory[:, places], own, self._fresh, self._precision)

    def _launch(
        self, name: str, out: torch.Tensor, row: FreshRow, factors: list[float], *given: Any, **more: Any
    ) -> None:
        import torch

        if not isinstance(row.words, ChaChaCounter):
            raise ValueError("only rows by ChaCha20 are made on a device: those by AES-256 are moved there.")
        first, skipped = divmod(self._fresh.offset, _WORDS)
        key = [word % 2**32 for word in row.words.key_words]
        stride = self.memory.stride(0) if len(self.memory) else 0  # that of runs of its rows, too
        numbers = torch.tensor([*key, first, skipped, len(out), stride], device=out.device)
        floats = torch.tensor(factors, dtype=torch.float64, device=out.device)
        programs = -(-(skipped + len(out)) // (_WORDS * BLOCKS))
        made = kernel(name)[(programs,)]
        options = {"num_warps": WARPS, "enable_fp_fusion": False}  # each product and sum rounded by itself
        made(numbers, floats, device_table(out.device), out, *given, BLOCKS=BLOCKS, **more, **options)


def columns_for(memory: torch.Tensor, row: torch.Tensor, fresh: FreshRows, precision: str) -> DeviceColumns:
    """Fused, where that is possible and right."""
    if made_here(fresh.cipher, row.device) and len(row) and fused_is_plain(row.device, precision):
        return FusedColumns(memory, row, fresh, precision)
    return DeviceColumns(memory, row, fresh, precision)


@functools.cache
def fused_is_plain(device: torch.device, precision: str) -> bool:
    """Whether kernels give the bits of single operations: tried once in a process for each device.

    A compiler that fuses all the same, or that lacks something, is noticed here, and not used.
    """
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    try:
        return gives_plain_bits(device, precision)
    except Exception as error:
        # whatever a compiler or driver raises: the single operations are as right, and slower
        logger.warning("no fused kernels of noise on %s: %s: %s", device, type(error).__name__, error)
        return False


def gives_plain_bits(device: torch.device, precision: str, count: int = 5000) -> bool:
    """Whether both kinds of step are the same, fused and not, on some columns."""
    import torch

    fresh = FreshRows(RowKeys(bytes(32), CHACHA), 3, 5)
    kind = getattr(torch, precision)
    made: list[list[torch.Tensor]] = []
    for columns in (DeviceColumns, FusedColumns):
        memory, row = (
            torch.empty((4, count), dtype=kind, device=device),
            torch.empty(count, dtype=kind, device=device),
        )
        DeviceColumns(memory, memory.view(-1), fresh, precision).draw(memory.view(-1), 1.1)
        here, found = columns(memory, row, fresh, precision), []
        here.draw(row, 0.7)
        here.feed_back(np.array([-0.3, 0.2, 0.11, -0.7]), np.array([0.99, 0.7, 0.3, 0.1]))
        found += [row.clone(), memory.clone()]
        here.draw(row, 1.3)
        here.add([(np.array([0.3]), memory[:1]), (np.array([0.7, -0.1]), memory[2:])], row, memory[1])
        found += [row.clone(), memory.clone()]
        made.append(found)
    return all(torch.equal(one, other) for one, other in zip(*made, strict=True))
