"""Batches of balls in bins."""

from __future__ import annotations

from functools import cached_property

from anechoic.batches.base import BINS, Batches, batches_of, by_label, integers, labels_of
from anechoic.sampling import BallsInBins
from anechoic.units.batch import Indices


class BinsBatches(Batches):
    """Batch t holds the examples that drew the bin t mod bins, once for the whole run.

    Args:
        sampling: N and the bins.
        key: 32 bytes.
    """

    def __init__(self, sampling: BallsInBins, key: bytes) -> None:
        self._examples, self._key = sampling.examples, key
        self.period = sampling.bins
        self.name = "balls in bins"

    @cached_property
    def _members(self) -> list[Indices]:
        return by_label(integers(self._key, BINS), self._examples, self.period)

    def batch(self, t: int) -> Indices:
        return self._members[t % self.period]

    def size(self, t: int) -> int:
        return round(self._examples / self.period)

    def cells(self) -> Indices | None:
        return labels_of(self._members, self._examples)


@batches_of.register(BallsInBins)
def _(sampling: BallsInBins, key: bytes, *, period: int | None = None, shuffled: bool = True) -> Batches:
    return BinsBatches(sampling, key)
