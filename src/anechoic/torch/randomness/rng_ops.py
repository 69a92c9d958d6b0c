"""Which of torch's calls draw random numbers that are known here, and what each of them asks for.

A `Drawing` says which numbers a call wants and what becomes of them, not where they come from: that is with
`SecretDraws` (for the whole batch) and `RowRandomness` (row by row).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

_aten: Any = torch.ops.aten
Law = Literal["uniform", "normal", "integers", "coins"]


@dataclass(frozen=True)
class Drawing:
    """What one call asks for.

    Attributes:
        law: "uniform" in [0, 1), "normal" (standard), "integers" in [low, high), "coins": True with a chance.
        shape: of the numbers.
        dtype: in which they are wanted.
        finish: makes of the numbers what the call returns.
        low, high: of integers; `high` may be None for all that the type holds.
        chance: of coins: a number, or a tensor that is broadcast to the shape.
    """

    law: Law
    shape: Any
    dtype: torch.dtype
    finish: Callable[[Tensor], Any]
    low: int = 0
    high: int | None = None
    chance: Any = 0.5


def arguments(func: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name."""
    names = [argument.name for argument in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def drawing(func: Any, given: dict[str, Any]) -> Drawing | None:
    """What a call asks for; None where it is not known here.

    Args:
        func: the operator.
        given: see `arguments`.
    """
    made = _DRAWINGS.get(func.overloadpacket)
    return None if made is None else made(given)


def _coins(given: dict[str, Any]) -> Drawing:
    tensor: Tensor = given["self"]
    chance = given.get("p", tensor)
    return Drawing("coins", tensor.shape, torch.bool, lambda kept: kept.to(tensor), chance=chance)


def _coins_in_place(given: dict[str, Any]) -> Drawing:
    tensor: Tensor = given["self"]
    return Drawing("coins", tensor.shape, torch.bool, tensor.copy_, chance=given.get("p", 0.5))


def _dropout(given: dict[str, Any]) -> Drawing:
    tensor, p = given["input"], float(given["p"])
    nothing = given.get("train") is False or p == 0.0
    factor = 1.0 / (1.0 - p) if 0.0 < p < 1.0 else 0.0

    def finish(kept: Tensor) -> tuple[Tensor, Tensor]:
        if nothing:
            return tensor.clone(), torch.ones_like(tensor, dtype=torch.bool)
        return tensor * kept.to(tensor.device) * factor, kept.to(tensor.device)

    chance = 1.0 if nothing else 1.0 - p
    return Drawing("coins", tensor.shape, torch.bool, finish, chance=chance)


def _uniform(given: dict[str, Any]) -> Drawing:
    target: Tensor = given["self"]
    low, high = given.get("from", 0.0), given.get("to", 1.0)
    return Drawing("uniform", target.shape, target.dtype, lambda u: target.copy_(low + (high - low) * u))


def _normal(given: dict[str, Any]) -> Drawing:
    target: Tensor = given["self"]
    mean, std = given.get("mean", 0.0), given.get("std", 1.0)
    return Drawing("normal", target.shape, torch.float64, lambda z: target.copy_(mean + std * z))


def _whole(given: dict[str, Any]) -> Drawing:
    target: Tensor = given["self"]
    low, high = given.get("from", 0), given.get("to")
    return Drawing("integers", target.shape, target.dtype, target.copy_, low=low or 0, high=high)


def _made(law: Law) -> Callable[[dict[str, Any]], Drawing]:
    """rand, randn, randint, and their _like."""

    def made(given: dict[str, Any]) -> Drawing:
        origin = given.get("self")
        plain = torch.int64 if law == "integers" else torch.get_default_dtype()
        dtype = given.get("dtype") or (plain if origin is None else origin.dtype)
        device = given.get("device") or ("cpu" if origin is None else origin.device)
        return Drawing(
            law,
            given["size"] if origin is None else origin.shape,
            torch.int64 if law == "integers" else dtype,
            lambda numbers: numbers.to(device=device, dtype=dtype),
            low=given.get("low", 0),
            high=given.get("high"),
        )

    return made


_DRAWINGS: dict[Any, Callable[[dict[str, Any]], Drawing]] = {
    _aten.bernoulli: _coins,
    _aten.bernoulli_: _coins_in_place,
    _aten.native_dropout: _dropout,
    _aten.uniform_: _uniform,
    _aten.normal_: _normal,
    _aten.random_: _whole,
    _aten.rand: _made("uniform"),
    _aten.rand_like: _made("uniform"),
    _aten.randn: _made("normal"),
    _aten.randn_like: _made("normal"),
    _aten.randint: _made("integers"),
    _aten.randint_like: _made("integers"),
}


def no_dropout(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether this is an attention that drops nothing, and so draws nothing whatever its tags say."""
    names = [argument.name for argument in func._schema.arguments]
    if "dropout_p" not in names:
        return False
    place = names.index("dropout_p")
    return bool((args[place] if len(args) > place else kwargs.get("dropout_p", 0.0)) == 0.0)
