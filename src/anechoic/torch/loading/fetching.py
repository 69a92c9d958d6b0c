"""Fetch one batch, in the main process or a worker: examples, collation, and batches of no example.

A batch, with every random augmentation in it, is a function of its request alone.
"""

from __future__ import annotations

import logging
import operator
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from anechoic.batches.base import Batches
from anechoic.errors import MismatchError, UnsupportedError
from anechoic.noise import derive
from anechoic.runs.ledger import Delivery
from anechoic.torch.generators import SEED_BYTES, seeded
from anechoic.torch.structure import PLAIN, bits, tensors_in
from anechoic.units.batch import UnitBatch

logger = logging.getLogger("anechoic")


class Request(list[int]):
    """One physical batch to fetch, by the indices of its examples, and the `delivery` that it will be.

    Random augmentations follow from `seed`; those of each part of `delivery` from one of `seeds`.
    """

    def __init__(
        self, delivery: Delivery, indices: list[int], seed: bytes, seeds: tuple[bytes, ...] = ()
    ) -> None:
        super().__init__(indices)
        self.delivery, self.seed, self.seeds = delivery, seed, seeds


class Fetcher(Dataset[Any]):
    """The data set as a `DataLoader` with workers sees it: it answers a `Request` with a collated batch."""

    def __init__(self, dataset: Any, collate_fn: Callable[[list[Any]], Any], batch_first: bool) -> None:
        self.dataset, self.collate, self.batch_first = dataset, collate_fn, batch_first
        self._empty: Any = None
        self._draws = not (collate_fn is default_collate and _is_plain(dataset))

    def __getitems__(self, request: Request) -> tuple[Request, Any]:
        """The request and its batch; called with whatever the batch sampler yields."""
        if request.seeds and self._draws:
            return request, self._in_parts(request)
        with seeded(request.seed) if self._draws else nullcontext():
            if not request and self._empty is None:  # shaped after a batch of one, of which no number is kept
                self._empty = (empty_like(self.collate(self.examples([0])), self.batch_first),)
            return request, self.collate(self.examples(request)) if request else self._empty[0]

    def _in_parts(self, request: Request) -> Any:
        """Return a batch of several parts, the examples of each fetched as if it were alone."""
        found, start = [], 0
        for seed, size in zip(request.seeds, request.delivery.parts or (), strict=True):
            with seeded(seed):
                found += self.examples(request[start : start + size])
            start += size
        with seeded(request.seed):
            return self.collate(found)

    def examples(self, indices: list[int]) -> list[Any]:
        """Fetch examples of the data set, in that order."""
        if callable(getattr(self.dataset, "__getitems__", None)):
            return list(self.dataset.__getitems__(indices))
        return [self.dataset[index] for index in indices]


def _is_plain(dataset: Any) -> bool:
    """Whether a data set gives out parts of tensors, and no more: it draws nothing at random."""
    if type(dataset) is Subset:
        return "__getitems__" not in vars(dataset) and _is_plain(dataset.dataset)
    if type(dataset) is not TensorDataset or "__getitems__" in vars(dataset):
        return False
    return all(type(tensor) is torch.Tensor for tensor in dataset.tensors)


def empty_like(batch: Any, batch_first: bool = True) -> Any:
    """`batch` with every tensor cut to length 0, in dicts, lists and tuples; else TypeError."""
    if isinstance(batch, torch.Tensor):
        shape = list(batch.shape) or [0]
        shape[0 if batch_first or len(shape) == 1 else 1] = 0
        return batch.new_empty(shape)
    if isinstance(batch, Mapping):
        return {key: empty_like(value, batch_first) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(empty_like(value, batch_first) for value in batch))
    if isinstance(batch, (list, tuple)):
        words = all(isinstance(value, (str, bytes)) for value in batch)  # a field of strings, one an example
        return type(batch)(() if words else (empty_like(value, batch_first) for value in batch))
    raise TypeError(
        f"a batch holds a {type(batch).__name__}, of which no empty one can be made, and Poisson sampling"
        " may draw no example: let collate_fn return tensors, dicts, lists and tuples."
    )


def tried(loader: DataLoader[Any], work: Callable[[], Any]) -> Any:
    """Run `work` as examples are fetched: by a worker, where `loader` has workers, which opens its files."""
    workers = min(1, loader.num_workers)
    found: DataLoader[Any] = DataLoader(
        [work],  # type: ignore[arg-type] # what has a length and items is a data set
        batch_size=None,
        collate_fn=operator.call,  # type: ignore[arg-type]
        num_workers=workers,
        timeout=loader.timeout if workers else 0,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context if workers else None,
        generator=torch.Generator(),
    )
    return next(iter(found))


def unchanged(batch: Any) -> Any:
    return batch


#: Examples tried: a flip of each with probability 1/2 goes unseen once in 65,536 times.
_TRIED = 16
#: Of data that cannot be tried: what is wrong with them will show in training.
_ERRORS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def check_repeats(loader: DataLoader[Any], batch_first: bool, *, owned: bool) -> None:
    """Fetch a few examples twice, and in another order; refuse other values, and rows that change places.

    By a worker where the loader has workers. What cannot be compared is passed over. Places count where units
    own examples: which rows are clipped together is known by them.
    """
    examples = len(loader.dataset)  # type: ignore[arg-type]
    fetcher = Fetcher(loader.dataset, loader.collate_fn, batch_first)
    chosen = np.unique(np.linspace(0, examples - 1, min(_TRIED, examples)).astype(int)).tolist()
    other, moved = tried(loader, partial(_tried, fetcher, chosen)) if chosen else (False, False)
    if other:
        raise UnsupportedError(
            "the data set or collate_fn gives other values when the same examples are fetched again, under"
            " one seed of all global generators: it draws from a generator of its own, so a resumed run would"
            " make other releases under the same noise. Draw from torch, random or numpy.random in"
            " __getitem__ itself, or from numpy.random.default_rng(torch.randint(2**62, ()).item()) made"
            " there."
        )
    if moved and owned:
        raise UnsupportedError(
            "the data set or collate_fn hands out rows in another order than that of the indices, so units"
            " would be mixed. Keep the order: pad without sorting by length, and give back examples as they"
            " were asked for."
        )


def _tried(fetcher: Fetcher, chosen: list[int]) -> tuple[bool, bool]:
    """(whether two fetches differ, whether rows are moved)."""
    places, axis = list(range(len(chosen))), 0 if fetcher.batch_first else 1

    def fetched(order: list[int]) -> list[Tensor]:
        """The tensors of their batch."""
        found: list[Any] = []
        if callable(getattr(fetcher.dataset, "__getitems__", None)):
            with seeded(bytes(SEED_BYTES)):
                found = fetcher.examples([chosen[place] for place in order])
        for place in [] if found else order:
            with seeded(place.to_bytes(SEED_BYTES, "big")):  # its augmentation is the same in all orders
                found.append(fetcher.dataset[chosen[place]])
        with seeded(bytes(SEED_BYTES)):
            return tensors_in(fetcher.collate(found))

    def columns(tensors: list[Tensor]) -> list[list[Any]]:
        rows = [list(t.movedim(axis if t.dim() > axis else 0, 0)) for t in tensors if t.dim()]
        return [[*map(value_of, each)] for each in rows if len(each) == len(places)]

    try:
        mine, turned = fetched(places), [*places[1:], 0]
        if value_of(mine) != value_of(fetched(places)):
            return True, False
        both = zip(columns(mine), columns(fetched(turned)), strict=True)
        pairs = [pair for pair in both if len(set(pair[0])) > 1]
        kept = any(two == [one[place] for place in turned] for one, two in pairs)
        # the same rows, none of them in that order; what is not sure is not
        return False, bool(pairs) and not kept and all(Counter(one) == Counter(two) for one, two in pairs)
    except _ERRORS:
        return False, False


def value_of(example: Any) -> tuple[Any, ...]:
    """Something hashable that is equal for equal examples; what cannot be compared counts as equal."""
    found: list[Any] = []
    for leaf in tree_leaves(example):
        if isinstance(leaf, Tensor):
            found += [leaf.shape, leaf.dtype, bits(leaf.detach().cpu()).numpy().tobytes()]
        elif isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype != object:
            found += [leaf.shape, leaf.dtype.str, leaf.tobytes()]
        else:
            found.append(repr(leaf) if type(leaf) in PLAIN else type(leaf))
    return tuple(found)


class SameExamples:
    """Keeps two examples of the first pass that nobody can foresee, and fetches them again in each later one.

    Batches are drawn as indices, so a data set that shuffles itself breaks the guarantee: a permutation
    leaves an example in its place with probability 1/N. One that only augments by the epoch gives other
    values as well and is sound, so this warns, once, and refuses nothing.
    """

    def __init__(self) -> None:
        self._first: tuple[Any, ...] = ()
        self._said = False

    def look(self, fetch: Callable[[list[int]], list[Any]], examples: int, key: bytes) -> None:
        """Fetch two of `examples` in this process, which `key`, that of sampling, chooses."""
        numbers = np.frombuffer(derive(key, "examples looked at", size=16), dtype="<u8")
        with seeded(derive(key, "examples looked at", 0, size=SEED_BYTES)):
            found = fetch([int(number) % examples for number in numbers])
        now = value_of(found)
        self._first = self._first or now
        if now != self._first and not self._said:
            self._said = True
            logger.warning(
                "the data set has another example at an index than in the first pass. If it permutes itself"
                " (set_epoch, a shuffle), the guarantee does not hold: batches are drawn as indices, and"
                " examples then take part more often than is counted. Keep every example at its index, and"
                " leave the order to the loader. If only its augmentation follows the epoch, all is well."
            )


class ProcessParts(NamedTuple):
    """The parts of a batch that one process is given at once: numbers, rows of each, examples."""

    numbers: list[int]
    sizes: tuple[int, ...]
    indices: list[int]
    units: UnitBatch | None = None


@dataclass(frozen=True)
class BatchPartition:
    """Partition of batches into parts of `rows` rows, or as many as the largest unit brings to a step.

    How a kernel rounds depends on the shape that it works on. A process takes whole parts, so a part gives
    the same sums whoever works on it.
    """

    rows: int
    rank: int = 0
    ranks: int = 1

    def check(self, most: int) -> None:
        """Refuse micro-batches that are smaller than a part."""
        if most < self.rows:
            raise MismatchError(
                f"max_physical_batch_size={most} is below chunk_rows={self.rows}, and holds whole chunks:"
                f" raise it, or give PrivacyEngine(chunk_rows={most})."
            )

    def process_parts(self, batches: Batches, step: int, most: int | None) -> list[ProcessParts]:
        """Return this process's parts of batch `step`, in order, those that are delivered together as one.

        At most `most` rows are delivered at once. There is at least one portion: every process steps a batch.
        """
        whole, found, parts = batches.unit_batch(step), [], list[Any]()
        if whole is None:
            rows, size = batches.batch(step).tolist(), self.rows
            parts += [rows[start : start + size] for start in range(0, len(rows), size)]
        else:
            size = max(self.rows, whole.largest)
            parts += whole.parts(size)
            ends = [0, *accumulate(part.count for part in parts)]
        for numbers in self.groups(len(parts), size, most):
            units, mine = None, [parts[i] for i in numbers]
            if whole is not None:
                units = whole.only([item for i in numbers for item in range(ends[i], ends[i + 1])])
                mine = [part.examples.tolist() for part in mine]
            found.append(ProcessParts(numbers, tuple(map(len, mine)), [*chain(*mine)], units))
        return found

    def groups(self, parts: int, size: int, most: int | None) -> list[list[int]]:
        """Return the numbers of this process's parts, of so many of `size` rows, those delivered together."""
        mine = list(range(self.rank, parts, self.ranks))
        together = max(1, len(mine) if most is None else most // size)
        return [mine[i : i + together] for i in range(0, len(mine), together)] or [[]]
