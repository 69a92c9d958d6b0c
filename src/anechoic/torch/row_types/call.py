"""One operation, and the labels of its arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anechoic.torch.row_types.batch import Batch
from anechoic.torch.row_types.labels import Label, One, Picked, RowAxis, Total

Rule = Callable[["Call"], Any]


class Call:
    """One operation, as one run sees it.

    Args:
        batch: in which it is done.
        func, args, kwargs: of the operation.
        tensors: among the arguments.
        labels: of those that have one, by identity.

    Attributes:
        out, made: what it returned, and the tensors among that.
    """

    def __init__(
        self,
        batch: Batch,
        func: Any,
        args: Any,
        kwargs: Any,
        tensors: list[Tensor],
        labels: dict[int, Label],
    ) -> None:
        self.batch, self.rows = batch, batch.rows
        self.func, self.packet, self.args, self.kwargs = func, func.overloadpacket, args, kwargs
        self.tensors, self.labels = tensors, labels

    def returned(self, out: Any, made: list[Tensor]) -> None:
        """It is done."""
        self.out, self.made = out, made

    @functools.cached_property
    def _given(self) -> dict[str, Any]:
        names, defaults = _signature(self.func)
        return {**defaults, **dict(zip(names, self.args, strict=False)), **self.kwargs}

    def __getitem__(self, name: str) -> Any:
        """An argument by name; None where there is none."""
        return self._given.get(name)

    def label(self, value: Any) -> Label | None:
        return self.labels.get(id(value)) if isinstance(value, Tensor) else None

    @functools.cached_property
    def labelled(self) -> list[tuple[Tensor, Label]]:
        return [(t, found) for t in self.tensors if (found := self.labels.get(id(t))) is not None]

    @property
    def written(self) -> list[Tensor]:
        """The tensors that it writes to."""
        names = _written(self.func)
        if not names or self["training"] is False:
            return []
        return tensors_among([self[name] for name in names])

    def only(self, *names: str) -> RowAxis:
        """The label that the named arguments share; the others have none."""
        given = [self._given.get(name) for name in names]
        found = {found for t in given if (found := self.label(t)) is not None}
        if len(found) != 1 or any(not any(t is g for g in given) for t, _ in self.labelled):
            raise NotApart(f"{self} takes rows beside rows in another place")
        label = found.pop()
        if not isinstance(label, RowAxis):
            raise NotApart(f"{self} of {words(label)}")
        return label

    def dims(self, tensor: Tensor, name: str = "dim") -> list[int] | None:
        """The axes that are named, counted from the first; None for all."""
        value = self[name]
        if value is None or (isinstance(value, (list, tuple)) and not value):
            return None
        axes = [value] if isinstance(value, int) else list(value)
        return [axis % max(1, tensor.dim()) for axis in axes]

    def __str__(self) -> str:
        return str(self.packet.__name__).strip("_")


class NotApart(Exception):
    """Rows are not kept apart, and why."""


#: What to do about a mean over tokens of all rows.
EACH_ROW = (
    "give each row its own mean: with losses of reduction='none' and a mask, of shape (rows, tokens), take"
    " ((losses * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()"
)


def tensors_among(value: Any) -> list[Tensor]:
    """The tensors among the leaves of lists, tuples and dicts."""
    found: list[Tensor] = []
    todo = [value]
    while todo:
        part = todo.pop()
        if isinstance(part, Tensor):
            found.append(part)
        elif isinstance(part, (list, tuple)):
            todo += part[::-1]
        elif isinstance(part, dict):
            todo += [*part.values()][::-1]
    return found


@functools.cache
def _written(func: Any) -> tuple[str, ...]:
    said = tuple(a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    return said or _UNSAID.get(func.overloadpacket, ())


@functools.cache
def _signature(func: Any) -> tuple[list[str], dict[str, Any]]:
    arguments = func._schema.arguments
    defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
    return [a.name for a in arguments], defaults


def words(label: Label) -> str:
    return {Total: "a total over rows", Picked: "values of some rows", One: "one row"}.get(
        type(label), "rows"
    )


def _unsaid() -> dict[Any, tuple[str, ...]]:
    norms = packets("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "batch_norm_update_stats")
    return dict.fromkeys(norms, ("running_mean", "running_var"))


def packets(*names: str) -> frozenset[Any]:
    """torch's operations of these names, as far as it has them."""
    aten: Any = torch.ops.aten
    return frozenset(getattr(aten, name) for name in names if hasattr(aten, name))


#: What operations write to though their schemas do not say so.
_UNSAID = _unsaid()
