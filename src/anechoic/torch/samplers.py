"""Which examples form batch t: a function of the sampling key and t, for every sampling scheme."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from anechoic.errors import MismatchError
from anechoic.noise import derive
from anechoic.participation import Cyclic, MinSep, OncePerEpoch, Participation, Patterns
from anechoic.sampling import CyclicPoisson, FixedOrder, Poisson

Indices = NDArray[np.int64]
DOMAIN = "sampling"
# numbers of the addresses within DOMAIN: derive(key, DOMAIN, purpose, step)
_ORDER, _GROUPS, _STEP = 0, 1, 2


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
        return None if self._key is None else _generator(self._key, _ORDER).permutation(self._examples)

    def batch(self, t: int) -> Indices:
        start = t % self.period * self._size
        stop = min(start + self._size, self._examples)
        return np.arange(start, stop) if self._order is None else self._order[start:stop]

    def size(self, t: int) -> int:
        return min(self._size, self._examples - t % self.period * self._size)


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
        generator = _generator(self._key, _GROUPS)
        if self._independent:
            labels = generator.integers(self._groups, size=self._examples)
            order = np.argsort(labels, kind="stable")
            return np.split(order, np.cumsum(np.bincount(labels, minlength=self._groups))[:-1])
        deal = np.array_split(generator.permutation(self._examples), self._groups)
        return [np.sort(group) for group in deal]

    def batch(self, t: int) -> Indices:
        group = self.members[t % self._groups]
        if self._threshold >= 2**64:
            return group
        draws = _generator(self._key, _STEP, t).bit_generator.random_raw(len(group))
        return group[np.asarray(draws, dtype=np.uint64) < np.uint64(self._threshold)]

    def size(self, t: int) -> int:
        return round(self._expected)


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


def check_promise(promise: Participation, batches: Batches, steps: int, examples: int) -> None:
    """Check that no example takes part more often than is promised for its unit.

    This is necessary, and sufficient where a unit is an example. Of other kinds of promise than those of
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
                f"batch {t} breaks the promise that {promise.describe()}: an example in it took part before."
                " State what these batches do keep, form them otherwise, or make fewer steps."
            )


def _generator(key: bytes, *address: int) -> np.random.Generator:
    # 128 bits of key and 128 of counter: Philox's whole state, its block counter starting at 0
    words = np.frombuffer(derive(key, DOMAIN, *address, size=32), dtype="<u8").astype(np.uint64)
    counter = np.concatenate([np.zeros(2, np.uint64), words[2:]])
    return np.random.Generator(np.random.Philox(key=words[:2], counter=counter))
