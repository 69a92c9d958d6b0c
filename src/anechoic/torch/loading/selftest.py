"""What is tried of a loader: whether an index means the same example again, and rows keep their places."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from anechoic.errors import UnsupportedError
from anechoic.noise import derive
from anechoic.torch.generators import SEED_BYTES, seeded
from anechoic.torch.loading.fetching import Fetcher, tried
from anechoic.torch.structure import PLAIN, bits, tensors_in

logger = logging.getLogger("anechoic")
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
    other, moved = tried(loader, partial(_tried, fetcher, chosen, owned)) if chosen else (False, "")
    if other:
        raise UnsupportedError(
            "the data set or collate_fn gives other values when the same examples are fetched again, under"
            " one seed of all global generators: it draws from a generator of its own, so a resumed run would"
            " make other releases under the same noise. Draw from torch, random or numpy.random in"
            " __getitem__ itself, or from numpy.random.default_rng(torch.randint(2**62, ()).item()) made"
            " there."
        )
    if moved:
        raise UnsupportedError(
            f"{moved} hands out rows in another order than that of the indices, so units would be mixed. Keep"
            " the order: pad without sorting by length, and give back examples as they were asked for."
        )


def _tried(fetcher: Fetcher, chosen: list[int], owned: bool) -> tuple[bool, str]:
    """(whether two fetches differ, what moves rows)."""
    places, axis = list(range(len(chosen))), 0 if fetcher.batch_first else 1
    turned, dataset = [*places[1:], 0], fetcher.dataset

    def fetched(order: list[int]) -> tuple[list[Any], list[Tensor]]:
        """Examples, and the tensors of their batch."""
        found: list[Any] = []
        if callable(getattr(dataset, "__getitems__", None)):
            with seeded(bytes(SEED_BYTES)):
                found = fetcher.examples([chosen[place] for place in order])
        for place in [] if found else order:
            with seeded(place.to_bytes(SEED_BYTES, "big")):  # its augmentation is the same in all orders
                found.append(dataset[chosen[place]])
        with seeded(bytes(SEED_BYTES)):
            return found, tensors_in(fetcher.collate(found))

    def columns(tensors: list[Tensor]) -> list[list[Any]]:
        rows = [list(t.movedim(axis if t.dim() > axis else 0, 0)) for t in tensors if t.dim()]
        return [[*map(value_of, each)] for each in rows if len(each) == len(places)]

    try:
        (first, mine), (_, again) = fetched(places), fetched(places)
        if value_of(mine) != value_of(again):
            return True, ""
        other, theirs = fetched(turned)
        if owned and _moved([[*map(value_of, first)]], [[*map(value_of, other)]], turned):
            return False, f"{type(dataset).__name__}.__getitems__"
        if owned and _moved(columns(mine), columns(theirs), turned):
            return False, "collate_fn"
    except _ERRORS:
        pass
    return False, ""


def _moved(mine: list[list[Any]], theirs: list[list[Any]], order: list[int]) -> bool:
    """Whether fields hold the same rows, none of them in `order`; what is not sure is not."""
    pairs = [pair for pair in zip(mine, theirs, strict=True) if len(set(pair[0])) > 1]
    kept = any(two == [one[place] for place in order] for one, two in pairs)
    return bool(pairs) and not kept and all(Counter(one) == Counter(two) for one, two in pairs)


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
