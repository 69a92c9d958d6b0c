"""Batches of random allocation."""

from __future__ import annotations

from anechoic.batches.base import EPOCH, Batches, batches_of, by_label, integers
from anechoic.sampling import RandomAllocation
from anechoic.units.batch import Indices


class AllocatedBatches(Batches):
    """Every example draws one step of each epoch, anew in every epoch.

    Args:
        sampling: N and the steps of an epoch.
        key: 32 bytes.
    """

    def __init__(self, sampling: RandomAllocation, key: bytes) -> None:
        self._examples, self._key = sampling.examples, key
        self.period = sampling.period
        self.name = "random allocation"
        self._epoch, self._members = -1, list[Indices]()

    def batch(self, t: int) -> Indices:
        epoch = t // self.period
        if epoch != self._epoch:
            draws = integers(self._key, EPOCH, epoch)
            self._epoch, self._members = epoch, by_label(draws, self._examples, self.period)
        return self._members[t % self.period]

    def size(self, t: int) -> int:
        return round(self._examples / self.period)


@batches_of.register(RandomAllocation)
def _(sampling: RandomAllocation, key: bytes, *, period: int | None = None, shuffled: bool = True) -> Batches:
    return AllocatedBatches(sampling, key)
