"""The trainable part of a model as one vector."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from anechoic._validate import Array

Arrays = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class LayoutEntry:
    """One array: its name, shape, and dtype as NumPy writes it."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Numbers in it; 1 for a 0-d array."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class Layout:
    """Names, shapes and dtypes of what is trained, in order; and the names that are not.

    Example:
        >>> import numpy as np
        >>> model = {"w": np.ones((2, 3), np.float32), "b": np.float32(1), "seen": np.int64(7)}
        >>> layout = Layout.of(model, exclude=["seen"])
        >>> layout.dimension, layout.names
        (7, ('w', 'b'))
        >>> layout.unflatten(np.zeros(7), like=model)["seen"]
        array(7)
    """

    entries: tuple[LayoutEntry, ...]
    excluded: tuple[str, ...]

    @classmethod
    def of(cls, arrays: Arrays, exclude: Collection[str] = ()) -> Layout:
        """The layout of a model.

        Args:
            arrays: by name, float16, float32 or float64.
            exclude: names of what is sent but not trained: counters, statistics of batch normalisation.

        Raises:
            ValueError: for an array of another dtype or with a number that is not finite, a name that is not
                there, or nothing left to train.
        """
        if isinstance(exclude, str):
            raise ValueError(f"exclude={exclude!r} must be a collection of names, such as [{exclude!r}].")
        missing = sorted(set(exclude) - set(arrays))
        if missing:
            raise ValueError(f"exclude names {missing}, which the model does not have: {sorted(arrays)}.")
        entries = []
        for name, given in arrays.items():
            if not isinstance(name, str):
                raise ValueError(f"array {name!r}: names must be text.")
            if name in exclude:
                if np.asarray(given).dtype.hasobject:
                    raise ValueError(f"array {name!r} holds Python objects, which no message carries.")
                continue
            array = np.asarray(given)
            if array.dtype.kind != "f" or array.dtype.itemsize > 8:
                raise ValueError(
                    f"array {name!r} has dtype {array.dtype}: only float16, float32 and float64 are trained."
                    f" Name it in exclude=[{name!r}] if it is a counter or a buffer, which then stays as it"
                    " is at the server."
                )
            if not np.isfinite(array).all():
                raise ValueError(f"array {name!r} has a number that is not finite.")
            entries.append(LayoutEntry(name, array.shape, array.dtype.newbyteorder("=").str))
        layout = cls(tuple(entries), tuple(sorted(exclude)))
        if not layout.dimension:
            raise ValueError(f"no number is left to train: exclude={list(exclude)!r} takes all arrays.")
        return layout

    @property
    def names(self) -> tuple[str, ...]:
        """Of what is trained, in order."""
        return tuple(entry.name for entry in self.entries)

    @cached_property
    def dimension(self) -> int:
        """Numbers that are trained: the length of a vector."""
        return sum(entry.size for entry in self.entries)

    def flatten(self, arrays: Arrays) -> Array:
        """The trained arrays one after another, float64, shape (dimension,), in the order of `names`.

        What is excluded may be there, and is left out.

        Raises:
            ValueError: for a name that is missing or foreign, another shape or dtype.
        """
        fault = self.fault(arrays)
        if fault:
            raise ValueError(fault)
        return np.concatenate([np.ravel(arrays[name]) for name in self.names], dtype=np.float64)

    def fault(self, arrays: Any) -> str | None:
        """Why `arrays` are not of this layout, or None."""
        if not isinstance(arrays, Mapping):
            return "no arrays by name"
        names = set(arrays)
        missing = [name for name in self.names if name not in names]
        if missing:
            return f"array {missing[0]!r} is missing"
        foreign = names.difference(self.names, self.excluded)
        if foreign:
            return f"{len(foreign)} arrays of names that the model does not have"
        for entry in self.entries:
            found = _shape_and_dtype(arrays[entry.name])
            if found is None:
                return f"array {entry.name!r} is no array"
            shape, dtype = found
            if shape != entry.shape:
                return f"array {entry.name!r} has shape {shape}, not {entry.shape}"
            if dtype != entry.dtype:
                return f"array {entry.name!r} has dtype {dtype}, not {entry.dtype}"
        return None

    def unflatten(self, vector: Array, like: Arrays) -> dict[str, np.ndarray[Any, Any]]:
        """Arrays of the names, shapes and dtypes of the model; new ones.

        Args:
            vector: shape (dimension,).
            like: a model of this layout, from which the order of names and what is excluded are taken.
        """
        found, start = {}, 0
        for entry in self.entries:
            part = vector[start : start + entry.size]
            found[entry.name] = part.reshape(entry.shape).astype(entry.dtype)
            start += entry.size
        found.update((name, np.array(like[name])) for name in self.excluded)
        return {name: found[name] for name in like}


def _shape_and_dtype(given: Any) -> tuple[tuple[int, ...], str] | None:
    """Of an array or a scalar of NumPy, which is a 0-d array; None for anything else."""
    if type(given) is not np.ndarray and not isinstance(given, np.generic):
        return None  # subclasses too: masked entries would be taken for numbers
    return given.shape, given.dtype.newbyteorder("=").str
