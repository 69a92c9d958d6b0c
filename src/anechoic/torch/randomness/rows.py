"""Random numbers of a model, row by row: each row draws from a generator of its own, known by its content.

Whether a row is in the batch must not change what other rows draw: it would move their gradients too, and
the sum by more than the clip norm. So a row's generator follows from a seed of the call (which knows no data)
and from the bits of the row's own inputs, never from its place. Two equal rows draw the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from anechoic.errors import UnsupportedError
from anechoic.torch.randomness.rng_ops import Drawing, arguments, drawing, no_dropout

_MASK = 2**64 - 1
_ODD = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio
_aten: Any = torch.ops.aten


def row_seeds(seed: int, tensors: list[Tensor]) -> list[int]:
    """One seed a row, a function of `seed` and the bits of that row.

    Args:
        seed: of the call, in [0, 2**64).
        tensors: inputs of the model, shape (rows, …), at least one.
    """
    total = torch.zeros(len(tensors[0]), dtype=torch.int64, device=tensors[0].device)
    for place, tensor in enumerate(tensors):
        total += _hashes(tensor, place + 1).to(total.device)
    return [_mixed((value & _MASK) ^ seed) for value in total.tolist()]


def _hashes(tensor: Tensor, place: int) -> Tensor:
    flat = tensor.detach().reshape(len(tensor), -1).contiguous()
    if flat.shape[1] == 0:
        return torch.zeros(len(flat), dtype=torch.int64, device=flat.device)
    octets = flat.view(torch.uint8)
    missing = -octets.shape[1] % 8
    words = (torch.nn.functional.pad(octets, (0, missing)) if missing else octets).view(torch.int64)
    weights = torch.arange(1, words.shape[1] + 1, device=flat.device) * (_ODD - 2**64) + 2 * place + 1
    return (words * (weights | 1)).sum(1)  # wraps around: exact, whatever the order of the sum


def _mixed(value: int) -> int:
    """The finaliser of SplitMix64: every bit of the seed depends on every bit of `value`."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class RowRandomness(TorchDispatchMode):
    """While active, what torch draws at random is drawn row by row.

    Args:
        seeds: one a row.
        stacked: whether drawn tensors have the rows as first axis (inside of vmap), or there is one row,
            and the whole tensor is its.
    """

    def __init__(self, seeds: list[int], *, stacked: bool) -> None:
        super().__init__()
        self._stacked = stacked
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and the guard against it is half of the cost

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        if no_dropout(func, args, kwargs or {}):
            return func(*args, **(kwargs or {}))
        given = arguments(func, args, kwargs or {})
        wanted = drawing(func, given)
        if wanted is not None:
            return wanted.finish(self._numbers(wanted))
        if func.overloadpacket in _IN_PLACE:
            return self._filled(_IN_PLACE[func.overloadpacket], given)
        if not self._stacked:
            return func(*args, **(kwargs or {}))  # one row alone: the generator is set for it
        raise UnsupportedError(f"{func} draws random numbers that are not known row by row.")

    def _numbers(self, wanted: Drawing) -> Tensor:
        """What a drawing asks for; in float32, whatever the type of the model."""
        chance, shape = wanted.chance, wanted.shape
        if wanted.law == "uniform" or (wanted.law == "coins" and isinstance(chance, Tensor)):
            uniform = self.drawn(shape, lambda row, generator: row.uniform_(generator=generator))
            return uniform if wanted.law == "uniform" else uniform.to(chance.device) < chance
        if wanted.law == "coins":
            return self.drawn(
                shape, lambda row, generator: row.bernoulli_(chance, generator=generator)
            ).bool()
        if wanted.law == "normal":
            return self.drawn(shape, lambda row, generator: row.normal_(generator=generator))
        dtype = torch.float32 if wanted.dtype.is_floating_point else wanted.dtype
        bounds = () if wanted.high is None and not wanted.low else (wanted.low, wanted.high)
        return self.drawn(shape, lambda row, generator: row.random_(*bounds, generator=generator), dtype)

    def _filled(self, name: str, given: dict[str, Any]) -> Tensor:
        """A tensor filled in place by another law, of which torch has a method of that name."""
        target: Tensor = given.pop("self")
        given.pop("generator", None)
        fill = lambda row, generator: getattr(row, name)(**given, generator=generator)  # noqa: E731
        dtype = torch.float32 if target.dtype.is_floating_point else target.dtype
        return target.copy_(self.drawn(target.shape, fill, dtype))

    def drawn(self, shape: Any, fill: Callable[..., Any], dtype: torch.dtype = torch.float32) -> Tensor:
        """A tensor on the CPU, each row filled by fill(row, generator=…): the same bits for every device."""
        made = torch.empty(tuple(shape), dtype=dtype)
        if not self._stacked:
            fill(made, generator=self._generators[0])
            return made
        if not made.dim() or len(made) != len(self._generators):
            raise UnsupportedError(
                f"random numbers of shape {tuple(shape)} do not belong to {len(self._generators)} rows."
            )
        for row, generator in zip(made, self._generators, strict=True):
            fill(row, generator=generator)
        return made


_IN_PLACE = {getattr(_aten, name): name for name in ("exponential_", "geometric_", "cauchy_", "log_normal_")}
