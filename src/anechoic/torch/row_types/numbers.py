"""Numbers that a script takes out of tensors of the batch, which remember where they come from."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any


class RowFloat(float):
    """A float that rows of the batch decided, as `loss.item()` is; arithmetic with it gives others."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        return float, (float(self),)  # in a file it is a number like others


class RowInteger(int):
    """The same of integers."""

    def __reduce__(self) -> Any:
        return int, (int(self),)


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, float) else int(value)


def _passed_on(function: Callable[..., Any], *, reflected: bool = False) -> Callable[..., Any]:
    def method(self: Any, *others: Any) -> Any:
        if not all(isinstance(other, (int, float, type(None))) for other in others):
            return NotImplemented
        given = [_plain(self), *(other if other is None else _plain(other) for other in others)]
        return taken(function(*(reversed(given) if reflected else given)))

    return method


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_ALONE: dict[str, Callable[..., Any]] = {"round": round, "neg": operator.neg, "pos": operator.pos, "abs": abs}
for _kind in (RowFloat, RowInteger):
    for _name in _BINARY:
        setattr(_kind, f"__{_name}__", _passed_on(getattr(operator, _name)))
        setattr(_kind, f"__r{_name}__", _passed_on(getattr(operator, _name), reflected=True))
    for _name, _function in _ALONE.items():
        setattr(_kind, f"__{_name}__", _passed_on(_function))


def among(value: Any) -> bool:
    """Whether an argument is one, or holds one."""
    if isinstance(value, (list, tuple)):
        return any(map(among, value))
    if isinstance(value, dict):
        return any(map(among, value.values()))
    return isinstance(value, (RowFloat, RowInteger))


def taken(value: Any) -> Any:
    """What was read from a tensor of the batch: a number that remembers it, or a list of such."""
    if isinstance(value, list):
        return [taken(part) for part in value]
    kind = {float: RowFloat, int: RowInteger}.get(type(value))
    return value if kind is None else kind(value)
