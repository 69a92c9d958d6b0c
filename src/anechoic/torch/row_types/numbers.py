"""Numbers that a script takes out of tensors of the batch, which remember where they come from."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any


class RowNumber(float):
    """A float that rows of the batch decided, as `loss.item()` is; arithmetic with it gives others."""

    __slots__ = ()


def _passed_on(function: Callable[..., Any], *, reflected: bool) -> Callable[..., Any]:
    def method(self: RowNumber, other: Any) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented
        pair = (float(other), float(self)) if reflected else (float(self), float(other))
        return RowNumber(function(*pair))

    return method


for _name in ("add", "sub", "mul", "truediv", "pow"):
    setattr(RowNumber, f"__{_name}__", _passed_on(getattr(operator, _name), reflected=False))
    setattr(RowNumber, f"__r{_name}__", _passed_on(getattr(operator, _name), reflected=True))


def among(value: Any) -> bool:
    """Whether an argument is one, or holds one."""
    if isinstance(value, (list, tuple)):
        return any(map(among, value))
    if isinstance(value, dict):
        return any(map(among, value.values()))
    return isinstance(value, RowNumber)


def taken(value: Any) -> Any:
    """What was read from a tensor of the batch: a number that remembers it, or a list of such."""
    if isinstance(value, list):
        return [taken(part) for part in value]
    return RowNumber(value) if type(value) in (int, float) else value
