"""Numbers that a script takes out of tensors of the batch, which remember where they come from."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from torch import Tensor

from anechoic.torch.structure import is_object

#: In the place of a row: the number is one that a model took out of its own row.
OWN = -1


class RowFloat(float):
    """A float that rows of the batch decided, as `loss.item()` is; arithmetic with it gives others.

    Attributes:
        row: whose it is, where it is one row's, or `OWN`; else None.
    """

    row: int | None = None


class RowInteger(int):
    """The same of integers."""

    row: int | None = None


class RowCount(RowFloat):
    """A whole number of several rows, as `mask.sum().item()` is.

    A float for Python, whose own floats would take an int as it is and forget where it comes from (1.0 / n).
    """

    def __index__(self) -> int:
        return int(self)

    def __repr__(self) -> str:
        return repr(int(self))

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(int(self), spec)


def plain(value: Any) -> Any:
    """Python's own numbers in the place of these, in lists, tuples and dicts too."""
    if isinstance(value, RowCount):
        return int(value)
    if isinstance(value, RowFloat):
        return float(value)
    if isinstance(value, RowInteger):
        return int(value)
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    return {key: plain(part) for key, part in value.items()} if type(value) is dict else value


def _passed_on(function: Callable[..., Any], *, reflected: bool = False) -> Callable[..., Any]:
    def method(self: Any, *others: Any) -> Any:
        if not all(isinstance(other, (int, float, type(None))) for other in others):
            return NotImplemented
        given = [plain(self), *map(plain, others)]
        rows = {other.row for other in (self, *others) if isinstance(other, (RowFloat, RowInteger))}
        return taken(function(*(reversed(given) if reflected else given)), *(rows if len(rows) == 1 else ()))

    return method


_BINARY: dict[str, Callable[..., Any]] = {
    name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
} | {"divmod": lambda a, b: list(divmod(a, b))}
_ALONE: dict[str, Callable[..., Any]] = {"round": round, "neg": operator.neg, "pos": operator.pos, "abs": abs}
_kind: Any


def _reduced(self: Any) -> Any:
    """In a file it is a number like others."""
    value = plain(self)
    return type(value), (value,)


for _kind in (RowFloat, RowInteger):
    _kind.__reduce__ = _reduced
    _kind.real = property(lambda self: self)
    for _name, _function in _BINARY.items():
        setattr(_kind, f"__{_name}__", _passed_on(_function))
        setattr(_kind, f"__r{_name}__", _passed_on(_function, reflected=True))
    for _name, _function in _ALONE.items():
        setattr(_kind, f"__{_name}__", _passed_on(_function))


def among(value: Any, *, own: bool = True) -> bool:
    """Whether an argument is one, or holds one.

    Args:
        own: whether those count that a model took out of its own row.
    """
    todo = [value]
    while todo:
        part = todo.pop()
        if isinstance(part, (list, tuple)):
            todo += part
        elif isinstance(part, dict):
            todo += part.values()
        elif isinstance(part, (RowFloat, RowInteger)) and (own or part.row != OWN):
            return True
    return False


def taken(value: Any, row: int | None = None) -> Any:
    """What was read from a tensor of the batch: a number that remembers it, or a list of such.

    Args:
        row: whose it is, where it is one row's.
    """
    if isinstance(value, list):
        return [taken(part, row) for part in value]
    kind: Any = {float: RowFloat, int: RowCount if row is None else RowInteger}.get(type(value))
    if kind is None:
        return value
    made = kind(value)
    if row is not None:
        made.row = row
    return made


def one_a_row(value: Any, rows: int) -> bool:
    """Whether it is a list of numbers, of each row its own."""
    return (
        isinstance(value, (list, tuple))
        and len(value) == rows
        and all(getattr(number, "row", None) == row for row, number in enumerate(value))
    )


def with_numbers(content: Any, rows: int) -> Any:
    """A batch whose numbers remember that they came with it, and where there is one for each row, whose."""
    if isinstance(content, Tensor):
        return content
    kind = type(content)
    if kind in (int, float):
        return taken(content)
    if kind in (list, tuple):
        own = len(content) == rows and all(type(value) in (int, float) for value in content)
        made: Any = kind(
            taken(part, row) if own else with_numbers(part, rows) for row, part in enumerate(content)
        )
        return made if any(a is not b for a, b in zip(made, content, strict=True)) else content
    if kind is dict:
        made = {key: with_numbers(part, rows) for key, part in content.items()}
        return made if any(made[key] is not content[key] for key in made) else content
    if is_object(content):
        for name, part in vars(content).items():
            if type(part) in _HOLDING:
                vars(content)[name] = with_numbers(part, rows)
    return content


_HOLDING = frozenset({int, float, list, tuple, dict})
