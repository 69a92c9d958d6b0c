"""Whether a loader hands out rows in the order of its indices, tried on a few examples before training.

Which rows are clipped together is known by their place, so a `collate_fn` that sorts by length, or a
`__getitems__` that reads in ascending order, would mix units.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, Dataset

from anechoic.errors import UnsupportedError
from anechoic.torch.loading.fetching import tried
from anechoic.torch.randomness.generators import SEED_BYTES, seeded
from anechoic.units.ownership import Units

#: Odd: then no permutation but the identity goes unseen by a rotated and a reversed order together.
_TRIED = 5


def check_keeps_order(loader: DataLoader[Any], units: Units, batch_first: bool) -> None:
    """Refuse a loader that hands out the same examples in another order than asked for.

    A few examples are fetched in three orders, by a worker where the loader has workers. What cannot be
    compared (random augmentations, other types than tensors, numbers and strings) is passed over. No global
    random state is changed.

    Args:
        loader: the user's.
        units: who owns what; nothing is tried where every unit owns one example.
        batch_first: whether rows are the first dimension of tensors, or the second.

    Raises:
        UnsupportedError: naming what moves rows.
    """
    if units.single_examples or units.examples < 2:
        return
    most = min(_TRIED, units.examples)
    chosen = np.unique(np.linspace(0, units.examples - 1, most).astype(int)).tolist()
    trial = _Trial(loader.dataset, loader.collate_fn, chosen, batch_first)
    moved = tried(loader, trial)
    if moved:
        raise UnsupportedError(
            f"{moved} hands out rows in another order than that of the indices (tried on examples {chosen}):"
            " which rows are clipped together is known by their place, so units would be mixed. Keep the"
            " order: pad without sorting by length, and give back examples as they were asked for."
        )


class _Trial(Dataset[str]):
    """One item: what moves rows, or ""."""

    def __init__(self, dataset: Any, collate: Any, chosen: list[int], batch_first: bool) -> None:
        self._dataset, self._collate, self._chosen = dataset, collate, chosen
        self._batch_first = batch_first

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> str:
        if index:
            raise IndexError(index)
        try:
            return self._moved()
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
            return ""  # cannot be tried: what is wrong with the data will show in training

    def _moved(self) -> str:
        places = list(range(len(self._chosen)))
        orders = [places, places[::-1], [*places[1:], places[0]]]
        if callable(getattr(self._dataset, "__getitems__", None)):
            read = [self._read(order) for order in orders]
            values = [[_value(example) for example in examples] for examples in read]
            if any(_wrong([values[0]], [other], order) for order, other in _pairs(values, orders)):
                return f"{type(self._dataset).__name__}.__getitems__"
        else:
            read = [[self._one(place) for place in order] for order in orders]
        fields = []
        for examples in read:
            with seeded(bytes(SEED_BYTES)):
                batch = self._collate(examples)
            fields.append(list(_columns(batch, len(places), self._rows)))
        if any(_wrong(fields[0], other, order) for order, other in _pairs(fields, orders)):
            return f"collate_fn ({getattr(self._collate, '__name__', type(self._collate).__name__)})"
        return ""

    def _read(self, order: list[int]) -> Any:
        with seeded(bytes(SEED_BYTES)):
            return list(self._dataset.__getitems__([self._chosen[place] for place in order]))

    def _one(self, place: int) -> Any:
        with seeded(place.to_bytes(SEED_BYTES, "big")):  # an example's augmentation is the same in all orders
            return self._dataset[self._chosen[place]]

    def _rows(self, tensor: Tensor) -> list[Tensor]:
        return list(tensor.unbind(0 if self._batch_first or tensor.dim() < 2 else 1))


def _pairs(found: list[Any], orders: list[list[int]]) -> list[tuple[list[int], Any]]:
    return list(zip(orders[1:], found[1:], strict=True))


def _wrong(mine: list[list[Any]], theirs: list[list[Any]], order: list[int]) -> bool:
    """Whether the fields `theirs` are `mine`, and not in `order`; what is not sure is not."""
    wrong = False
    for one, two in zip(mine, theirs, strict=True):
        if len(set(one)) < 2:
            continue
        if Counter(one) != Counter(two):
            return False
        if two == [one[place] for place in order]:
            return False  # a field keeps the order; another that does not is no field of the examples
        wrong = True
    return wrong


def _columns(batch: Any, size: int, rows: Any) -> Iterator[list[Any]]:
    """Every field of a batch, as one comparable value for each row."""
    if isinstance(batch, PackedSequence):
        return
    if isinstance(batch, Tensor):
        parts = rows(batch) if batch.dim() else []
        if len(parts) == size:
            yield [_value(part) for part in parts]
    elif isinstance(batch, np.ndarray):
        if len(batch) == size:
            yield [(row.shape, row.tobytes()) for row in map(np.asarray, batch)]
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _columns(value, size, rows)
    elif isinstance(batch, (list, tuple)):
        fields = [list(_columns(value, size, rows)) for value in batch]
        if len(batch) != size or all(fields):
            yield from (column for field in fields for column in field)
        else:
            yield [_value(value) for value in batch]


def _value(part: Any) -> Any:
    """Something hashable that is equal for equal examples."""
    if isinstance(part, Tensor):
        plain = part.detach().cpu().contiguous().reshape(-1)
        return tuple(part.shape), str(part.dtype), plain.view(torch.uint8).numpy().tobytes()
    if isinstance(part, np.ndarray):
        return part.shape, part.dtype.str, part.tobytes()
    if isinstance(part, Mapping):
        return tuple((str(key), _value(value)) for key, value in part.items())
    if isinstance(part, (list, tuple)):
        return tuple(_value(value) for value in part)
    if isinstance(part, (str, bytes, int, float, np.generic)):
        return part
    raise TypeError(f"{type(part).__name__} cannot be compared.")
