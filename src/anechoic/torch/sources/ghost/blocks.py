"""The gradient of one row of a wide linear layer, in blocks: norms and multiples in bounded memory.

With x (positions, inputs) and a (positions, outputs), in their own dtype, the gradient is a' x. Blocks are
converted to float64 one after the other, so that no more than about `BLOCK` bytes are made at a time,
however long the row and however wide the layer.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

#: Bytes of float64 copies and products that are made at a time.
BLOCK = 2**24
#: Positions or features of a block, at most.
SIDE = 512


def slices(size: int, step: int) -> Iterator[slice]:
    """Cut [0, size) into slices of `step`."""
    for start in range(0, size, max(step, 1)):
        yield slice(start, min(start + max(step, 1), size))


def height(width: int) -> int:
    """Positions of a block whose factors have `width` features together."""
    return max(1, BLOCK // (8 * max(width, 1)))


def by_positions(x: Tensor, a: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield both factors by blocks of positions, float64."""
    for places in slices(len(x), height(x.shape[1] + a.shape[1])):
        yield x[places].double(), a[places].double()


def by_products(x: Tensor, a: Tensor) -> Tensor:
    """Squared norm of a' x from the products of positions: sum_ts <x_t, x_s> <a_t, a_s>."""
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    parts = list(slices(len(x), SIDE))
    for i, one in enumerate(parts):
        for other in parts[: i + 1]:
            # one axis after the other: no longer a chain of additions than there are positions
            both = (_products(x, one, other) * _products(a, one, other)).sum(1).sum(0)
            total += both if other is one else 2 * both
    return total


def by_entries(x: Tensor, a: Tensor) -> Tensor:
    """Squared norm of a' x from its entries, some outputs after the others."""
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    for outputs, inputs in _tiles(x, a):
        total += _entries(x[:, inputs], a[:, outputs]).square().sum()
    return total


def add(total: Tensor, x: Tensor, a: Tensor, factor: Tensor) -> None:
    """Add `factor` * a' x to `total`, shape (outputs, inputs), float64."""
    for outputs, inputs in _tiles(x, a):
        total[outputs, inputs] += factor * _entries(x[:, inputs], a[:, outputs])


def _tiles(x: Tensor, a: Tensor) -> Iterator[tuple[slice, slice]]:
    """Outputs and inputs of a part of the gradient, about square and a quarter of a block."""
    inputs = min(x.shape[1], 2 * SIDE)
    for outputs in slices(a.shape[1], height(4 * inputs)):
        for wide in slices(x.shape[1], inputs):
            yield outputs, wide


def _products(factor: Tensor, one: slice, other: slice) -> Tensor:
    """Products of some positions with some others."""
    total = torch.zeros(len(factor[one]), len(factor[other]), dtype=torch.float64, device=factor.device)
    for features in slices(factor.shape[1], height(4 * SIDE)):
        total += factor[one, features].double() @ factor[other, features].double().t()
    return total


def _entries(x: Tensor, a: Tensor) -> Tensor:
    """a' x, positions in blocks."""
    total = torch.zeros(a.shape[1], x.shape[1], dtype=torch.float64, device=x.device)
    for places in slices(len(x), height(4 * (x.shape[1] + a.shape[1]))):
        total += a[places].double().t() @ x[places].double()
    return total
