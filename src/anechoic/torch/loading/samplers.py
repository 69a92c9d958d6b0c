"""Batches for torch: those that the library draws, sharded, and those that somebody else formed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np
from torch.utils.data import Sampler

from anechoic._validate import positive_int
from anechoic.batches.base import Batches
from anechoic.errors import MismatchError
from anechoic.participation import Cyclic, MinSep, OncePerEpoch, Participation, Patterns
from anechoic.sampling.base import an
from anechoic.units.batch import Indices
from anechoic.units.ownership import Units


class ShardedBatches(Sampler[list[int]]):
    """A batch sampler for any DataLoader: batches `start` … `steps` - 1, or one process's share of each.

    The shares of one step are disjoint, make up its batch, and differ in size by at most one; a share may
    be empty. `PrivacyEngine` does not need this: it is for loops that make their releases themselves.

    Args:
        batches: see `anechoic.batches.batches_of`; the same key in every process.
        steps: n, >= 1.
        start: first step, as after resuming.
        shard, shards: which of how many processes this is.
    """

    def __init__(
        self, batches: Batches, steps: int, *, start: int = 0, shard: int = 0, shards: int = 1
    ) -> None:
        self._batches, self._steps = batches, positive_int("steps", steps)
        self._start = positive_int("start", start, minimum=0)
        self._shard, self._shards = shard, shards
        batches.shard(min(start, steps - 1), shard, shards)  # refuses a shard out of range now

    def __iter__(self) -> Iterator[list[int]]:
        for t in range(self._start, self._steps):
            yield self._batches.shard(t, self._shard, self._shards).tolist()

    def __len__(self) -> int:
        return max(0, self._steps - self._start)


class Given(Batches):
    """Batches that somebody else formed, repeated in their order.

    Args:
        batches: example indices of each batch.
        examples: N.

    Raises:
        ValueError: if there are none, an index is out of range, or one is twice in a batch.
    """

    def __init__(self, batches: Iterable[Iterable[int]], examples: int) -> None:
        self._batches = [np.asarray(list(batch), dtype=np.int64) for batch in batches]
        if not self._batches:
            raise ValueError("the loader's batch sampler yields no batch: give it data.")
        for t, batch in enumerate(self._batches):
            if len(batch) and not (batch.min() >= 0 and batch.max() < examples):
                raise ValueError(
                    f"batch {t} names an example outside of 0 … {examples - 1}: check the batch sampler."
                )
            if len(np.unique(batch)) < len(batch):
                raise ValueError(
                    f"batch {t} holds an example twice: it could move the sum by twice the clip norm. Let"
                    " the batch sampler draw without replacement."
                )
        self.period = len(self._batches)
        digest = hashlib.sha256()
        for batch in self._batches:
            digest.update(len(batch).to_bytes(8, "little") + batch.astype("<i8").tobytes())
        self.name = f"as given, {digest.hexdigest()}"

    def batch(self, t: int) -> Indices:
        return self._batches[t % self.period]

    def size(self, t: int) -> int:
        return len(self.batch(t))


class Owning(Batches):
    """The units that own examples of somebody else's batches.

    Args:
        units: who owns what.
        batches: of example indices.
    """

    def __init__(self, units: Units, batches: Batches) -> None:
        self._units, self._batches = units, batches
        self.period, self.name = batches.period, batches.name

    def batch(self, t: int) -> Indices:
        return self._units.owners_of(self._batches.batch(t))

    def size(self, t: int) -> int:
        return len(self.batch(t))


def check_promise(
    promise: Participation, batches: Batches, steps: int, examples: int, *, unit: str = "example"
) -> None:
    """Check that nobody takes part more often than is promised.

    Args:
        promise: what is promised of a unit.
        batches: of unit indices (see `Owning`); or of examples, where nobody said who owns them: then the
            check is necessary, and sufficient where a unit is an example.
        steps: n.
        examples: number of units, or of examples.
        unit: what the batches hold, in the message.

    Of other kinds of promise than those of
    `anechoic.participation` only the number of participations is checked.

    Raises:
        MismatchError: naming the first batch that breaks the promise.
    """
    limit = promise.max_participations_in(steps)
    last = np.full(examples, -1, dtype=np.int64)  # step, phase or epoch of the latest participation
    count = np.zeros(examples, dtype=np.int64)
    listed = [set(pattern) for pattern in promise.patterns(steps)] if isinstance(promise, Patterns) else []
    open_to = np.ones((examples, len(listed)), dtype=bool)  # patterns that still hold all steps of an example
    for t in range(steps):
        batch = batches.batch(t)
        count[batch] += 1
        broken = bool(len(batch)) and count[batch].max() > limit
        earlier = last[batch]
        if isinstance(promise, MinSep):
            broken = broken or bool(((earlier >= 0) & (t - earlier < promise.separation)).any())
            last[batch] = t
        elif isinstance(promise, Cyclic):
            broken = broken or bool(((earlier >= 0) & (earlier != t % promise.period)).any())
            last[batch] = t % promise.period
        elif isinstance(promise, OncePerEpoch):
            broken = broken or bool((earlier == t // promise.period).any())
            last[batch] = t // promise.period
        elif isinstance(promise, Patterns):
            open_to[batch] &= [t in pattern for pattern in listed]
            broken = broken or not open_to[batch].any(axis=1).all()
        if broken:
            raise MismatchError(
                f"batch {t} breaks the promise that {promise.describe()}: {an(unit)} in it took part before."
                " State what these batches do keep, form them otherwise, or make fewer steps."
            )
