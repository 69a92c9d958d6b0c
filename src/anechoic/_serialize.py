"""Lossless JSON for frozen dataclasses: float64 arrays as base64, objects by registered name.

Only classes that were registered with `serializable` can be built from a file, and they are
built through their constructors, so that a file passes the same checks as a caller.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T", bound=type)

_REGISTRY: dict[str, type] = {}


def serializable(cls: T) -> T:
    """Return a dataclass, registered under its own name, so that it can be written and read back.

    Args:
        cls: a frozen dataclass; a class registered before under the same name is replaced.
    """
    _REGISTRY[cls.__name__] = cls
    return cls


def encode(value: Any) -> Any:
    """`value` as plain JSON data."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.ndarray):
        data = np.ascontiguousarray(value, dtype="<f8")
        return {"float64": base64.b64encode(data.tobytes()).decode("ascii"), "shape": list(data.shape)}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if type(value).__name__ in _REGISTRY and dataclasses.is_dataclass(value):
        fields = {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
        return {"type": type(value).__name__, **fields}
    raise TypeError(f"{type(value).__name__} cannot be written to JSON: register its class first.")


def decode(data: Any) -> Any:
    """The value that `encode` turned into `data`.

    Raises:
        ValueError: if `data` names an unknown class or field, lacks one, or holds a damaged array.
    """
    if isinstance(data, list):
        return [decode(item) for item in data]
    if not isinstance(data, Mapping):
        return data
    if "float64" in data:
        try:
            shape = tuple(data["shape"])
            raw = base64.b64decode(data["float64"], validate=True)
            return np.frombuffer(raw, dtype="<f8").reshape(shape).astype(np.float64)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"an array is damaged: {error}. Write the file again.") from error
    name = data.get("type")
    cls = _REGISTRY.get(name) if isinstance(name, str) else None
    if cls is None:
        raise ValueError(
            f"type={name!r} is unknown to this version of anechoic: if the class is somebody's own, import"
            " the module that registers it first."
        )
    fields = {key: decode(item) for key, item in data.items() if key != "type"}
    known = {f.name for f in dataclasses.fields(cls) if f.init}
    if unknown := set(fields) - known:
        raise ValueError(f"{name} has no field {sorted(unknown)[0]!r}.")
    try:
        return cls(**fields)
    except TypeError as error:  # a field is missing, or of a kind its constructor cannot read
        raise ValueError(f"{name} cannot be built from {sorted(fields)}: {error}.") from error


def text_of(given: str | Path) -> str:
    """A JSON text as it is; of a path, or a text that is one, the text of the file.

    Raises:
        FileNotFoundError: if there is no such file.
    """
    if isinstance(given, str):
        line = given.strip()
        if "{" in line or "\n" in line or len(line) > 1024:
            return given
        if not (line.endswith(".json") or Path(line).is_file()):
            return given
    return Path(given).read_text(encoding="utf-8")
