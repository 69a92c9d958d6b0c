"""Whether collate_fn makes of an example in a batch what it makes of it alone, tried before training.

What it makes of the whole batch (a mean, a mix of examples, the length of the longest one) is in every row
before the model sees any of them, so the comparison with single rows cannot tell.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anechoic.errors import UnsupportedError
from anechoic.torch.loading.repeats import different
from anechoic.torch.randomness.generators import SEED_BYTES, seeded

logger = logging.getLogger("anechoic")

#: Rounding of work on a batch of another size.
_RTOL, _ATOL = 1e-4, 1e-6
_SEEDS = bytes(SEED_BYTES), bytes([1]) * SEED_BYTES


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


def check_with_others(mixed: str, padded: str) -> None:
    """Refuse what mixes examples, and warn of what pads them.

    Args:
        mixed, padded: see `with_others`.

    Raises:
        UnsupportedError: naming the field.
    """
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
