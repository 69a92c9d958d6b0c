"""Whether a loader hands out the same batch twice under one seed.

A batch must be a function of the sampling key and t. Random numbers from the global generators are; those of
a generator that the data set keeps for itself go on from batch to batch, and a resumed run would draw others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anechoic.errors import UnsupportedError

_DEPTH = 8


def check_repeats(where: str) -> None:
    """Refuse a data set or collate_fn that draws random numbers from a generator of its own.

    Args:
        where: what `different` says of two batches of one request, fetched under one seed.

    Raises:
        UnsupportedError: naming what differs, and what to do.
    """
    if where:
        raise UnsupportedError(
            f"the data set or collate_fn gives other values when the same examples are fetched again ({where}"
            " differs, under one seed of all global generators): it draws from a generator of its own"
            " (numpy.random.default_rng, torch.Generator, random.Random), so a resumed run would make other"
            " releases under the same noise. Draw from torch, random or numpy.random in __getitem__ itself:"
            " they are set for each batch. A Generator may be made there, too:"
            " numpy.random.default_rng(torch.randint(2**62, ()).item())."
        )


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
