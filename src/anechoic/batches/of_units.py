"""Batches of units that own several examples."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from anechoic.batches.base import KEEP, Batches, integers
from anechoic.units.batch import Indices, UnitBatch
from anechoic.units.ownership import Units


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
        self._units, self.inner, self.given = units, inner, given
        self._key, self._secret = key, secret
        self.period = inner.period
        self.name = f"{inner.name}, of units with digest {units.digest}"

    @property
    def units(self) -> Units:
        return self._units

    @cached_property
    def _counts(self) -> Indices | None:
        # the groups of cyclic Poisson sampling are given away by its proof; bins are what is secret
        known = self.inner.public_cells()
        return self.units.static_counts(known) if self._secret and self.units.shared else None

    def unit_batch(self, t: int) -> UnitBatch:
        """Rows, items and limits of batch t."""
        members = self.inner.batch(t)
        size = self.units.pairs(members) if self.given else self.units.incidences(members)
        draws = np.zeros(0, dtype=np.uint64)
        if self.units.max_examples is not None:
            draws = integers(self._key, KEEP, t).raw(size)
        if self.given:
            return self.units.grouped(members, draws)
        return self.units.drawn(members, draws, self._counts)

    def batch(self, t: int) -> Indices:
        return self.unit_batch(t).examples

    def units_of(self, t: int) -> Indices:
        """The units that take part in batch t."""
        members = self.inner.batch(t)
        return self.units.owners_of(members) if self.given else members

    def public_cells(self) -> Indices | None:
        """Of units where they are drawn, as `inner` has them."""
        return self.inner.public_cells()

    def size(self, t: int) -> int:
        if self.given:
            return self.inner.size(t)
        largest = self.units.max_examples or self.units.largest
        mean = np.minimum(self.units.sizes, largest).sum() / self.units.count
        return round(self.inner.size(t) * float(mean))

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
