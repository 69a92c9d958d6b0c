"""Batches of a fixed size, drawn without replacement."""

from __future__ import annotations

import numpy as np

from anechoic.batches.base import STEP, Batches, batches_of, integers, steps_of_a_pass
from anechoic.sampling import FixedSize
from anechoic.units.batch import Indices


class FixedSizeBatches(Batches):
    """Step t draws a word of 64 bits for everybody, and takes the B with the least.

    Args:
        sampling: N and B.
        period: steps that the loader counts as one pass.
        key: 32 bytes.
    """

    def __init__(self, sampling: FixedSize, period: int, key: bytes) -> None:
        self._examples, self._size, self._key = sampling.examples, sampling.batch_size, key
        self.period = period
        self.name = "fixed size"

    def batch(self, t: int) -> Indices:
        draws = integers(self._key, STEP, t)
        while True:
            words = draws.raw(self._examples)
            taken = np.flatnonzero(words <= np.partition(words, self._size - 1)[self._size - 1])
            if len(taken) == self._size:  # else two words at the border are equal
                return taken

    def size(self, t: int) -> int:
        return self._size


@batches_of.register
def _(sampling: FixedSize, key: bytes, *, period: int | None = None, shuffled: bool = True) -> Batches:
    return FixedSizeBatches(sampling, steps_of_a_pass(sampling, period), key)
