"""Batches that are cut to a size, and padded to it."""

from __future__ import annotations

import numpy as np

from anechoic.batches.base import CUT, Batches, batches_of, integers
from anechoic.sampling.poisson import Truncated
from anechoic.units.batch import Indices


class Cut(Batches):
    """Of more than `size` members of a batch, a uniform draw keeps `size`.

    Args:
        inner: what is cut.
        size: >= 1.
        key: 32 bytes.
    """

    def __init__(self, inner: Batches, size: int, key: bytes) -> None:
        self._inner, self._key = inner, key
        self.padded: int | None = size
        self._size = size
        self.period = inner.period
        self.name = f"{inner.name}, cut and padded to {size}"

    def batch(self, t: int) -> Indices:
        members = self._inner.batch(t)
        if len(members) <= self._size:
            return members
        return np.sort(members[integers(self._key, CUT, t).permutation(len(members))[: self._size]])

    def size(self, t: int) -> int:
        return self._inner.size(t)

    def cells(self) -> Indices | None:
        return self._inner.cells()

    def public_cells(self) -> Indices | None:
        return self._inner.public_cells()


@batches_of.register
def _(sampling: Truncated, key: bytes, *, period: int | None = None, shuffled: bool = True) -> Batches:
    inner = batches_of(sampling.inner, key, period=period, shuffled=shuffled)
    return Cut(inner, sampling.max_batch_size, key)
