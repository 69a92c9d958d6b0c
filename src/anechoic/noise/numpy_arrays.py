"""Arrays behind a stream, and the arithmetic of a noise step: NumPy's, also for the rows of PyTorch.

Every number of a step is made by additions and multiplications in the precision of the rows, each rounded
once, in an order that is fixed here: so it depends neither on the other columns nor on the processor, the
number of threads or the backend. Weights are rounded to that precision first. A weighted sum of rows is

    0 + w_0 x_0 + w_1 x_1 + …      from left to right, every product rounded, then every sum.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array
from anechoic.noise.fresh import FreshRows
from anechoic.noise.gaussian import FreshRow, in_blocks

_CHUNK = 2**15  # columns that are summed at a time: 128 KiB of float32
_TILE = 2**12  # columns at most whose whole memory is summed several times,
_TILE_BYTES = 2**19  # and how much of it may be: it stays in a core's own cache
_SHORT = 64  # columns below which sums are made of single operations


class NumpyColumns:
    """Some columns of the memory, shape (rows, k), and of the row being made, shape (k,), from `start` on."""

    def __init__(self, memory: NDArray[Any], row: NDArray[Any], fresh: FreshRows, start: int) -> None:
        self.memory, self.row = memory, row
        self._fresh, self._start = fresh, start

    def draw(self, target: NDArray[Any], *weights: float) -> None:
        """target = sum_j weights[j] z_{t-j}: each z times its weight in float64 and rounded, then added."""
        self._fresh.fill(target, self._start, np.array(weights))

    def combine(self, weights: Array, rows: NDArray[Any], out: NDArray[Any]) -> None:
        """out = weights @ rows; `out` does not overlap `rows`."""
        factors = weights.astype(out.dtype)
        for part in _chunks(len(out)):
            _weighted_sum(factors, rows[:, part], out[part])

    def add(
        self, sums: Sequence[tuple[Array, NDArray[Any]]], out: NDArray[Any], copy: NDArray[Any] | None = None
    ) -> None:
        """out += weights @ rows for each (weights, rows), the sum of the rows first; then copy[...] = out.

        `out` does not overlap the rows. A row of weight 1 that is alone has no entry -0, so that it is its
        own sum.
        """
        rounded = [(weights.astype(out.dtype), rows) for weights, rows in sums if len(rows)]
        total = np.empty(min(_CHUNK, len(out)), out.dtype)
        for part in _chunks(len(out)):
            here = out[part]
            for factors, rows in rounded:
                if len(factors) == 1 and factors[0] == 1:
                    here += rows[0, part]
                    continue
                _weighted_sum(factors, rows[:, part], total[: len(here)])
                here += total[: len(here)]
            if copy is not None:
                copy[part] = here

    def look_ahead(self, weights: Array, used: list[int], slots: list[int]) -> None:
        """memory[slots] = weights @ memory[used], all from what was there before.

        Args:
            weights: shape (len(slots), len(used)).
            used: rows of the memory, one after another, ascending.
            slots: rows of the memory, which may be among those used.
        """
        factors = np.asarray(weights, self.row.dtype, order="F")  # then a row is read once for all sums
        width = min(_TILE, max(_SHORT, _TILE_BYTES // (len(used) * self.row.itemsize)))
        for start in range(0, len(self.row), width):
            tile = self.memory[:, start : start + width]
            sums = np.empty((len(slots), tile.shape[1]), self.row.dtype)
            _weighted_sums(factors, tile[used[0] : used[-1] + 1], sums)
            for slot, total in zip(slots, sums, strict=True):
                tile[slot] = total

    def assign(self, rows: NDArray[Any], row: NDArray[Any]) -> None:
        """rows[...] = row, for one row or several."""
        rows[...] = row

    def feed_back(self, weights: Array, decays: Array) -> None:
        """row += weights @ memory, and then memory = decays * memory + row."""
        fades = decays.astype(self.row.dtype)
        for part in _chunks(len(self.row)):
            here, past = self.row[part], self.memory[:, part]
            self.add([(weights, past)], here)
            for fade, one in zip(fades, past, strict=True):  # row by row is faster than all in one call
                one *= fade
                one += here

    def feed_state(self, weights: Array, transition: Array, entry: Array) -> None:
        """row += weights @ memory, and then memory = transition @ memory + entry[:, None] * row."""
        kind = self.row.dtype
        factors, inputs = transition.astype(kind), entry.astype(kind)
        for part in _chunks(len(self.row)):
            here, past = self.row[part], self.memory[:, part]
            self.add([(weights, past)], here)
            mixed = np.empty(past.shape, kind)
            for i, target in enumerate(mixed):
                _weighted_sum(factors[i], past, target)
                target += inputs[i] * here
            past[...] = mixed


#: One step's work, as it is done for some of the columns.
Plan = Callable[[NumpyColumns], None]


def run_on_numpy(plan: Plan, memory: NDArray[Any], row: NDArray[Any], fresh: FreshRows, threads: int) -> None:
    """Do the plan block by block."""

    def work(part: slice) -> None:
        plan(NumpyColumns(memory[:, part], row[part], fresh, part.start))

    in_blocks(work, len(row), threads)


def _chunks(length: int) -> list[slice]:
    return [slice(start, min(start + _CHUNK, length)) for start in range(0, length, _CHUNK)]


def _weighted_sum(factors: NDArray[Any], rows: NDArray[Any], out: NDArray[Any]) -> None:
    """out = 0 + factors[0] * rows[0] + …, from left to right."""
    if len(factors) > 1 and len(out) >= _SHORT and einsum_is_plain(out.dtype.name):
        np.einsum("i,ij->j", factors, rows, out=out)
    else:
        plain_sum(factors, rows, out)


def _weighted_sums(factors: NDArray[Any], rows: NDArray[Any], out: NDArray[Any]) -> None:
    """out[k] = 0 + factors[k, 0] * rows[0] + …, from left to right."""
    if min(factors.shape) > 1 and out.shape[1] >= _SHORT and einsum_is_plain(out.dtype.name):
        np.einsum("ki,ij->kj", factors, rows, out=out)
        return
    for some, target in zip(factors, out, strict=True):
        plain_sum(some, rows, target)


def plain_sum(factors: NDArray[Any], rows: NDArray[Any], out: NDArray[Any]) -> None:
    """The same by single operations, which IEEE 754 leaves no choice."""
    if not len(factors):
        out[...] = 0
        return
    np.multiply(rows[0], factors[0], out=out)
    out += 0  # which takes the sign off a zero
    product = np.empty(len(out) if len(factors) > 1 else 0, out.dtype)
    for factor, row in zip(factors[1:], rows[1:], strict=True):
        np.multiply(row, factor, out=product)
        out += product


@functools.cache
def einsum_is_plain(precision: str) -> bool:
    """Whether `numpy.einsum` rounds every product and every sum, row after row: tried once in a process.

    It treats all columns alike, passes over each row once and needs no room for products, but where a build
    of NumPy fuses multiplication and addition it gives other bits. Then single operations are used.
    """
    numbers = np.empty((9, 1000), precision)
    FreshRow(bytes(32), 0).fill(numbers.reshape(-1), 0)
    for count, start, stop in [(9, 0, 1000), (2, 1, 66), (5, 3, 131), (8, 0, 64), (3, 7, 78), (4, 2, 514)]:
        rows = numbers[:count, start:stop]
        factors = np.ascontiguousarray(numbers[:count, 999])
        fast, plain = np.empty(stop - start, precision), np.empty(stop - start, precision)
        np.einsum("i,ij->j", factors, rows, out=fast)
        plain_sum(factors, rows, plain)
        if fast.tobytes() != plain.tobytes():
            return False
        several, table = (
            np.empty((3, stop - start), precision),
            np.asfortranarray(numbers[:3, 100 : 100 + count]),
        )
        np.einsum("ki,ij->kj", table, rows, out=several)
        for found, some in zip(several, table, strict=True):
            plain_sum(some, rows, plain)
            if found.tobytes() != plain.tobytes():
                return False
    return True
