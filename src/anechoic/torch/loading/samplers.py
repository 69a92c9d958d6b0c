"""Batches as a batch sampler of torch, whole or in shards."""

from __future__ import annotations

from collections.abc import Iterator

from torch.utils.data import Sampler

from anechoic._validate import positive_int
from anechoic.batches.base import Batches


class ShardedBatches(Sampler[list[int]]):
    """A batch sampler for any DataLoader: batches `start` … `steps` - 1, or one process's share of each.

    The shares of one step are disjoint, make up its batch, and differ in size by at most one; a share may
    be empty. `PrivacyEngine` does not need this: it is for loops that make their releases themselves.

    Args:
        batches: see `anechoic.extend.batches_of`; the same key in every process.
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
