"""The private data loader: the user's data set and workers, with batches that the ledger keeps count of."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch._compile import _disable_dynamo
from torch.utils.data import DataLoader, Sampler

from anechoic._validate import positive_int
from anechoic.batches.base import Batches
from anechoic.errors import MismatchError
from anechoic.noise import derive
from anechoic.runs.ledger import Delivery, ReleaseLedger
from anechoic.torch.loading.fetching import Fetcher, Request, unchanged
from anechoic.torch.loading.selftest import SameExamples
from anechoic.torch.randomness.generators import SEED_BYTES
from anechoic.torch.row_types.numbers import with_numbers
from anechoic.units.batch import UnitBatch, check_item_fits


@dataclass
class Feed:
    """What all loaders of a run read from; a resumed run exchanges batches and key.

    Attributes:
        examples: N, which the data set must keep; None where nobody counted them.
        same: looks whether they keep their places.
    """

    batches: Batches
    key: bytes
    examples: int | None = None
    same: SameExamples = field(default_factory=SameExamples)


class PrivateDataLoader(DataLoader[Any]):
    """Delivers batch t for release t, whatever the number of workers and however often the loop is left.

    Every `for` runs from the number of releases made to the end of the pass (a multiple of `len(loader)`,
    or n). A batch that was delivered and not stepped when the loop was left is delivered again. Random
    numbers drawn from random, numpy.random or torch are functions of the sampling key and t, inside the data
    set and `collate_fn` as well as between the delivery of a batch and its step(), where dropout draws them.
    What is drawn between two steps goes on where it was, and changes nothing in a release.

    Made by `PrivacyEngine.make_private`; `dataset`, `collate_fn` and `num_workers` are those of the loader
    given there. Under Poisson sampling a batch may hold no example: its tensors then have length 0, and it
    is stepped like any other (without a forward pass, if the model cannot make one). Where batches are padded
    (`Poisson.at_most`), all have one size: rows that add nothing stand at the end.

    An example keeps its index: a data set that permutes itself between two passes (`set_epoch`) breaks the
    guarantee, since batches are drawn as indices. Another length is refused. Without workers two examples,
    which the key draws, are fetched again at the beginning of each pass, and a warning says if they changed.

    Args:
        source: the user's loader.
        feed: which examples form batch t, and the sampling key.
        ledger: the run's ledger.
        batch_first: whether the batch is the first dimension of tensors.
        max_physical_batch_size: largest micro-batch delivered, or None for whole batches.

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
        feed: Feed,
        ledger: ReleaseLedger,
        *,
        batch_first: bool = True,
        max_physical_batch_size: int | None = None,
    ) -> None:
        if max_physical_batch_size is not None:
            positive_int("max_physical_batch_size", max_physical_batch_size)
            if feed.batches.units is not None:
                check_item_fits(feed.batches.largest_item, max_physical_batch_size)
        requests = Requests(feed, ledger, max_physical_batch_size)
        workers: dict[str, Any] = {
            "num_workers": source.num_workers,
            "pin_memory": source.pin_memory,
            "timeout": source.timeout,
            "worker_init_fn": source.worker_init_fn,
            "multiprocessing_context": source.multiprocessing_context,
            "prefetch_factor": source.prefetch_factor,
            "persistent_workers": source.persistent_workers,
        }
        super().__init__(
            source.dataset, batch_sampler=_Indices(requests), collate_fn=source.collate_fn, **workers
        )
        self.ledger = ledger
        self.max_physical_batch_size = max_physical_batch_size
        self.feed = feed
        self._source, self._requests, self._batch_first = source, requests, batch_first
        # a generator of its own: seeding the workers must not draw from the training loop's
        own = torch.Generator()
        own.manual_seed(int.from_bytes(derive(feed.key, "workers", size=4), "little"))
        self._fetcher = Fetcher(source.dataset, source.collate_fn, batch_first)
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
                f"the data set has {now} examples, and had {self.feed.examples} at make_private: batches are"
                " drawn for that number, and an example must keep its index. Keep the data as they are"
                " during a run."
            )
        turn = self.ledger.open(self.max_physical_batch_size)
        period, ledger = self.feed.batches.period, self.ledger
        if ledger.steps > period and ledger.releases % period == 0 and now and not self.num_workers:
            self.feed.same.look(self._fetcher.examples, now, ledger.derived)
        return _Deliveries(iter(self._inner), self.ledger, turn)

    def in_chunks(self, max_physical_batch_size: int) -> PrivateDataLoader:
        """The same run in micro-batches of at most `max_physical_batch_size` examples, no unit's split."""
        return PrivateDataLoader(
            self._source,
            self.feed,
            self.ledger,
            batch_first=self._batch_first,
            max_physical_batch_size=max_physical_batch_size,
        )


class Requests(Sampler[Request]):
    """Batch sampler of the inner loader: what remains of the pass, from the release count on."""

    def __init__(self, feed: Feed, ledger: ReleaseLedger, most: int | None) -> None:
        self.feed, self.ledger, self.most = feed, ledger, most

    def __iter__(self) -> Iterator[Request]:
        batches, key = self.feed.batches, self.feed.key
        start, period = self.ledger.releases, batches.period
        for step in range(start, min((start // period + 1) * period, self.ledger.steps)):
            units: list[UnitBatch] | list[None]
            whole = batches.unit_batch(step)
            if whole is not None:
                units = whole.parts(self.most)
                parts = [part.examples.tolist() for part in units]
                padding = [0] * len(parts)
            else:
                parts, padding = padded(batches.batch(step).tolist(), batches.padded, self.most)
                units = [None] * len(parts)
            for chunk, (indices, part) in enumerate(zip(parts, units, strict=True)):
                seed = derive(key, "augment", step, chunk, size=SEED_BYTES)
                yield Request(step, chunk, len(parts), indices, seed, part, padding[chunk])

    def __len__(self) -> int:
        batches, most = self.feed.batches, self.most
        if most is None:
            return batches.period
        return sum(max(1, -(-(batches.padded or batches.size(t)) // most)) for t in range(batches.period))


class _Indices(Sampler[list[int]]):
    """The same batches as plain index lists, for whoever looks at `loader.batch_sampler`."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    def __iter__(self) -> Iterator[list[int]]:
        return (request.indices for request in self._requests)

    def __len__(self) -> int:
        return len(self._requests)


class _Deliveries(Iterator[Any]):
    """Iterator of the main process: reports each batch to the ledger as it is handed out."""

    def __init__(self, fetched: Iterator[Any], ledger: ReleaseLedger, turn: int) -> None:
        self._fetched, self._ledger, self._turn = fetched, ledger, turn
        weakref.finalize(self, ledger.leave, turn).atexit = False

    @_disable_dynamo
    def __next__(self) -> Any:
        self._ledger.leave(self._turn)
        self._ledger.check_turn(self._turn)
        step, chunk, chunks, size, batch, units, padding = next(self._fetched)
        batch = with_numbers(batch, size)
        self._ledger.deliver(self._turn, Delivery(step, size, chunk, chunks, units, batch, padding))
        return batch


def padded(indices: list[int], size: int | None, most: int | None) -> tuple[list[list[int]], list[int]]:
    """(parts as by `split`, and how many of the last rows of each are padding).

    Padding is example 0 over and over, whoever was drawn: a row that the model can work on.

    Args:
        size: rows of the whole batch, or None for no padding.
    """
    if size is None:
        parts = split(indices, most)
        return parts, [0] * len(parts)
    left, padding = len(indices), []
    parts = split(indices + [0] * (size - left), most)
    for part in parts:
        real = min(left, len(part))
        left -= real
        padding.append(len(part) - real)
    return parts, padding


def split(indices: list[int], most: int | None) -> list[list[int]]:
    """`indices` in as few parts as possible of at most `most`, of equal length to within one."""
    if most is None or len(indices) <= most:
        return [indices]
    count = -(-len(indices) // most)
    short, long = divmod(len(indices), count)
    sizes = [short + (i < long) for i in range(count)]
    ends = [sum(sizes[: i + 1]) for i in range(count)]
    return [indices[end - size : end] for size, end in zip(sizes, ends, strict=True)]
