"""Fetch one batch, in the main process or a worker: examples, collation, and batches of no example.

A batch, with every random augmentation in it, is a function of its request alone.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from anechoic.runs.ledger import Delivery
from anechoic.torch.generators import seeded


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
        self._draws = not (collate_fn is default_collate and _is_plain(dataset))

    def __getitems__(self, request: Request) -> tuple[Request, Any]:
        """The request and its batch; called with whatever the batch sampler yields."""
        if request.seeds and self._draws:
            return request, self._in_parts(request)
        with seeded(request.seed) if self._draws else nullcontext():
            batch = self.collate(self.examples(request)) if request else self._empty
        return request, batch

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

    @cached_property
    def _empty(self) -> Any:
        # shaped after a batch of one example, of which no number is kept
        return empty_like(self.collate(self.examples([0])), self.batch_first)


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
