"""Batches drawn anew at every step."""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property

import numpy as np

from anechoic.batches.base import (
    GROUPS,
    STEP,
    Batches,
    batches_of,
    by_label,
    integers,
    labels_of,
    steps_of_a_pass,
)
from anechoic.sampling import CyclicPoisson, FixedSize, Poisson
from anechoic.units.batch import Indices


class PoissonBatches(Batches):
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
        self._independent = not sampling.moves_others
        self._key = key
        self.period = period
        self.name = "sampled"

    @cached_property
    def members(self) -> list[Indices]:
        """Indices of every group, ascending."""
        if self._groups == 1:
            return [np.arange(self._examples)]
        draws = integers(self._key, GROUPS)
        if self._independent:
            return by_label(draws, self._examples, self._groups)
        deal = np.array_split(draws.permutation(self._examples), self._groups)
        return [np.sort(group) for group in deal]

    def batch(self, t: int) -> Indices:
        group = self.members[t % self._groups]
        if self._threshold >= 2**64:
            return group
        return group[integers(self._key, STEP, t).raw(len(group)) < np.uint64(self._threshold)]

    def size(self, t: int) -> int:
        return round(self._expected)

    def cells(self) -> Indices | None:
        return None if self._groups == 1 else labels_of(self.members, self._examples)

    def public_cells(self) -> Indices | None:
        return self.cells()


@batches_of.register(Poisson)
@batches_of.register(CyclicPoisson)
def _(
    sampling: Poisson | CyclicPoisson, key: bytes, *, period: int | None = None, shuffled: bool = True
) -> Batches:
    return PoissonBatches(sampling, steps_of_a_pass(sampling, period), key)


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
