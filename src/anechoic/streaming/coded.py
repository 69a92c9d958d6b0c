"""Columns of a batch: by name, and by their values where these are fewer than the entries."""

from __future__ import annotations

from dataclasses import dataclass
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
        """The entries one by one."""
        return [self.values[place] for place in self.places.tolist()]

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        return np.array(self.to_list(), object)


def coded(column: Any) -> tuple[list[Any], Integers] | None:
    """(values, place of each entry in them) of a column of Arrow or Polars; None for others.

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


def column_of(batch: Any, name: str, column: str | None) -> Any:
    """A column of a batch, or the batch itself where none is named.

    Raises:
        ValueError: if it has no such column.
    """
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
