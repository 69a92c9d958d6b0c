"""Which of torch's calls draw random numbers that are known here, and what each of them asks for.

A `Drawing` says which numbers a call wants and what becomes of them, not where they come from: that is with
`drawn_in_secret` (for the whole batch, under `SecretDraws`) and `RowRandomness` (row by row).

A Mersenne Twister is linear over GF(2): whoever reads some 20,000 coins off a release, such as masks that a
model draws once for the whole batch, solves for its state and knows every other mask of the step. Where the
masks of rows follow their places (hooks, ghost clipping), the guarantee holds because nobody knows them. So
the generator's state only serves as a key here: each call that draws gets numbers of its own keystream, and
a new state that says nothing of the last one.

All that is drawn remains a function of the state before the call: to set the state back is to draw the same
numbers again, as activation checkpointing and comparisons with single rows do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from anechoic.noise.keystream import AesCounter, keystream
from anechoic.torch.randomness.generators import WORDS, cpu_state, is_secret, marked

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


#: Random bits that a uniform number of a type holds: those of its significand.
_BITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


def drawn_in_secret(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of a call that draws at random, from AES-256 where the generator's state is one of a run."""
    if not is_secret(torch.initial_seed()) or no_dropout(func, args, kwargs):
        return func(*args, **kwargs)
    given = arguments(func, args, kwargs)
    if _is_own(given.get("generator")) or _device(given).type != "cpu":
        return func(*args, **kwargs)
    key = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).digest()
    after = _state(key, "state after a draw")
    wanted = drawing(func, given)
    try:
        if wanted is not None:
            return wanted.finish(_numbers(keystream(key, "numbers of a draw"), wanted))
        torch.set_rng_state(_state(key, "state for a draw"))
        return func(*args, **kwargs)
    finally:
        torch.set_rng_state(after)


def _is_own(generator: Any) -> bool:
    """Whether a call names another generator than the global one, of which it is given a new wrapper."""
    default: Any = torch.default_generator
    return generator is not None and generator._cdata != default._cdata


def _device(given: dict[str, Any]) -> torch.device:
    """Where a call draws: on the device that it names, or on that of its first tensor."""
    if given.get("device") is not None:
        return torch.device(given["device"])
    tensors = [value for value in given.values() if isinstance(value, Tensor)]
    return tensors[0].device if tensors else torch.device("cpu")


def _state(key: bytes, domain: str) -> Tensor:
    words = keystream(key, domain).words(0, WORDS // 2)
    return cpu_state(words.view(np.uint32), marked(int(words[0])))


def _words(source: AesCounter, shape: Any, bits: int) -> Any:
    """Unsigned integers of 32 or 64 bits, as a NumPy array."""
    count = int(np.prod(tuple(shape), dtype=np.int64))
    if bits == 64:
        return source.words(0, count)
    return source.words(0, -(-count // 2)).view(np.uint32)[:count]


def _tensor(values: Any, shape: Any, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(values).reshape(tuple(shape)).to(dtype)


def _uniforms(source: AesCounter, shape: Any, dtype: torch.dtype) -> Tensor:
    """In [0, 1), multiples of the type's precision."""
    bits = _BITS.get(dtype, 24)
    words = _words(source, shape, 64 if bits > 32 else 32)
    return _tensor((words >> (words.itemsize * 8 - bits)) * 2.0**-bits, shape, dtype)


def _normals(source: AesCounter, shape: Any, dtype: torch.dtype) -> Tensor:
    return _tensor(ndtri(((_words(source, shape, 64) >> 11) + 0.5) * 2.0**-53), shape, dtype)


def _integers(source: AesCounter, shape: Any, low: int, high: int) -> Tensor:
    """In [low, high): a remainder of 64 bits."""
    words, span = _words(source, shape, 64), high - low
    rest = words if span >= 2**64 else words % np.uint64(span)
    return _tensor((rest + np.uint64(low % 2**64)).view(np.int64), shape, torch.int64)


def _tosses(source: AesCounter, shape: Any, chance: Any) -> Tensor:
    """True with probability `chance`, to 2^-32; a number, or a tensor that is broadcast to the shape."""
    words = _words(source, shape, 32)
    if isinstance(chance, Tensor):
        return _tensor(words * 2.0**-32, shape, torch.float64) < chance
    below = round(chance * 2.0**32)
    return _tensor(words < below if below < 2**32 else np.ones(len(words), bool), shape, torch.bool)


def _numbers(source: AesCounter, wanted: Drawing) -> Tensor:
    """What a drawing asks for."""
    shape, dtype = wanted.shape, wanted.dtype
    if wanted.law == "coins":
        return _tosses(source, shape, wanted.chance)
    if wanted.law == "uniform":
        return _uniforms(source, shape, dtype)
    if wanted.law == "normal":
        return _normals(source, shape, dtype)
    high = wanted.high
    if high is None:  # all integers that the type holds exactly
        high = 2 ** _BITS[dtype] + 1 if dtype.is_floating_point else torch.iinfo(dtype).max + 1
    return _integers(source, shape, wanted.low, high)
