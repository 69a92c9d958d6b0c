"""What layers hold beside parameters and buffers: options, hooks, settings, in snapshots to compare."""

from __future__ import annotations

import enum
from collections.abc import Container, Iterable
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch import Tensor, nn

#: Values inside of objects that one snapshot of a model takes, of one object, and how deep: what lies beyond
#: is not compared.
VALUES, OF_ONE, DEEP = 1024, 128, 5
#: Entries of a tensor or an array that is compared by value; larger ones by identity and version.
SMALL = 64
_PLAIN = (int, float, complex, bool, str, bytes, type(None))
_CONSTANT = (enum.Enum, torch.dtype, torch.device)
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
#: What every nn.Module has, and what is compared elsewhere.
_ELSEWHERE = frozenset(nn.Module().__dict__) - {"training"}


class Snapshot:
    """Attributes of layers as they are now: `layer` gives those of one, by name.

    Numbers, strings, functions and small tensors are compared by value, and so are dicts, lists, tuples, sets
    and plain objects (configurations, dataclasses) that hold such, to any depth. Each object is read once
    for all layers, and at most `VALUES` values are.
    """

    def __init__(self) -> None:
        self._read: dict[int, Any] = {}
        self._held: list[Any] = []  # so that no other object gets the identity of one that was read
        self._left = VALUES

    def layer(self, layer: nn.Module, skipped: Container[str] = ()) -> dict[str, Any]:
        """Of one layer, but for `skipped`; with its class, its forward(), its hooks and its parts."""
        own = layer.__dict__
        found = {
            name: value if type(value) in _PLAIN else self._of(value, DEEP)
            for name, value in own.items()
            if name not in _ELSEWHERE and name not in skipped
        }
        for name in _HOOKS:
            if own[name]:
                found[name] = tuple(own[name])
        self._held.append(type(layer).forward)
        found["class"] = (id(type(layer)), id(type(layer).forward))
        found["parts"] = tuple((name, id(part)) for name, part in own["_modules"].items())
        return found

    def _of(self, value: Any, deep: int) -> Any:
        if isinstance(value, (*_PLAIN, *_CONSTANT)):
            return value
        if isinstance(value, (Tensor, np.ndarray)):
            return _of_array(value)
        self._held.append(value)
        if isinstance(value, (nn.Module, type)):
            return id(value)
        if id(value) not in self._read:
            self._read[id(value)] = id(value)  # for whoever holds itself
            self._read[id(value)] = self._of_several(value, deep) if deep else type(value).__qualname__
        return self._read[id(value)]

    def _of_several(self, value: Any, deep: int) -> Any:
        parts: list[Any]
        if isinstance(value, dict):
            keys = [key for key in value if isinstance(key, _PLAIN)][:OF_ONE]
            parts = [*keys, *self._all((value[key] for key in keys), deep)]
        elif isinstance(value, (list, tuple)):
            parts = self._all(value[:OF_ONE], deep)
        elif isinstance(value, (set, frozenset)):
            parts = sorted(map(repr, value)) if len(value) <= SMALL else []
        else:
            parts = [id(value)] if callable(value) else []
            own = dict(list(_attributes(value).items())[:OF_ONE])
            parts += [*own, *self._all(own.values(), deep)]
        length = len(value) if isinstance(value, (dict, list, tuple, set, frozenset)) else 0
        return type(value).__qualname__, length, tuple(parts)

    def _all(self, values: Iterable[Any], deep: int) -> list[Any]:
        found = []
        for value in values:
            self._left -= 1
            if self._left < 0:
                break
            found.append(value if type(value) in _PLAIN else self._of(value, deep - 1))
        return found


def _attributes(value: Any) -> dict[str, Any]:
    own: dict[str, Any] = dict(getattr(value, "__dict__", None) or {})
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__") and hasattr(value, name):
                own[name] = getattr(value, name)
    return own


class _Same:
    """Equal to another of the same object, as long as that is there; keeps no memory."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: Any) -> None:
        self._ref = ref(value)

    def __eq__(self, other: object) -> bool:
        mine = self._ref()
        return isinstance(other, _Same) and mine is not None and mine is other._ref()


def _of_array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        small = value.size <= SMALL and value.dtype != object
        return (value.shape, value.tobytes()) if small else _Same(value)
    if value.numel() <= SMALL and value.device.type == "cpu" and value.layout is torch.strided:
        return value.dtype, tuple(value.shape), tuple(value.detach().reshape(-1).tolist())
    return _Same(value), value._version
