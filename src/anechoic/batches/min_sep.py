"""Batches drawn with a least separation."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from anechoic.batches.base import START, STEP, Batches, batches_of, below, integers, steps_of_a_pass
from anechoic.sampling import MinSepSampling
from anechoic.units.batch import Indices


class MinSepBatches(Batches):
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
        draws = integers(self._key, STEP, step).raw(self._examples)
        joins = eligible[below(draws[eligible], self._rate)]
        self._free[joins] = step + self._separation
        return joins

    def _stationary(self) -> Indices:
        draws = integers(self._key, START)
        free_now = draws.raw(self._examples)
        waits = 1 + draws.below(max(1, self._separation - 1), self._examples)
        free = below(free_now, 1 / (1 + (self._separation - 1) * self._rate))
        return np.where(free, 0, waits)


@batches_of.register(MinSepSampling)
def _(sampling: MinSepSampling, key: bytes, *, period: int | None = None, shuffled: bool = True) -> Batches:
    return MinSepBatches(sampling, steps_of_a_pass(sampling, period), key)
