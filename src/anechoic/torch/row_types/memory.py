"""Where a tensor lies in memory, by which other tensors of the same numbers are known."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakIdKeyDictionary

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
    """What tells the memory of a tensor from that of others that are there."""
    own = _storage(tensor)
    return id(tensor) if own is None else own._cdata


def _storage(tensor: Tensor) -> Any:
    """None for what has none of its own."""
    try:
        return tensor.untyped_storage() if tensor.layout is torch.strided else None
    except (RuntimeError, NotImplementedError):  # inside of torch.func
        return None


class Memories:
    """Memory of tensors, for as long as it is there: a tensor is in it that lies in any of it."""

    def __init__(self) -> None:
        self._storages: dict[int, StorageWeakRef] = {}
        self._others: WeakIdKeyDictionary = WeakIdKeyDictionary()  # of tensors without storage

    def add(self, tensor: Tensor) -> Any:
        """Remember where a tensor lies: its storage, or None where it has none of its own."""
        own = _storage(tensor)
        if own is None:
            self._others[tensor] = True
        elif own._cdata not in self._storages:
            self._storages[own._cdata] = StorageWeakRef(own)
        return own

    def __contains__(self, tensor: Tensor) -> bool:
        own = _storage(tensor)
        return tensor in self._others if own is None else own._cdata in self._storages

    def take(self, other: Memories) -> None:
        """What another one holds; what is gone meanwhile is left out."""
        both = {**self._storages, **other._storages}
        self._storages = {key: kept for key, kept in both.items() if not kept.expired()}
        self._others.update(other._others)


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
