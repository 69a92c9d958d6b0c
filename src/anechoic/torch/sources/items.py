"""Items: what the rows of one unit add together, before it is clipped."""

from __future__ import annotations

import torch
from torch import Tensor

from anechoic.units.batch import UnitBatch


def item_gradients(samples: list[Tensor], batch: UnitBatch) -> list[Tensor]:
    """Gradients of the rows of each item, summed and scaled.

    Args:
        samples: one tensor a parameter, shape (rows, *parameter).
        batch: which rows make up which item.

    Returns:
        One tensor a parameter, shape (items, *parameter).
    """
    if not samples:
        return []
    items = torch.from_numpy(batch.items).to(samples[0].device)
    scales = torch.from_numpy(batch.scales).to(samples[0].device)
    found = []
    for sample in samples:
        total = sample.new_zeros((batch.count, *sample.shape[1:])).index_add_(0, items, sample)
        found.append(total.mul_(scales.to(total.dtype).reshape(-1, *(1,) * (total.dim() - 1))))
    return found
