"""What torch draws at random on the CPU during a step, from AES-256 and not from its Mersenne Twister.

A Mersenne Twister is linear over GF(2): whoever reads some 20,000 coins off a release, such as masks that a
model draws once for the whole batch, solves for its state and knows every other mask of the step. Where the
masks of rows follow their places (hooks, ghost clipping), the guarantee holds because nobody knows them. So
the generator's state only serves as a key here: each call that draws gets numbers of its own keystream, and
a new state that says nothing of the last one.

All that is drawn remains a function of the state before the call: to set the state back is to draw the same
numbers again, as activation checkpointing and comparisons with single rows do.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from anechoic.noise.keystream import AesCounter, keystream
from anechoic.torch.randomness.generators import WORDS, cpu_state, is_secret, marked
from anechoic.torch.randomness.rng_ops import Drawing, arguments, drawing, no_dropout
from anechoic.torch.row_types import modes
from anechoic.torch.row_types.modes import seen

#: Random bits that a uniform number of a type holds: those of its significand.
_BITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


class SecretDraws(TorchDispatchMode):
    """While active, calls that draw on the CPU draw from AES-256, keyed by the global generator's state.

    As long as that state is one that a run set: what a script seeded is known anyway, and drawn as ever.
    Uniform and normal numbers, integers, coins and dropout are the keystream's own bits; other laws draw from
    a Mersenne Twister that is filled from it for this one call. Calls with a generator of their own, and
    other devices, draw as ever.
    """

    def __init__(self) -> None:
        super().__init__()
        self._idle = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the guard against it is half of the cost

    @classmethod
    def active(cls) -> bool:
        """Whether one is."""
        stack = _get_current_dispatch_mode_stack()
        return any(isinstance(mode, cls) and not mode._idle for mode in stack)

    def start(self) -> None:
        """Be active; nothing to do where it is."""
        self._idle = False
        if not any(mode is self for mode in _get_current_dispatch_mode_stack()):
            self.__enter__()

    def stop(self) -> None:
        """Be active no longer. Under a mode that somebody has entered since, it stays and does nothing."""
        self._idle = True
        stack = _get_current_dispatch_mode_stack()
        if stack and stack[-1] is self:
            self.__exit__(None, None, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._idle:
            return func(*args, **kwargs)
        return seen(func, args, kwargs, _drawn if _draws(func) and not types else _done)


def _done(func: Any, args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs)


def _drawn(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of a call that draws at random."""
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


@functools.cache
def _draws(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


#: One for all runs of the process: which of them draws is told by the state of the generator.
_SHARED = SecretDraws()


def start() -> None:
    """Draw in secret in this thread from now on, as long as the generator's state is a run's."""
    _SHARED.start()
    modes.start()


def stop() -> None:
    """No longer."""
    _SHARED.stop()
    modes.stop()


@contextmanager
def paused() -> Iterator[None]:
    """Nothing that a run keeps secret is drawn inside: do without the cost, which every call has."""
    stack = _get_current_dispatch_mode_stack()
    if not stack or stack[-1] is not _SHARED:
        with modes.unseen():
            yield
        return
    _SHARED.__exit__(None, None, None)
    try:
        with modes.unwatched():
            yield
    finally:
        _SHARED.__enter__()


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


def _coins(source: AesCounter, shape: Any, chance: Any) -> Tensor:
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
        return _coins(source, shape, wanted.chance)
    if wanted.law == "uniform":
        return _uniforms(source, shape, dtype)
    if wanted.law == "normal":
        return _normals(source, shape, dtype)
    high = wanted.high
    if high is None:  # all integers that the type holds exactly
        high = 2 ** _BITS[dtype] + 1 if dtype.is_floating_point else torch.iinfo(dtype).max + 1
    return _integers(source, shape, wanted.low, high)
