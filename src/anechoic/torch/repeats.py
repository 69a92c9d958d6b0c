"""Whether a loader hands out the same batch twice under one seed, tried on a few examples before training.

A batch must be a function of the sampling key and t. Random numbers from the global generators are; those of
a generator that the data set keeps for itself go on from batch to batch, and a resumed run would draw others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from anechoic.errors import UnsupportedError
from anechoic.torch.fetching import Fetcher, Request, tried
from anechoic.torch.randomness import SEED_BYTES

#: Examples tried: a flip of each with probability 1/2 goes unseen once in 65,536 times.
_TRIED = 16
_DEPTH = 8


def check_repeats(loader: DataLoader[Any]) -> None:
    """Refuse a data set or collate_fn that draws random numbers from a generator of its own.

    One request is fetched twice under one seed, by a worker where the loader has workers. What cannot be
    compared is passed over, and so is what cannot be fetched: it will show in training.

    Args:
        loader: the user's.

    Raises:
        UnsupportedError: naming what differs, and what to do.
    """
    examples = len(loader.dataset)  # type: ignore[arg-type]
    if not examples:
        return
    chosen = np.unique(np.linspace(0, examples - 1, min(_TRIED, examples)).astype(int)).tolist()
    where = tried(loader, _Trial(loader.dataset, loader.collate_fn, chosen))
    if where:
        raise UnsupportedError(
            f"the data set or collate_fn gives other values when the same examples are fetched again ({where}"
            " differs, under one seed of all global generators): it draws from a generator of its own"
            " (numpy.random.default_rng, torch.Generator, random.Random), so a resumed run would make other"
            " releases under the same noise. Draw from torch, random or numpy.random in __getitem__ itself:"
            " they are set for each batch. A Generator may be made there, too:"
            " numpy.random.default_rng(torch.randint(2**62, ()).item())."
        )


class _Trial(Dataset[str]):
    """One item: what differs between two fetches, or ""."""

    def __init__(self, dataset: Any, collate: Any, chosen: list[int]) -> None:
        self._dataset, self._collate, self._chosen = dataset, collate, chosen

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> str:
        if index:
            raise IndexError(index)
        fetcher = Fetcher(self._dataset, self._collate, True)
        request = Request(0, 0, 1, self._chosen, bytes(SEED_BYTES))
        try:
            first, second = (fetcher.__getitems__(request)[4] for _ in range(2))
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
            return ""
        return different(first, second, "batch")


def different(one: Any, two: Any, name: str, depth: int = 0) -> str:
    """Where two batches differ in a bit, as an expression in `name`; "" where not, or where nobody can tell.

    Args:
        one, two: tensors, arrays, numbers, strings, and containers or plain objects of such.
        name: of the batch.
        depth: how far inside; from 8 on nothing is compared.
    """
    if depth >= _DEPTH or one is two:
        return ""
    if type(one) is not type(two):
        return name
    if isinstance(one, Tensor):
        return "" if _same_tensors(one, two) else name
    if isinstance(one, np.ndarray) and one.dtype != object:
        return "" if one.shape == two.shape and one.tobytes() == two.tobytes() else name
    if isinstance(one, Mapping):
        pairs = [(f"{name}[{key!r}]", one[key], two.get(key)) for key in one]
        return _first(pairs, depth) if len(one) == len(two) else name
    if isinstance(one, (list, tuple)):
        if len(one) != len(two):
            return name
        return _first([(f"{name}[{i}]", *pair) for i, pair in enumerate(zip(one, two, strict=True))], depth)
    if isinstance(one, (str, bytes, int, float, complex, np.generic)):
        return "" if one == two or (one != one and two != two) else name
    inside = vars(one) if hasattr(one, "__dict__") else {}
    return _first([(f"{name}.{key}", value, vars(two).get(key)) for key, value in inside.items()], depth)


def _first(pairs: list[tuple[str, Any, Any]], depth: int) -> str:
    return next((found for name, one, two in pairs if (found := different(one, two, name, depth + 1))), "")


def _same_tensors(one: Tensor, two: Tensor) -> bool:
    if one.shape != two.shape or one.dtype != two.dtype or one.layout != two.layout:
        return False
    if one.layout is not torch.strided or one.is_quantized:
        return True  # nobody can tell
    bits = [tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for tensor in (one, two)]
    return torch.equal(*bits)
