"""Where rows are in the tensors of a call, and the context that it was made in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from anechoic.errors import UnsupportedError


class Autocast:
    """Autocast, as it was at the call."""

    def __init__(self, device: str) -> None:
        self._device = device
        self.enabled = torch.is_autocast_enabled(device)
        self._dtype = torch.get_autocast_dtype(device)

    @contextmanager
    def active(self) -> Iterator[None]:
        # a cache would keep tensors of one transform for the next
        with torch.autocast(self._device, dtype=self._dtype, enabled=self.enabled, cache_enabled=False):
            yield


def axis_of(tensor: Tensor, dimension: int) -> int:
    return dimension if tensor.dim() > dimension else 0


def axis_of_row(row: Tensor, dimension: int) -> int:
    """Where the axis of the batch belongs in a tensor that has lost it."""
    return dimension if row.dim() >= dimension else 0


def output_axis(tensor: Tensor, dimension: int) -> int | None:
    """The axis of length 1 that stands for the batch in an output of one row; None if it has no dimension."""
    if not tensor.dim():
        return None
    order = [0] if dimension == 0 else [1, 0] if tensor.dim() > 2 else [0, 1]
    for axis in order:
        if axis < tensor.dim() and tensor.shape[axis] == 1:
            return axis
    raise UnsupportedError(
        f"the model's output for one row has shape {tuple(tensor.shape)}, without an axis of length 1 for the"
        " batch: every output must have one row an example, or no dimension at all (a loss)."
    )


def merged(before: list[Tensor], made: list[Tensor], kept: Tensor) -> list[Tensor]:
    """`before`, with the rows that are `kept` from `made`; all of them where there is nothing before."""
    if not before:
        return made
    return [
        torch.where(kept.to(b.device).reshape(-1, *(1,) * (b.dim() - 1)), m, b)
        for b, m in zip(before, made, strict=True)
    ]


def like_first(tensor: Tensor, kept: Tensor) -> Tensor:
    """A tensor of rows, of which the first one that is kept stands for those that are not."""
    there = kept.to(tensor.device).reshape(-1, *(1,) * (tensor.dim() - 1))
    return torch.where(there, tensor, tensor[int(kept.nonzero()[0])])


def is_continuous(tensor: Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def check_not_packed(value: Any) -> None:
    if isinstance(value, PackedSequence):
        raise UnsupportedError(
            "the model was called with a PackedSequence, which has no row for each example: pad, and mask"
            " what lies beyond each length."
        )
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    for part in parts:
        check_not_packed(part)


def check_detached(tensors: list[Tensor]) -> None:
    if any(t.requires_grad for t in tensors):
        raise UnsupportedError(
            "an input of the model requires a gradient, and gradients by rows stop at the model's inputs:"
            " detach() it, put the module that made it into the model, or compute it under torch.no_grad()."
        )
