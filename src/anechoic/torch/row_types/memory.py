"""Where a tensor lies in memory, by which other tensors of the same numbers are known."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import Tensor

from anechoic.torch.row_types.labels import Label, RowAxis


def place(tensor: Tensor) -> Any:
    """Where its numbers are in memory; None for what has none of its own."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return None
    try:
        return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
    except RuntimeError:  # a tensor without storage, as inside of torch.func
        return None


def tensors_alive() -> list[Tensor]:
    """All tensors that Python knows of."""
    kinds = _Kinds()  # there are some 10^5.6 objects, of some hundred types
    return [found for found in gc.get_objects() if kinds[type(found)]]


class _Kinds(dict[type, bool]):
    """Whether objects of a type are tensors."""

    def __missing__(self, kind: type) -> bool:
        self[kind] = found = issubclass(kind, Tensor)
        return found


def storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


def frame(tensor: Tensor, writer: Tensor, label: Label) -> RowAxis | None:
    """The axis of a tensor's rows, where each holds in memory what was written for that row and no other."""
    if not isinstance(label, RowAxis) or label.inner != 1 or tensor.layout is not torch.strided:
        return None
    apart, rows = writer.stride(label.axis), writer.shape[label.axis]
    for axis in range(tensor.dim()):
        if tensor.stride(axis) != apart or tensor.shape[axis] != rows:
            continue
        starts = tensor.storage_offset(), writer.storage_offset()
        lengths = _extent(tensor, axis), _extent(writer, label.axis)
        ends = [start + length for start, length in zip(starts, lengths, strict=True)]
        if max(ends) - min(starts) < apart:
            return RowAxis(axis)
    return None


def _extent(tensor: Tensor, left_out: int) -> int:
    """From the first entry of a row in memory to its last one."""
    axes = (axis for axis in range(tensor.dim()) if axis != left_out)
    return sum((tensor.shape[axis] - 1) * tensor.stride(axis) for axis in axes)
