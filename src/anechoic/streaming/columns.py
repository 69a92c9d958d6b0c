"""Columns of a batch: by name, entry by entry, and by their values where these are fewer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from logging import getLogger
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Coded:
    """A column by its values: entry i is values[places[i]]."""

    values: list[Any]
    places: Integers

    def __getitem__(self, chosen: Any) -> Coded:
        return Coded(self.values, self.places[chosen])

    def __len__(self) -> int:
        return len(self.places)

    def to_list(self) -> list[Any]:
        """Return the entries one by one."""
        return [self.values[place] for place in self.places.tolist()]

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        return np.array(self.to_list(), object)


def coded(column: Any) -> tuple[list[Any], Integers] | None:
    """Return (values, place of each entry in them) of a column of Arrow or Polars; None for others.

    Whoever looks at each value once is the faster the fewer there are.
    """
    if isinstance(column, Coded):
        if len(column.values) <= len(column):
            return column.values, column.places
        used, places = np.unique(column.places, return_inverse=True)  # a short part of a long column
        return [column.values[value] for value in used.tolist()], places
    try:
        if hasattr(column, "dictionary_encode"):  # Arrow
            found = column.dictionary_encode()
            found = found.combine_chunks() if hasattr(found, "combine_chunks") else found
            values = [*found.dictionary.to_pylist(), None]
            return values, np.asarray(found.indices.fill_null(len(values) - 1)).astype(np.int64)
        if hasattr(column, "replace_strict"):  # Polars
            held = column.unique()
            places = column.replace_strict(held, np.arange(len(held)))
            return held.to_list(), np.asarray(places.to_numpy(), np.int64)
    except Exception:  # columns of lists and the like are read entry by entry
        return None
    return None


#: Kinds of columns, as NumPy names them, by the names of types in Arrow, Polars, pandas and torch.
_KINDS = {
    "i": "u?int",
    "U": "str|large_string|utf8|large_utf8|categorical|enum",
    "S": "binary|large_binary|fixed_size_binary",
    "b": "bool",
    "f": "b?float|double|half|decimal|complex",
    "M": "date|time|duration|interval|list|struct|array|map|dict$|tuple|uuid",
}


def kind_of(column: Any) -> str:
    """Return the kind of a column by its type: a key of `_KINDS`; empty where a type says nothing of it."""
    if isinstance(column, Coded):  # of a column that had a type
        names = {type(value).__name__.lower() for value in column.values} - {"nonetype"}
        names = {"binary" if name == "bytes" else name for name in names}
    else:
        kind = getattr(column, "dtype", getattr(column, "type", None))
        kind = getattr(getattr(kind, "categories", None), "dtype", kind)
        kind = getattr(kind, "value_type", kind) if str(kind).startswith("dictionary") else kind
        letter = getattr(kind, "kind", "")
        if letter in ("u", "c", "m", "T", *_KINDS):
            return {"u": "i", "c": "f", "m": "M", "T": "U"}.get(letter, letter)
        names = {str(kind).lower().removeprefix("torch.")}
    kinds = {next((k for k, form in _KINDS.items() if re.match(form, name)), "") for name in names}
    return kinds.pop() if len(kinds) == 1 else ""


def check_kind(column: Any, what: str, kinds: str = "iUS") -> None:
    """Refuse a column whose type is that of none of these kinds: all of its records would be left out.

    Lists, and columns of objects, have no such type: there each entry is judged by itself.
    """
    if kind_of(column) not in ("", *kinds) and len(column):
        held = getattr(column, "dtype", getattr(column, "type", "such a kind"))
        raise ValueError(
            f"{what} is a column of {held}, of which every record would be left out: give astype(str), or"
            ' where a missing entry made integers floats astype("Int64") in pandas, cast(pl.Int64) in Polars,'
            ' cast("int64") in Arrow.'
        )


def warn_if_none(found: Sequence[Any], what: str) -> None:
    """Log that none of the entries of a batch can be read, where a list or objects have no type to tell."""
    if len(found) > 1 and not any(one is not None for one in found):
        getLogger(__name__).warning("no record of a batch has %s that can be read: all are left out.", what)


def column_of(batch: Any, name: str, column: str | None) -> Any:
    """Return a column of a batch, or the batch itself where none is named."""
    if hasattr(batch, "collect_schema") and not hasattr(batch, "iter_slices"):  # lazy, of Polars
        raise ValueError(
            "the batch is a lazy frame, which holds no records yet: give batch.collect(), or add up what is"
            " larger than memory with anechoic.engines.frames.accumulated, for add_sums."
        )
    if column is None:
        return batch
    try:
        return batch[column]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"the batch has no column {column!r}, which {name!r} reads: give it.") from error


def entries(given: Any, what: str) -> list[Any]:
    """Return the entries of a list or column one by one, scalars of NumPy as those of Python.

    A list is never made an array: one odd entry would change what all others are (7 becomes "7").
    """
    shape = getattr(given, "shape", None)
    if shape is not None and len(shape) != 1:
        raise ValueError(f"{what} has shape {tuple(shape)}; one entry a record is needed.")
    ways = (getattr(given, name, None) for name in ("tolist", "to_list", "to_pylist"))
    plain = next(filter(None, ways), None)
    if isinstance(given, str | bytes | Mapping | Set) or not (plain or isinstance(given, Iterable)):
        raise ValueError(f"{what} is a {type(given).__name__}: a list with one entry a record is needed.")
    listed = plain() if plain else list(given)
    # by its type: an entry may do anything when it is asked for its class
    return [entry.item() if issubclass(type(entry), _SCALARS) else entry for entry in listed]


#: Scalars of NumPy that are Python's; of a time `item` might make a plain integer.
_SCALARS = (np.bool_, np.integer, np.inexact, np.character)
