"""What make_private tries on a few examples before training: two fetches of one request, and rows alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from anechoic.torch.loading.fetching import Fetcher, Request, tried
from anechoic.torch.loading.repeats import check_repeats, different
from anechoic.torch.randomness.generators import SEED_BYTES, seeded
from anechoic.torch.setup.collating import check_with_others, with_others

#: Examples tried: a flip of each with probability 1/2 goes unseen once in 65,536 times.
_TRIED = 16
_SEED = bytes(SEED_BYTES)
_ERRORS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def try_batches(loader: DataLoader[Any], batch_first: bool) -> None:
    """Refuse batches that do not repeat, and a collate_fn that mixes examples; warn of one that pads them.

    By a worker where the loader has workers. What cannot be compared is passed over, and so is what cannot be
    fetched: it will show in training.

    Args:
        loader: the user's.
        batch_first: whether rows are the first dimension of tensors, or the second.

    Raises:
        UnsupportedError: naming what differs, and what to do.
    """
    examples = len(loader.dataset)  # type: ignore[arg-type]
    if not examples:
        return
    chosen = np.unique(np.linspace(0, examples - 1, min(_TRIED, examples)).astype(int)).tolist()
    where, mixed, padded = tried(loader, _Trial(loader.dataset, loader.collate_fn, chosen, batch_first))
    check_repeats(where)
    check_with_others(mixed, padded)


class _Trial(Dataset[tuple[str, str, str]]):
    """One item: what differs between two fetches, and what `with_others` finds; "" for nothing."""

    def __init__(self, dataset: Any, collate: Any, chosen: list[int], batch_first: bool) -> None:
        self._dataset, self._collate, self._chosen = dataset, collate, chosen
        self._batch_first = batch_first

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> tuple[str, str, str]:
        if index:
            raise IndexError(index)
        fetcher = Fetcher(self._dataset, self._collate, self._batch_first)
        request = Request(0, 0, 1, self._chosen, _SEED)
        try:
            first, second = (fetcher.__getitems__(request)[4] for _ in range(2))
            where = different(first, second, "batch")
        except _ERRORS:
            return "", "", ""
        try:
            with seeded(_SEED):
                examples = fetcher.examples(self._chosen)
            return where, *with_others(examples, self._collate, self._batch_first)
        except _ERRORS:
            return where, "", ""
