"""Arrays behind a stream: the few operations that a noise step needs, and their NumPy form."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array, one_of
from anechoic.noise.gaussian import available_threads, in_blocks, seed_of

PRECISIONS = ("float32", "float64")
_ALIGNMENT = 64


class Arrays(Protocol):
    """Rows of a stream, shape (m,), and its memory, shape (rows, m), on one backend.

    Coefficients arrive in float64 and are rounded to the precision of the rows here.
    """

    backend: str
    precision: str

    def empty(self, *shape: int) -> Any:
        """Uninitialised memory."""

    def check_row(self, row: Any, dimension: int) -> Any:
        """`row` if a stream may write into it; ValueError otherwise."""

    def fill_normal(self, row: Any, scale: float, key: bytes, step: int, shard: int) -> None:
        """row = scale * z, with z the fresh row at (key, step, shard)."""

    def fill_sum(self, row: Any, weights: Array, key: bytes, step: int, shard: int) -> None:
        """row = sum_j weights[j] z_j, with z_j the fresh row at (key, step - j, shard); weights[0] > 0."""

    def combine(self, weights: Array, rows: Any, out: Any) -> None:
        """out = weights @ rows; `out` does not overlap `rows`."""

    def assign(self, rows: Any, row: Any) -> None:
        """rows[...] = row, for one row or several."""

    def feed_back(self, row: Any, rows: Any, weights: Array, decays: Array) -> None:
        """row += weights @ rows, and then rows = decays * rows + row."""

    def feed_state(self, row: Any, rows: Any, weights: Array, transition: Array, entry: Array) -> None:
        """row += weights @ rows, and then rows = transition @ rows + entry[:, None] * row."""

    def export(self, rows: Any, *, copy: bool) -> Any:
        """Plain array on the CPU with the contents of `rows`."""

    def load(self, exported: Any, rows: Any) -> None:
        """rows[...] = exported; ValueError where type, shape or precision differ."""


def make_arrays(backend: str, dtype: Any, device: Any) -> Arrays:
    """The operations of `backend` for `dtype` on `device`.

    Raises:
        ValueError: if the backend is unknown, the precision too low, or the device not one of NumPy's.
        GuaranteeError: if this version of PyTorch keeps its generator state in an unknown layout.
    """
    if one_of("backend", backend, ("numpy", "torch")) == "torch":
        from anechoic.noise.torch_arrays import TorchArrays

        return TorchArrays(dtype, device)
    if device is not None and str(device) != "cpu":
        raise ValueError(f"device={device!r}: NumPy's arrays live on the CPU. Use backend='torch'.")
    return NumpyArrays(dtype)


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


def aligned_empty(shape: tuple[int, ...], precision: str) -> NDArray[Any]:
    """Uninitialised array that starts at a multiple of 64 bytes.

    Vector kernels may round differently where alignment differs, which would make a resumed run differ from
    an uninterrupted one. NumPy asks the kernel for huge pages, which spares a long row most page faults.
    """
    size = math.prod(shape) * np.dtype(precision).itemsize
    raw = np.empty(size + _ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size].view(precision).reshape(shape)


class NumpyArrays:
    """NumPy rows; fresh ones by Philox, from 256 derived bits a block."""

    backend = "numpy"

    def __init__(self, dtype: Any) -> None:
        try:
            name = np.dtype(np.float32 if dtype is None else dtype).name
        except TypeError:
            name = ""
        self.precision = checked_precision(dtype, name)
        self._dtype = np.dtype(self.precision)

    def empty(self, *shape: int) -> NDArray[Any]:
        return aligned_empty(shape, self.precision)

    def check_row(self, row: Any, dimension: int) -> NDArray[Any]:
        if not isinstance(row, np.ndarray) or row.shape != (dimension,) or row.dtype != self._dtype:
            raise ValueError(f"out must be a NumPy array of shape ({dimension},) and type {self.precision}.")
        if not (row.flags.c_contiguous and row.flags.writeable):
            raise ValueError("out must be contiguous and writeable.")
        return row

    def fill_normal(self, row: NDArray[Any], scale: float, key: bytes, step: int, shard: int) -> None:
        def fill(block: int, part: slice) -> None:
            self._draw(row[part], scale, key, step, shard, block)

        in_blocks(fill, len(row), available_threads())

    def fill_sum(self, row: NDArray[Any], weights: Array, key: bytes, step: int, shard: int) -> None:
        def fill(block: int, part: slice) -> None:
            here = row[part]
            self._draw(here, weights[0], key, step, shard, block)
            other = aligned_empty(here.shape, self.precision)
            for j in np.flatnonzero(weights[1:]).tolist():
                self._draw(other, weights[j + 1], key, step - j - 1, shard, block)
                here += other

        in_blocks(fill, len(row), available_threads())

    def _draw(self, out: NDArray[Any], scale: float, key: bytes, step: int, shard: int, block: int) -> None:
        """out = scale times one block of a fresh row."""
        bits = 8 * self._dtype.itemsize
        words = np.frombuffer(seed_of(key, step, shard, block, bits=bits, size=32), dtype="<u8")
        # the low half of the counter counts the outputs, the high half is part of the address
        counter = np.concatenate([np.zeros(2, np.uint64), words[2:].astype(np.uint64)])
        source = np.random.Philox(key=words[:2].astype(np.uint64), counter=counter)
        np.random.Generator(source).standard_normal(out=out, dtype=self._dtype.type)
        if scale != 1.0:
            out *= self._dtype.type(scale)

    def combine(self, weights: Array, rows: NDArray[Any], out: NDArray[Any]) -> None:
        np.dot(weights.astype(self._dtype), rows, out=out)

    def assign(self, rows: NDArray[Any], row: NDArray[Any]) -> None:
        rows[...] = row

    def feed_back(self, row: NDArray[Any], rows: NDArray[Any], weights: Array, decays: Array) -> None:
        factors = weights.astype(self._dtype)
        fades = decays.astype(self._dtype)[:, None]

        def feed(_: int, part: slice) -> None:
            here, past = row[part], rows[:, part]
            here += np.einsum("i,ij->j", factors, past)
            past *= fades
            past += here

        in_blocks(feed, len(row), available_threads())

    def feed_state(
        self, row: NDArray[Any], rows: NDArray[Any], weights: Array, transition: Array, entry: Array
    ) -> None:
        factors = weights.astype(self._dtype)
        both = np.column_stack([transition, entry]).astype(self._dtype)

        def feed(_: int, part: slice) -> None:
            here, past = row[part], rows[:, part]
            here += np.einsum("i,ij->j", factors, past)
            past[...] = np.einsum("ik,kj->ij", both, np.concatenate([past, here[None]]))

        in_blocks(feed, len(row), available_threads())

    def export(self, rows: NDArray[Any], *, copy: bool) -> NDArray[Any]:
        return rows.copy() if copy else rows

    def load(self, exported: Any, rows: NDArray[Any]) -> None:
        if not isinstance(exported, np.ndarray):
            raise ValueError(f"rows is a {type(exported).__name__}, not a NumPy array.")
        if exported.dtype != self._dtype or exported.shape != rows.shape:
            raise ValueError(
                f"rows is {exported.dtype} of shape {exported.shape}, not {self.precision} of {rows.shape}."
            )
        rows[...] = exported
