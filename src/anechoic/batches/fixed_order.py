"""Batches in a fixed order."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from anechoic.batches.base import ORDER, Batches, batches_of, integers
from anechoic.sampling import FixedOrder
from anechoic.units.batch import Indices


class FixedOrderBatches(Batches):
    """Chunk t mod period of one order: that of the data, or one permutation for the whole run.

    Args:
        sampling: N, B and whether the incomplete last chunk is dropped.
        key: 32 bytes that fix the permutation; None keeps the order of the data.
    """

    def __init__(self, sampling: FixedOrder, key: bytes | None) -> None:
        self._size = sampling.batch_size
        self._examples = sampling.examples
        self._key = key
        self.period = sampling.period
        self.name = "in the order of the data" if key is None else "in one permuted order"

    @cached_property
    def _order(self) -> Indices | None:
        return None if self._key is None else integers(self._key, ORDER).permutation(self._examples)

    def batch(self, t: int) -> Indices:
        start = t % self.period * self._size
        stop = min(start + self._size, self._examples)
        return np.arange(start, stop) if self._order is None else self._order[start:stop]

    def size(self, t: int) -> int:
        return min(self._size, self._examples - t % self.period * self._size)

    def cells(self) -> Indices | None:
        place = np.arange(self._examples)
        chunk = np.where(place < self.period * self._size, place // self._size, -1)
        if self._order is None:
            return chunk
        cells = np.empty_like(chunk)
        cells[self._order] = chunk
        return cells


@batches_of.register(FixedOrder)
def _(sampling: FixedOrder, key: bytes, *, period: int | None = None, shuffled: bool = True) -> Batches:
    return FixedOrderBatches(sampling, key if shuffled else None)
