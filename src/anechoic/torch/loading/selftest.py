"""What is tried of a loader: two fetches of one request, rows alone, in other orders, and in their places."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader

from anechoic.errors import UnsupportedError
from anechoic.runs.ledger import Delivery
from anechoic.torch.generators import SEED_BYTES, seeded
from anechoic.torch.loading.fetching import Fetcher, Request, tried
from anechoic.torch.structure import bits
from anechoic.units.ownership import Units

logger = logging.getLogger("anechoic")

#: Examples tried: a flip of each with probability 1/2 goes unseen once in 65,536 times.
_TRIED = 16
#: In what order: an odd number, so that none but the identity goes unseen by a rotated and a reversed order.
_ORDERED = 5
#: How deep batches are compared.
_DEPTH = 8
#: Rounding of work on a batch of another size.
_RTOL, _ATOL = 1e-4, 1e-6
_SEEDS = bytes(SEED_BYTES), bytes([1]) * SEED_BYTES
#: Of data that cannot be tried: what is wrong with them will show in training.
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
    fetcher = Fetcher(loader.dataset, loader.collate_fn, batch_first)
    where, mixed, padded = tried(loader, partial(_two_fetches, fetcher, _chosen(examples, _TRIED)))
    if where:
        raise UnsupportedError(
            f"the data set or collate_fn gives other values when the same examples are fetched again ({where}"
            " differs, under one seed of all global generators): it draws from a generator of its own"
            " (numpy.random.default_rng, torch.Generator, random.Random), so a resumed run would make other"
            " releases under the same noise. Draw from torch, random or numpy.random in __getitem__ itself:"
            " they are set for each batch. A Generator may be made there, too:"
            " numpy.random.default_rng(torch.randint(2**62, ()).item())."
        )
    if mixed:
        raise UnsupportedError(
            f"collate_fn gives an example other values in a batch than alone ({mixed} differs): it mixes the"
            " examples of a batch, so clipping one example's gradient does not bound what it changes. Compute"
            " each row from its example alone, in __getitem__ for instance; statistics of the data set must"
            " be public."
        )
    if padded:
        logger.warning(
            "collate_fn makes an example's %s longer where others of the batch are: the guarantee then holds"
            " only if no gradient depends on how far a row is padded. Mask what is beyond each row's own"
            " length, in the model and in the loss, or pad to a fixed length.",
            padded,
        )


def _chosen(examples: int, most: int) -> list[int]:
    return [int(i) for i in np.unique(np.linspace(0, examples - 1, min(most, examples)).astype(int))]


def _two_fetches(fetcher: Fetcher, chosen: list[int]) -> tuple[str, str, str]:
    """What differs between two fetches, and what `with_others` finds; "" for nothing."""
    request = Request(Delivery(0, len(chosen)), chosen, _SEEDS[0])
    try:
        first, second = (fetcher.__getitems__(request)[1] for _ in range(2))
        where = different(first, second, "batch")
    except _ERRORS:
        return "", "", ""
    try:
        with seeded(_SEEDS[0]):
            examples = fetcher.examples(chosen)
        return where, *with_others(examples, fetcher.collate, fetcher.batch_first)
    except _ERRORS:
        return where, "", ""


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
    if isinstance(one, (str, bytes, int, float, complex, np.generic)):
        return "" if one == two or (one != one and two != two) else name
    if isinstance(one, (Mapping, list, tuple)) and len(one) != len(two):
        return name
    there = _inside(two)
    found = (different(part, there.get(key), f"{name}{key}", depth + 1) for key, part in _inside(one).items())
    return next(filter(None, found), "")


def _inside(value: Any) -> dict[str, Any]:
    """What a container or an object holds, by how it is written."""
    if isinstance(value, Mapping):
        return {f"[{key!r}]": part for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return {f"[{place}]": part for place, part in enumerate(value)}
    return {f".{key}": part for key, part in getattr(value, "__dict__", {}).items()}


def _same_tensors(one: Tensor, two: Tensor) -> bool:
    if one.shape != two.shape or one.dtype != two.dtype or one.layout != two.layout:
        return False
    if one.layout is not torch.strided or one.is_quantized:
        return True  # nobody can tell
    return torch.equal(*(bits(tensor.detach().cpu()) for tensor in (one, two)))


def with_others(
    examples: Sequence[Any], collate: Callable[[list[Any]], Any], batch_first: bool
) -> tuple[str, str]:
    """What collate_fn does to an example when others are there: (where it mixes them, where it pads them).

    Args:
        examples: as the data set gives them, at least one.
        collate: the user's.
        batch_first: whether rows are the first dimension of tensors, or the second.

    Returns:
        Each "" where nothing is seen: what is random, or has no row an example, cannot be compared.
    """
    batches = []
    for seed in _SEEDS:
        with seeded(seed):
            batches.append(collate(list(examples)))
    if len(examples) < 2 or different(batches[0], batches[1], "batch"):
        return "", ""  # random: what an example is alone is another draw
    whole = dict(_fields(batches[0], len(examples), batch_first, "batch"))
    single = []
    for example in examples:
        with seeded(_SEEDS[0]):
            single.append(dict(_fields(collate([example]), 1, batch_first, "batch")))
    mixed = padded = ""
    for name, rows in whole.items():
        alone = [fields.get(name) for fields in single]
        if any(one is None or one.dtype != rows.dtype or one.dim() != rows.dim() for one in alone):
            continue
        own = [one[0] for one in alone if one is not None]
        if any(one.shape != rows.shape[1:] for one in own):
            padded = padded or name
        elif not _same(rows, own):
            mixed = mixed or name
    return mixed, padded


def _fields(batch: Any, size: int, batch_first: bool, name: str) -> Iterator[tuple[str, Tensor]]:
    """Tensors of a batch by name, rows first: those that have one row an example."""
    if isinstance(batch, np.ndarray) and batch.dtype.kind in "fiub":
        batch = torch.from_numpy(np.ascontiguousarray(batch))
    if isinstance(batch, Tensor):
        axis = 0 if batch_first or batch.dim() < 2 else 1
        if batch.dim() and batch.layout is torch.strided and batch.shape[axis] == size:
            yield name, batch.detach().movedim(axis, 0)
    elif isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from _fields(value, size, batch_first, f"{name}[{key!r}]")
    elif isinstance(batch, (list, tuple)):
        for place, value in enumerate(batch):
            yield from _fields(value, size, batch_first, f"{name}[{place}]")


def _same(rows: Tensor, alone: list[Tensor]) -> bool:
    """Whether each example's own values are a row: its own one, or any, as a batch may be sorted."""
    return all(
        _close(rows[place], own) or any(_close(row, own) for row in rows) for place, own in enumerate(alone)
    )


def _close(one: Tensor, two: Tensor) -> bool:
    if not one.dtype.is_floating_point:
        return torch.equal(one, two)
    return torch.allclose(one.double(), two.double(), rtol=_RTOL, atol=_ATOL, equal_nan=True)


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
    chosen = _chosen(units.examples, _ORDERED)
    fetcher = Fetcher(loader.dataset, loader.collate_fn, batch_first)
    moved = tried(loader, partial(_moved, fetcher, chosen))
    if moved:
        raise UnsupportedError(
            f"{moved} hands out rows in another order than that of the indices (tried on examples {chosen}):"
            " which rows are clipped together is known by their place, so units would be mixed. Keep the"
            " order: pad without sorting by length, and give back examples as they were asked for."
        )


def _moved(fetcher: Fetcher, chosen: list[int]) -> str:
    """What moves rows, or ""."""
    places = list(range(len(chosen)))
    orders = [places, places[::-1], [*places[1:], places[0]]]
    dataset, collate = fetcher.dataset, fetcher.collate

    def alone(place: int) -> Any:
        with seeded(place.to_bytes(SEED_BYTES, "big")):  # an example's augmentation is the same in all orders
            return dataset[chosen[place]]

    try:
        if callable(getattr(dataset, "__getitems__", None)):
            read = []
            for order in orders:
                with seeded(_SEEDS[0]):
                    read.append(fetcher.examples([chosen[place] for place in order]))
            values = [[_value(example) for example in examples] for examples in read]
            if any(_wrong([values[0]], [other], order) for order, other in _pairs(values, orders)):
                return f"{type(dataset).__name__}.__getitems__"
        else:
            read = [[alone(place) for place in order] for order in orders]
        fields = []
        for examples in read:
            with seeded(_SEEDS[0]):
                batch = collate(examples)
            fields.append(list(_columns(batch, len(places), fetcher.batch_first)))
        if any(_wrong(fields[0], other, order) for order, other in _pairs(fields, orders)):
            return f"collate_fn ({getattr(collate, '__name__', type(collate).__name__)})"
    except _ERRORS:
        pass  # cannot be tried
    return ""


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


def _columns(batch: Any, size: int, batch_first: bool) -> Iterator[list[Any]]:
    """Every field of a batch, as one comparable value for each row."""
    if isinstance(batch, PackedSequence):
        return
    if isinstance(batch, Tensor):
        parts = batch.unbind(0 if batch_first or batch.dim() < 2 else 1) if batch.dim() else ()
        if len(parts) == size:
            yield [_value(part) for part in parts]
    elif isinstance(batch, np.ndarray):
        if len(batch) == size:
            yield [(row.shape, row.tobytes()) for row in map(np.asarray, batch)]
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _columns(value, size, batch_first)
    elif isinstance(batch, (list, tuple)):
        fields = [list(_columns(value, size, batch_first)) for value in batch]
        if len(batch) != size or all(fields):
            yield from (column for field in fields for column in field)
        else:
            yield [_value(value) for value in batch]


def _value(part: Any) -> Any:
    """Something hashable that is equal for equal examples."""
    if isinstance(part, Tensor):
        return tuple(part.shape), str(part.dtype), bits(part.detach().cpu()).numpy().tobytes()
    if isinstance(part, np.ndarray):
        return part.shape, part.dtype.str, part.tobytes()
    if isinstance(part, Mapping):
        return tuple((str(key), _value(value)) for key, value in part.items())
    if isinstance(part, (list, tuple)):
        return tuple(_value(value) for value in part)
    if isinstance(part, (str, bytes, int, float, np.generic)):
        return part
    raise TypeError(f"{type(part).__name__} cannot be compared.")


#: Examples looked at in a pass: a permutation leaves one in its place with probability 1/N.
LOOKED_AT = 2
_DOMAIN = "examples looked at"


class SameExamples:
    """Keeps two examples of the first pass that nobody can foresee, and fetches them again in each later one.

    Batches are drawn as indices, so a data set that shuffles itself breaks the guarantee. One that only
    augments by the epoch gives other values as well and is sound, so this warns, once, and refuses nothing.
    """

    def __init__(self) -> None:
        self._asked: list[int] = []
        self._seed = b""
        self._first: list[Any] | None = None
        self._said = False

    def look(
        self, fetch: Callable[[list[int]], list[Any]], examples: int, derived: Callable[..., bytes]
    ) -> None:
        """Fetch them, and compare with the first time.

        Args:
            fetch: examples by their indices; in this process.
            examples: N.
            derived: secret bytes of the run, see `ReleaseLedger.derived`.
        """
        if self._first is None:
            numbers = np.frombuffer(derived(_DOMAIN, size=8 * LOOKED_AT), dtype="<u8")
            self._asked = [int(number) % examples for number in numbers]
            self._seed = derived(_DOMAIN, 0, size=SEED_BYTES)
        with seeded(self._seed):
            found = fetch(self._asked)
        if self._first is None:
            self._first = tree_map(_copied, found)
        elif different(self._first, found, "examples") and not self._said:
            self._said = True
            logger.warning(
                "the data set has another example at an index than in the first pass. If it permutes itself"
                " (set_epoch, a shuffle), the guarantee does not hold: batches are drawn as indices, and"
                " examples then take part more often than is counted. Keep every example at its index, and"
                " leave the order to the loader. If only its augmentation follows the epoch, all is well."
            )


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return value.copy() if isinstance(value, np.ndarray) else value
