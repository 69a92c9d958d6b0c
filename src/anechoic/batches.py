"""Which examples form batch t: a function of the sampling key and t, for every sampling scheme.

    batches = batches_of(mech.sampling, key)
    batches.batch(t)                       # indices, in NumPy; the same in every process that has the key

Where a scheme draws units, its indices are those of units, and `UnitBatches` turns them into examples.

Numbers are drawn as integers from AES-256 under the key, so that every law is exact, or within 2**-64 of it,
to all who cannot break it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import positive_int
from anechoic.errors import UnsupportedError
from anechoic.noise.integers import Integers
from anechoic.sampling import (
    BallsInBins,
    CyclicPoisson,
    FixedOrder,
    MinSepSampling,
    Poisson,
    RandomAllocation,
    Sampling,
)
from anechoic.unit_batch import Indices, UnitBatch
from anechoic.units import Units

DOMAIN = "sampling"
# numbers of the addresses within DOMAIN: derive(key, DOMAIN, purpose, step)
_ORDER, _GROUPS, _STEP, _BINS, _EPOCH, _START, _KEEP = range(7)


class Batches(ABC):
    """Base: batch t of a run as example indices.

    Attributes:
        period: steps in one pass of the loader.
        name: identifies the order together with the sampling key; saved in checkpoints.
    """

    period: int
    name: str

    @abstractmethod
    def batch(self, t: int) -> Indices:
        """Indices of the examples in batch t, shape (size,), each at most once; size 0 is possible."""

    @abstractmethod
    def size(self, t: int) -> int:
        """Examples in batch t; their expected number, rounded, where it is random."""

    def shard(self, t: int, shard: int, shards: int) -> Indices:
        """Every `shards`-th index of batch t from place `shard` on; together the shards make up the batch.

        All processes know the whole batch, so that none can fall out of step, whatever its share.
        """
        if not 0 <= shard < positive_int("shards", shards):
            raise ValueError(f"shard={shard} must lie between 0 and shards - 1 = {shards - 1}.")
        return self.batch(t)[shard::shards]

    def cells(self) -> Indices | None:
        """Cell of each example: two of different cells are never in one batch, and -1 is in none at all.

        None where any two may meet.
        """
        return None


class InOrder(Batches):
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
        return None if self._key is None else _draws(self._key, _ORDER).permutation(self._examples)

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


class Sampled(Batches):
    """Step t draws every member of group t mod groups independently with probability `rate`.

    Poisson sampling has one group. Each member is drawn where a 64-bit integer is below rate * 2**64,
    rounded down: the probability falls short of the rate by less than 2**-64 and never exceeds it.

    Args:
        sampling: N, B and the groups.
        period: steps that the loader counts as one pass.
        key: 32 bytes.
    """

    def __init__(self, sampling: Poisson | CyclicPoisson, period: int, key: bytes) -> None:
        self._examples, self._groups = sampling.examples, sampling.groups
        self._expected = sampling.expected_batch_size
        self._threshold = int(Fraction(sampling.rate) * 2**64)
        self._independent = isinstance(sampling, CyclicPoisson) and sampling.grouping == "independent"
        self._key = key
        self.period = period
        self.name = "sampled"

    @cached_property
    def members(self) -> list[Indices]:
        """Indices of every group, ascending."""
        if self._groups == 1:
            return [np.arange(self._examples)]
        draws = _draws(self._key, _GROUPS)
        if self._independent:
            labels = draws.below(self._groups, self._examples)
            order = np.argsort(labels, kind="stable")
            return np.split(order, np.cumsum(np.bincount(labels, minlength=self._groups))[:-1])
        deal = np.array_split(draws.permutation(self._examples), self._groups)
        return [np.sort(group) for group in deal]

    def batch(self, t: int) -> Indices:
        group = self.members[t % self._groups]
        if self._threshold >= 2**64:
            return group
        return group[_draws(self._key, _STEP, t).raw(len(group)) < np.uint64(self._threshold)]

    def size(self, t: int) -> int:
        return round(self._expected)

    def cells(self) -> Indices | None:
        return None if self._groups == 1 else _labels(self.members, self._examples)


class Binned(Batches):
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
        return _by_label(_draws(self._key, _BINS), self._examples, self.period)

    def batch(self, t: int) -> Indices:
        return self._members[t % self.period]

    def size(self, t: int) -> int:
        return round(self._examples / self.period)

    def cells(self) -> Indices | None:
        return _labels(self._members, self._examples)


class Allocated(Batches):
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
            draws = _draws(self._key, _EPOCH, epoch)
            self._epoch, self._members = epoch, _by_label(draws, self._examples, self.period)
        return self._members[t % self.period]

    def size(self, t: int) -> int:
        return round(self._examples / self.period)


class Separated(Batches):
    """Who joined none of the last separation - 1 batches joins with probability `rate`.

    Batch t depends on those before it, which are drawn again where they are not the ones just drawn: O(N t)
    once after a resumption, O(N) from step to step.

    Args:
        sampling: N, B and the separation.
        period: steps that the loader counts as one pass.
        key: 32 bytes.
    """

    def __init__(self, sampling: MinSepSampling, period: int, key: bytes) -> None:
        self._examples, self._separation = sampling.examples, sampling.separation
        self._expected, self._key = sampling.expected_batch_size, key
        self._rate = Fraction(sampling.rate)
        self.period = period
        self.name = "min-sep"
        self._done, self._free = 0, self._stationary()  # the first step at which an example may join
        self._batch: Indices = np.zeros(0, dtype=np.int64)

    def batch(self, t: int) -> Indices:
        if t < self._done - 1:
            self._done, self._free = 0, self._stationary()
        while self._done <= t:
            self._batch = self._next(self._done)
            self._done += 1
        return self._batch

    def size(self, t: int) -> int:
        return round(self._expected)

    def _next(self, step: int) -> Indices:
        eligible = np.flatnonzero(self._free <= step)
        draws = _draws(self._key, _STEP, step).raw(self._examples)
        joins = eligible[_below(draws[eligible], self._rate)]
        self._free[joins] = step + self._separation
        return joins

    def _stationary(self) -> Indices:
        draws = _draws(self._key, _START)
        free_now = draws.raw(self._examples)
        waits = 1 + draws.below(max(1, self._separation - 1), self._examples)
        free = _below(free_now, 1 / (1 + (self._separation - 1) * self._rate))
        return np.where(free, 0, waits)


class UnitBatches(Batches):
    """Batches over units: those of a scheme that draws units, with the examples of the drawn ones; or batches
    of examples that somebody else formed, with the units found in them.

    Args:
        units: who owns what.
        inner: batches of unit indices, or of example indices where `given`.
        key: 32 bytes, which also decide what a unit keeps under `max_examples`.
        given: whether `inner` holds examples.
        secret: whether the guarantee rests on who is drawn. Then limits do not depend on it.
    """

    def __init__(
        self, units: Units, inner: Batches, key: bytes, *, given: bool = False, secret: bool = False
    ) -> None:
        self.units, self.inner, self.given = units, inner, given
        self._key, self._secret = key, secret
        self.period = inner.period
        self.name = f"{inner.name}, of units with digest {units.digest}"

    @cached_property
    def _counts(self) -> Indices | None:
        # the groups of cyclic Poisson sampling are given away by its proof; bins are what is secret
        known = self.inner.cells() if isinstance(self.inner, Sampled) else None
        return self.units.static_counts(known) if self._secret and self.units.shared else None

    def unit_batch(self, t: int) -> UnitBatch:
        """Rows, items and limits of batch t."""
        members = self.inner.batch(t)
        size = self.units.pairs(members) if self.given else self.units.incidences(members)
        draws = np.zeros(0, dtype=np.uint64)
        if self.units.max_examples is not None:
            draws = _draws(self._key, _KEEP, t).raw(size)
        if self.given:
            return self.units.grouped(members, draws)
        return self.units.drawn(members, draws, self._counts)

    def batch(self, t: int) -> Indices:
        return self.unit_batch(t).examples

    def units_of(self, t: int) -> Indices:
        """The units that take part in batch t."""
        members = self.inner.batch(t)
        return self.units.owners_of(members) if self.given else members

    def size(self, t: int) -> int:
        if self.given:
            return self.inner.size(t)
        largest = self.units.max_examples or self.units.largest
        mean = np.minimum(self.units.sizes, largest).sum() / self.units.count
        return round(self.inner.size(t) * float(mean))

    def shard(self, t: int, shard: int, shards: int) -> Indices:
        """The rows of every `shards`-th item of batch t, item by item: none is split."""
        return self.unit_shard(t, shard, shards).examples

    def unit_shard(self, t: int, shard: int, shards: int) -> UnitBatch:
        """The same, with items and limits."""
        if not 0 <= shard < positive_int("shards", shards):
            raise ValueError(f"shard={shard} must lie between 0 and shards - 1 = {shards - 1}.")
        batch = self.unit_batch(t)
        return batch.only(range(shard, batch.count, shards))

    @cached_property
    def largest_item(self) -> int:
        """Bound on the rows that are clipped together."""
        units = self.units
        if self.given:
            found = (units.grouped(self.inner.batch(t)).largest for t in range(self.period))
            most = max(found)
        else:
            most = units.largest_own
        return most if units.max_examples is None else min(most, units.max_examples)

    @cached_property
    def unreachable(self) -> int:
        """Examples that are in no batch of any pass: their owners never meet, or their unit is left out."""
        if self.given:
            seen = [self.inner.batch(t) for t in range(self.period)]
            return self.units.examples - len(np.unique(np.concatenate(seen)))
        return int((~self.units.reachable(self.inner.cells())).sum())


def batches_of(
    sampling: Sampling, key: bytes, *, period: int | None = None, shuffled: bool = True
) -> Batches:
    """The batches of a scheme.

    Args:
        sampling: any scheme but `External`.
        key: 32 bytes, secret where the scheme is amplified.
        period: steps that count as one pass where the scheme has none of its own; None for N / B.
        shuffled: whether `FixedOrder` permutes the data (else: their own order).

    Raises:
        UnsupportedError: for a scheme without batches of its own.
    """
    if isinstance(sampling, FixedOrder):
        return InOrder(sampling, key if shuffled else None)
    if isinstance(sampling, BallsInBins):
        return Binned(sampling, key)
    if isinstance(sampling, RandomAllocation):
        return Allocated(sampling, key)
    if isinstance(sampling, (Poisson, CyclicPoisson, MinSepSampling)):
        passes = period or max(1, round(sampling.examples / sampling.batch_size))
        if isinstance(sampling, MinSepSampling):
            return Separated(sampling, passes, key)
        return Sampled(sampling, passes, key)
    raise UnsupportedError(f"{type(sampling).__name__} sampling has no batches of its own.")


def _by_label(draws: Integers, examples: int, labels: int) -> list[Indices]:
    """Indices by a label that each example draws uniformly, ascending."""
    drawn = draws.below(labels, examples)
    order = np.argsort(drawn, kind="stable")
    return np.split(order, np.cumsum(np.bincount(drawn, minlength=labels))[:-1])


def _labels(members: list[Indices], examples: int) -> Indices:
    """Number of the list that each example is in."""
    labels = np.full(examples, -1, dtype=np.int64)
    for label, group in enumerate(members):
        labels[group] = label
    return labels


def _below(draws: NDArray[np.uint64], probability: Fraction) -> NDArray[np.bool_]:
    """Which 64-bit integers are below probability * 2**64, rounded down."""
    threshold = int(probability * 2**64)
    return np.ones(len(draws), dtype=bool) if threshold >= 2**64 else draws < np.uint64(threshold)


def _draws(key: bytes, *address: int) -> Integers:
    return Integers(key, DOMAIN, *address)
