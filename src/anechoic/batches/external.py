"""External batches of examples, and of the units that own them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from anechoic.batches.base import Batches
from anechoic.errors import MismatchError
from anechoic.participation.accounts import accounts_of
from anechoic.participation.base import Participation
from anechoic.sampling.base import an
from anechoic.units.batch import Indices
from anechoic.units.ownership import Units


class ExternalBatches(Batches):
    """Batches that were formed elsewhere, repeated in their order.

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


class OwnersOfBatches(Batches):
    """Units that own the examples of external batches.

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
        batches: of unit indices (see `OwnersOfBatches`); or of examples, where no owners are given: then
            the check is necessary, and sufficient where a unit is an example.
        steps: n.
        examples: number of units, or of examples.
        unit: what the batches hold, in the message.

    Raises:
        MismatchError: naming the first batch that breaks the promise.
    """
    accounts = accounts_of(promise, examples, steps)
    for t in range(steps):
        if not accounts.admit(t, batches.batch(t)).all():
            raise MismatchError(
                f"batch {t} breaks the promise that {promise.describe()}: {an(unit)} in it took part before."
                " State what these batches do keep, form them otherwise, or make fewer steps."
            )
