"""What layers hold beside parameters and buffers: options, hooks, settings, in snapshots to compare."""

from __future__ import annotations

import enum
import sys
from collections.abc import Container, Iterable, Mapping, Sequence, Set
from itertools import islice
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch import Tensor, nn

#: Values inside of objects that one snapshot of a model takes, of one object, and how deep: what lies beyond
#: is not compared.
VALUES, OF_ONE, DEEP = 4096, 1024, 5
#: Entries of a tensor or an array that is compared by value; larger ones by identity and version.
SMALL = 64
_PLAIN = (int, float, complex, bool, str, bytes, type(None))
_CONSTANT = (enum.Enum, torch.dtype, torch.device)
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
#: Packages whose classes are taken to stay as they are.
_SETTLED = sys.stdlib_module_names | {"torch", "numpy"}
#: What every nn.Module has, and what is compared elsewhere.
_ELSEWHERE = frozenset(nn.Module().__dict__) - {"training"}


class AttributeSnapshot:
    """Attributes of layers as they are now: `layer` gives those of one, by name.

    Numbers, strings, functions and small tensors are compared by value, and so are mappings, sequences, sets
    and plain objects (configurations, dataclasses) that hold such, `DEEP` levels down, and the attributes of
    their classes and of the layers', but for those of torch, numpy and Python. Each object is read once for
    all layers, and at most `VALUES` values are, `OF_ONE` of one object.
    """

    def __init__(self) -> None:
        self._read: dict[tuple[int, int], Any] = {}
        self._held: list[Any] = []  # so that no other object gets the identity of one that was read
        self._classes: dict[type, dict[str, Any]] = {}
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
        of_class = self._of_layers(type(layer))
        found |= {name: value for name, value in of_class.items() if name not in skipped}
        found["parts"] = tuple((name, id(part)) for name, part in own["_modules"].items())
        return found

    def _of_layers(self, kind: type) -> dict[str, Any]:
        """Attributes of a class of layers, by names that no attribute of a layer has."""
        if kind not in self._classes:
            own = _class_attributes(kind)
            names = (f"class.{name}" for name in own)
            self._classes[kind] = dict(zip(names, self._all(own.values(), DEEP), strict=False))
        return self._classes[kind]

    def _of(self, value: Any, deep: int) -> Any:
        if isinstance(value, (*_PLAIN, *_CONSTANT)):
            return value
        if isinstance(value, (Tensor, np.ndarray)):
            return _of_array(value)
        self._held.append(value)
        if isinstance(value, nn.Module):
            return id(value)
        key = id(value), deep  # what is first met far down is read again where it is near
        if key not in self._read:
            self._read[key] = id(value)  # for whoever holds itself
            self._read[key] = self._of_several(value, deep) if deep else type(value).__qualname__
        return self._read[key]

    def _of_several(self, value: Any, deep: int) -> Any:
        kind = type(value)
        if isinstance(value, type):
            return id(value), *self._named(_class_attributes(value), deep)
        if isinstance(value, (bytearray, memoryview)):
            return kind.__qualname__, len(value), bytes(value[: SMALL * OF_ONE])
        if isinstance(value, Mapping):
            keys = list(islice(value, OF_ONE))
            found = [*self._all(keys, deep), *self._all((value[key] for key in keys), deep)]
        elif isinstance(value, Sequence):
            found = self._all(islice(value, OF_ONE), deep)
        elif isinstance(value, Set):
            found = _members(value)
        else:
            found = [id(value)] if callable(value) else [_opaque(value)]
        length = len(value) if isinstance(value, (Mapping, Sequence, Set)) else 0
        own = self._named(_attributes(value), deep)
        of_class = None if _settled(kind) else self._of(kind, deep)
        return kind.__qualname__, length, tuple(found), own, of_class

    def _named(self, attributes: dict[str, Any], deep: int) -> tuple[Any, ...]:
        names = list(attributes)[:OF_ONE]
        return *names, *self._all((attributes[name] for name in names), deep)

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


def _settled(kind: type) -> bool:
    return str(kind.__module__).partition(".")[0] in _SETTLED


def _class_attributes(kind: type) -> dict[str, Any]:
    """Attributes of a class and its bases that are settings: no names of Python's, methods or properties."""
    own: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if not _settled(base):
            own |= {
                name: value
                for name, value in vars(base).items()
                if not name.startswith("__") and name != "_abc_impl" and not hasattr(type(value), "__get__")
            }
    return own


def _members(value: Set[Any]) -> list[Any]:
    """Of a set, whose order says nothing."""
    if len(value) <= OF_ONE and all(type(member) in _PLAIN for member in value):
        return [frozenset(value)]
    return sorted(map(repr, value)) if len(value) <= SMALL else []


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


def _opaque(value: Any) -> int:
    """What tells a value from another where nothing can be looked into: NumPy scalars, decimals, dates."""
    try:
        return hash(value)
    except TypeError:
        return 0
