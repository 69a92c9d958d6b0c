"""Batches: which examples form batch t, as a function of the sampling key and t."""

from __future__ import annotations

from abc import ABC, abstractmethod
from fractions import Fraction
from functools import singledispatch

import numpy as np
from numpy.typing import NDArray

from anechoic.errors import UnsupportedError
from anechoic.noise.keystream import Integers
from anechoic.sampling import CyclicPoisson, FixedSize, MinSepSampling, Poisson
from anechoic.sampling.base import Sampling
from anechoic.units.batch import Indices, UnitBatch
from anechoic.units.ownership import Units

DOMAIN = "sampling"
# numbers of the addresses within DOMAIN: derive(key, DOMAIN, purpose, step)
ORDER, GROUPS, STEP, BINS, EPOCH, START, KEEP = range(7)


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

    def trace(self, t: int) -> bytes:
        """Return what tells batch t, and those before it, from those of other data."""
        return np.ascontiguousarray(self.batch(t)).tobytes()

    def ended(self, t: int) -> bool:
        """Return whether there is no batch t, nor one after it, as the data have ended."""
        return False

    @property
    def units(self) -> Units | None:
        """Who owns which example, where a unit owns several; None where every example is a unit."""
        return None

    @property
    def unreachable(self) -> int:
        """Examples that are in no batch of any pass, as their owners never meet or their unit is left out."""
        return 0

    @property
    def largest_item(self) -> int:
        """Bound on the rows that are clipped together."""
        return 1

    def unit_batch(self, t: int) -> UnitBatch | None:
        """Rows, items and limits of batch t where units own several examples."""
        return None

    def units_of(self, t: int) -> Indices:
        """The units that take part in batch t."""
        return self.batch(t)

    def public_cells(self) -> Indices | None:
        """The part of `cells` that the proof of amplification gives away; None for nothing."""
        return None

    def cells(self) -> Indices | None:
        """Cell of each example: two of different cells are never in one batch, and -1 is in none at all.

        None where any two may meet.
        """
        return None


def by_label(draws: Integers, examples: int, labels: int) -> list[Indices]:
    """Indices by a label that each example draws uniformly, ascending."""
    drawn = draws.below(labels, examples)
    order = np.argsort(drawn, kind="stable")
    return np.split(order, np.cumsum(np.bincount(drawn, minlength=labels))[:-1])


def labels_of(members: list[Indices], examples: int) -> Indices:
    """Number of the list that each example is in."""
    labels = np.full(examples, -1, dtype=np.int64)
    for label, group in enumerate(members):
        labels[group] = label
    return labels


def below(draws: NDArray[np.uint64], probability: Fraction) -> NDArray[np.bool_]:
    """Tell which 64-bit integers are below probability * 2**64, rounded down.

    Args:
        draws: 64-bit integers, shape (k,).
        probability: an exact fraction, >= 0.
    """
    threshold = int(probability * 2**64)
    return np.ones(len(draws), dtype=bool) if threshold >= 2**64 else draws < np.uint64(threshold)


def integers(key: bytes, *address: int) -> Integers:
    """Return random integers of one purpose and step, which follow from the key alone.

    Args:
        key: 32 secret bytes, the sampling key of a run.
        address: the purpose and the step, whole numbers >= 0: the same address gives the same integers.
    """
    return Integers(key, DOMAIN, *address)


@singledispatch
def batches_of(
    sampling: Sampling, key: bytes, *, period: int | None = None, shuffled: bool = True
) -> Batches:
    """Return the batches of a scheme; a scheme of your own registers how it forms them.

    Args:
        sampling: any scheme but `External`.
        key: 32 bytes, secret where the scheme is amplified.
        period: steps that count as one pass where the scheme has none of its own; None for N / B.
        shuffled: whether `FixedOrder` permutes the data (else: their own order).

    Raises:
        UnsupportedError: for a scheme without batches of its own.
    """
    raise UnsupportedError(f"{type(sampling).__name__} sampling has no batches of its own.")


def steps_of_a_pass(
    sampling: Poisson | CyclicPoisson | FixedSize | MinSepSampling, period: int | None
) -> int:
    """Steps that count as one pass of the loader where every step draws by itself."""
    return period or max(1, round(sampling.examples / sampling.batch_size))
