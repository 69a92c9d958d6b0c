"""The private data loader: the user's data set and workers, with batches that the ledger keeps count of."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any, cast

import numpy as np
import torch
from torch._compile import _disable_dynamo
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from anechoic._validate import positive_int
from anechoic.batches.base import Batches
from anechoic.errors import DesynchronizedError, MismatchError
from anechoic.noise import derive
from anechoic.participation.accounts import accounts_of
from anechoic.participation.base import Participation
from anechoic.runs.ledger import Delivery, ReleaseLedger
from anechoic.torch.generators import SEED_BYTES
from anechoic.torch.loading.fetching import (
    BatchPartition,
    Fetcher,
    Request,
    SameExamples,
    unchanged,
    value_of,
)
from anechoic.torch.optimizer import CorrelatedOptimizer
from anechoic.units.batch import Indices, UnitBatch, check_item_fits
from anechoic.units.ids import content_of

#: What a loader does with its workers, by the names of its arguments.
WORKERS = (
    *("num_workers", "pin_memory", "timeout", "worker_init_fn"),
    *("multiprocessing_context", "prefetch_factor", "persistent_workers"),
)


@dataclass
class BatchSource:
    """Batches and sampling key of a run, shared by its loaders; a resumed run exchanges them.

    Attributes:
        examples: N, which the data set must keep; None where nobody counted them.
        label: labels what is handed out, whose rows are on the axis that it is given.
    """

    batches: Batches
    key: bytes
    examples: int | None = None
    stability_check: SameExamples = field(default_factory=SameExamples)
    share: BatchPartition | None = None
    label: Callable[[Any, int], Any] = lambda batch, _: batch


class PrivateDataLoader(DataLoader[Any]):
    """Delivers batch t for release t, whatever the number of workers and however often the loop is left.

    Every `for` runs from the number of releases made to the end of the pass (a multiple of `len(loader)`,
    or n). A batch that was delivered and not stepped when the loop was left is delivered again. Random
    numbers drawn from random, numpy.random or torch are functions of the sampling key and t, inside the data
    set and `collate_fn` as well as between the delivery of a batch and its step(), where dropout draws them.
    What is drawn between two steps goes on where it was, and changes nothing in a release.

    Made by `PrivacyEngine.make_private`; `dataset`, `collate_fn` and `num_workers` are those of the loader
    given there. Under Poisson sampling a batch may hold no example: its tensors then have length 0, and it
    is stepped like any other (without a forward pass, if the model cannot make one).

    An example keeps its index: a data set that permutes itself between two passes (`set_epoch`) breaks the
    guarantee, since batches are drawn as indices. Another length is refused.

    Raises:
        HorizonError: on iterating when all n releases were made; a resumed run has empty passes before, as
            many as were complete when it was resumed.
        MismatchError: on iterating when the length of the data set has changed; for micro-batches smaller
            than what one unit brings to a step.
        DesynchronizedError: on fetching a batch before the last one was stepped, or through a stale iterator.
    """

    def __init__(
        self,
        source: DataLoader[Any],
        feed: BatchSource,
        ledger: ReleaseLedger,
        *,
        batch_first: bool = True,
        max_physical_batch_size: int | None = None,
    ) -> None:
        if max_physical_batch_size is not None:
            positive_int("max_physical_batch_size", max_physical_batch_size)
            if feed.share is not None:
                feed.share.check(max_physical_batch_size)
            if feed.batches.units is not None:
                check_item_fits(feed.batches.largest_item, max_physical_batch_size)
        requests = RequestSampler(feed, ledger, max_physical_batch_size)
        workers: dict[str, Any] = {name: getattr(source, name) for name in WORKERS}
        super().__init__(source.dataset, batch_sampler=requests, collate_fn=source.collate_fn, **workers)
        self.ledger = ledger
        self.max_physical_batch_size = max_physical_batch_size
        self.feed = feed
        self._source, self._requests = source, requests
        self._batch_first = batch_first or source.collate_fn is default_collate  # which stacks on axis 0
        # a generator of its own: seeding the workers must not draw from the training loop's
        own = torch.Generator()
        own.manual_seed(int.from_bytes(derive(feed.key, "workers", size=4), "little"))
        self._fetcher = Fetcher(source.dataset, source.collate_fn, self._batch_first)
        self._inner: DataLoader[Any] = DataLoader(
            self._fetcher,
            batch_sampler=cast("Any", requests),  # the fetcher understands what it yields
            collate_fn=unchanged,
            generator=own,
            **workers,
        )

    def __len__(self) -> int:
        """Batches in one pass; for micro-batches of random batches, their number at the expected size."""
        return len(self._requests)

    @_disable_dynamo  # a whole pass under torch.compile: batches are made as they are
    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        now = len(self.dataset)  # type: ignore[arg-type]
        if self.feed.examples not in (None, now):
            raise MismatchError(
                f"the data set has {now} examples, and had {self.feed.examples} at make_private: keep the"
                " data as they are during a run."
            )
        turn = self.ledger.open(self.max_physical_batch_size)
        period, ledger = self.feed.batches.period, self.ledger
        if ledger.steps > period and ledger.releases % period == 0 and now and not self.num_workers:
            self.feed.stability_check.look(self._fetcher.examples, now, self.feed.key)
        return BatchIterator(iter(self._inner), self.ledger, turn, self.feed, int(not self._batch_first))

    def in_chunks(self, max_physical_batch_size: int) -> PrivateDataLoader:
        """Return a loader of micro-batches of at most `max_physical_batch_size` examples, no unit's split."""
        given: Any = {"batch_first": self._batch_first, "max_physical_batch_size": max_physical_batch_size}
        return PrivateDataLoader(self._source, self.feed, self.ledger, **given)


class RequestSampler(Sampler[Request]):
    """Batch sampler of the inner loader: the rest of the pass, from the release count on."""

    def __init__(self, feed: BatchSource, ledger: ReleaseLedger, most: int | None) -> None:
        self.feed, self.ledger, self.max_rows = feed, ledger, most

    def __iter__(self) -> Iterator[Request]:
        batches, key = self.feed.batches, self.feed.key
        start, period = self.ledger.releases, batches.period
        for step in range(start, min((start // period + 1) * period, self.ledger.steps)):
            if batches.ended(step):
                return
            if self.feed.share is not None:
                yield from self._shared(step, self.feed.share)
                continue
            whole = batches.unit_batch(step)
            if whole is not None:
                units: list[UnitBatch] | list[None] = whole.parts(self.max_rows)
                parts = [part.examples.tolist() for part in units if part is not None]
            else:
                parts = split_evenly(batches.batch(step).tolist(), self.max_rows)
                units = [None] * len(parts)
            for chunk, (indices, part) in enumerate(zip(parts, units, strict=True)):
                seed = derive(key, "augment", step, chunk, size=SEED_BYTES)
                yield Request(Delivery(step, len(indices), chunk, len(parts), units=part), indices, seed)

    def _shared(self, step: int, share: BatchPartition) -> Iterator[Request]:
        """Yield this process's parts of batch `step`, at least one request: every process steps it."""
        process_parts = share.process_parts(self.feed.batches, step, self.max_rows)
        for chunk, portion in enumerate(process_parts):
            numbers = tuple(portion.numbers) or (share.rank,)
            seeds = [derive(self.feed.key, "augment", step, i, size=SEED_BYTES) for i in portion.numbers]
            delivery = Delivery(
                *(step, len(portion.indices), chunk, len(process_parts)),
                units=portion.units,
                parts=portion.sizes,
                numbers=numbers,
            )
            seed = derive(self.feed.key, "collate", step, numbers[0], size=SEED_BYTES)
            yield Request(delivery, portion.indices, seed, tuple(seeds))

    def __len__(self) -> int:
        batches, most, share = self.feed.batches, self.max_rows, self.feed.share
        if most is None:
            return batches.period
        sizes = map(batches.size, range(batches.period))
        if share is not None:
            return sum(len(share.groups(-(-size // share.rows), share.rows, most)) for size in sizes)
        return sum(max(1, -(-size // most)) for size in sizes)


class BatchIterator(Iterator[Any]):
    """Iterate over batches in the main process; each is reported to the ledger as it is delivered."""

    def __init__(
        self, fetched: Iterator[Any], ledger: ReleaseLedger, turn: int, feed: BatchSource, axis: int
    ) -> None:
        self._fetched, self._ledger, self._turn, self._feed, self._axis = fetched, ledger, turn, feed, axis

    @_disable_dynamo
    def __next__(self) -> Any:
        self._ledger.check_turn(self._turn)
        asked, batch = next(self._fetched)
        self._ledger.deliver(self._turn, asked.delivery)
        return self._feed.label(batch, self._axis)


def split_evenly(indices: list[int], most: int | None) -> list[list[int]]:
    """Split `indices` into as few parts of at most `most` as possible, equal in length to within one."""
    if most is None or len(indices) <= most:
        return [indices]
    count = -(-len(indices) // most)
    short, long = divmod(len(indices), count)
    ends = [i * short + min(i, long) for i in range(count + 1)]
    return [indices[start:end] for start, end in pairwise(ends)]


class BatchMemoryManager(nullcontext[PrivateDataLoader]):
    """Context manager with Opacus's arguments: the same run, to rounding, with less memory.

    step() after a micro-batch that is not the last only adds up its clipped sums, and returns None; the
    release comes with the last. Each micro-batch knows its place when it is delivered, so a loop that is left
    early leaves no signal behind: a half-summed batch is refused until `optimizer.abandon_batch()`.

    Args:
        data_loader, optimizer: those of `make_private`, or what Accelerate or Fabric made of the optimizer.
        max_physical_batch_size: >= 1.

    Raises:
        MismatchError: if loader and optimizer are not those of one run, or one unit brings more examples to a
            step than fit into a micro-batch: they are clipped together.

    Example:
        with BatchMemoryManager(data_loader=loader, max_physical_batch_size=64, optimizer=optimizer) as parts:
            for x, y in parts:
                optimizer.zero_grad()
                criterion(model(x), y).backward()
                optimizer.step()
    """

    def __init__(self, *, data_loader: Any, max_physical_batch_size: int, optimizer: Any) -> None:
        inner = optimizer  # Accelerate's prepare and Fabric's setup wrap it, and hand step() on
        if not isinstance(optimizer, CorrelatedOptimizer):
            inner = getattr(optimizer, "optimizer", None)
        if not isinstance(data_loader, PrivateDataLoader) or not isinstance(inner, CorrelatedOptimizer):
            raise MismatchError(
                f"data_loader is a {type(data_loader).__name__} and optimizer a {type(optimizer).__name__}:"
                " pass the two that anechoic.torch.PrivacyEngine.make_private returned."
            )
        if data_loader.ledger is not inner.ledger:
            raise MismatchError("data_loader and optimizer are of two runs: pass those of one make_private.")
        super().__init__(data_loader.in_chunks(max_physical_batch_size))


class RecordStream(Dataset[Any]):
    """An iterable of records as a data set: step t is due the records t * batch_size and following.

    For an `IterableDataset`, a streaming data set of Hugging Face, a WebDataset, a class whose `__iter__`
    opens a file. Of an owner one record is used in a step, and only in the steps that `participation` allows.
    The others are left out, and their places in the batches stay empty. So what becomes of an owner's records
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
