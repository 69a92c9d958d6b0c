"""Records that cannot be indexed, in the order in which they come, with a bound on what each owner adds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from anechoic._validate import positive_int
from anechoic.batches.base import Batches
from anechoic.errors import DesynchronizedError
from anechoic.participation.accounts import accounts_of
from anechoic.participation.base import Participation
from anechoic.torch.loading.selftest import value_of
from anechoic.units.batch import Indices
from anechoic.units.ids import content_of


class RecordStream(Dataset[Any]):
    """An iterable of records as a data set: step t is due the records t * batch_size and following.

    For an `IterableDataset`, a streaming data set of Hugging Face, a WebDataset, a file that is read line by
    line. Of an owner one record is used in a step, and only in the steps that `participation` allows; the
    others are left out, and their places in the batches stay empty. So what becomes of an owner's records
    follows from that owner's records alone, and the guarantee is that of `participation`.

        rule = MinSep(50)
        data = RecordStream(records, batch_size=100, steps=500, participation=rule, owner=lambda r: r["id"])
        engine.make_private(data_loader=DataLoader(data, batch_size=100), participation=rule, …)

    Args:
        records: gives the same records in the same order whenever it is iterated over, so that a run can be
            resumed. A pass over the loader ends where they end.
        batch_size: records that are due in a step, >= 1; that of the loader, too.
        steps: most steps of the run, >= 1.
        participation: how often, and how far apart, an owner may take part.
        owner: the id of whoever owns a record: an integer, text or bytes, of which 1 and "1" are two owners;
            None: each record is another owner's.
        record: what the loader gives out of a record, without the id for instance; None for all of it.

    Raises:
        ValueError: for an argument out of range; later, for a record whose id is missing or of another kind.
    """

    def __init__(
        self,
        records: Iterable[Any],
        *,
        batch_size: int,
        steps: int,
        participation: Participation,
        owner: Callable[[Any], Any] | None = None,
        record: Callable[[Any], Any] | None = None,
    ) -> None:
        self.batch_size, self.steps = positive_int("batch_size", batch_size), positive_int("steps", steps)
        self.records, self.participation = records, participation
        self._owner, self._record = owner, record
        if not isinstance(participation, Participation):
            raise ValueError(f"participation={participation!r} must be a Participation, such as MinSep(50).")
        if iter(records) is records:
            raise ValueError(
                "records can be iterated over only once, as a generator or a file: no run could be resumed."
                " Give what begins anew with each iter(), such as an IterableDataset."
            )
        self._first = next(iter(records), None)
        if self._first is None:
            raise ValueError("records has no record.")
        self._begin()

    def _begin(self) -> None:
        self._coming: Iterator[Any] = iter(self.records)
        self._accounts = accounts_of(self.participation, 0, self.steps)
        self._rows: dict[tuple[bytes, bytes], int] = {}
        self._seen = hashlib.blake2b()
        self._step, self.left_out = -1, 0
        self._held: dict[int, Any] = {}

    def __len__(self) -> int:
        return self.steps * self.batch_size

    def __getitem__(self, index: int) -> Any:
        if index and index not in self._held:
            raise DesynchronizedError(f"record {index} is not of the step in hand: they come once, in order.")
        found = self._held.get(index, self._first)  # the first one tells shapes, at any time
        return found if self._record is None else self._record(found)

    def used_in(self, step: int) -> Indices | None:
        """Return which records of a step are used; None where the records have ended before it."""
        if step < self._step:
            self._begin()
        try:
            while self._step < step:
                self._read()
        except BaseException:
            self._begin()  # whoever asks again reads from the begin
            raise
        return np.array(sorted(self._held), dtype=np.int64) if self._due else None

    def digest(self) -> bytes:
        """Return a digest of whose the records so far are; where none has an owner, of what they hold."""
        return self._seen.digest()

    def _read(self) -> None:
        """Read the records of the next step, and admit their owners."""
        self._step += 1
        first = self._step * self.batch_size
        due = list(islice(self._coming, self.batch_size))
        self._due = len(due)
        rows: dict[int, int] = {}  # of each owner the first record of the step
        for place, one in enumerate(due):
            owner: Any = first + place if self._owner is None else self._owner(one)
            content = content_of(owner.item() if getattr(owner, "shape", None) == () else owner)
            said = value_of(one) if self._owner is None else content
            self._seen.update(repr((first + place, said)).encode("utf-8", "surrogatepass"))
            rows.setdefault(self._rows.setdefault(content, len(self._rows)), place)
        self._accounts.grow(len(self._rows))
        admitted = self._accounts.admit(self._step, np.fromiter(rows, np.int64, len(rows)))
        places = [place for place, held in zip(rows.values(), admitted.tolist(), strict=True) if held]
        self.left_out += len(due) - len(places)
        self._held = {first + place: due[place] for place in places}


class StreamBatches(Batches):
    """The batches of a `RecordStream`: the records of each step that are used."""

    def __init__(self, stream: RecordStream) -> None:
        self._stream, self.period = stream, stream.steps
        self.name = f"records as they come, {stream.batch_size} a step, {stream.participation.describe()}"

    def batch(self, t: int) -> Indices:
        found = self._stream.used_in(t)
        return np.zeros(0, np.int64) if found is None else found

    def trace(self, t: int) -> bytes:
        return b"ended" if self._stream.used_in(t) is None else self._stream.digest()

    def size(self, t: int) -> int:
        return self._stream.batch_size

    def ended(self, t: int) -> bool:
        return self._stream.used_in(t) is None
