"""Columns of records: lists of text, or series of Polars where that is installed."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array
from anechoic.errors import UnsupportedError

#: A column of some records: texts, or a series of Polars.
Column = Any


def column_of(texts: list[str]) -> Column:
    """One kind for all, so that a number is read the same whatever its neighbours are."""
    return polars().Series(texts, dtype=polars().String) if has_polars() else texts


def texts_of(column: Column) -> list[str]:
    """A column as text."""
    if isinstance(column, list):
        return column
    if column.dtype == polars().String:
        return list(column.fill_null("").to_list())
    return list(map(text_of, column.to_list()))


def numbers_of(column: Column) -> tuple[Array, NDArray[np.bool_]]:
    """A column as numbers, NaN for what is none; and where something stands that is none."""
    if isinstance(column, list):
        found = np.array([_number(text) for text in column], dtype=np.float64)
        return found, np.isnan(found) & np.array([_is_odd(text) for text in column], dtype=bool)
    read = column.cast(polars().Float64, strict=False).to_numpy()
    found = np.array(read, dtype=np.float64)
    if column.dtype != polars().String:
        return found, np.zeros(len(found), bool)
    odd = np.isnan(found)
    for i in np.flatnonzero(odd).tolist():  # what Polars does not read: spaces, underscores
        text = column[i] or ""
        found[i], odd[i] = _number(text), _is_odd(text)
    return found, odd & np.isnan(found)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _is_odd(text: str) -> bool:
    """Whether something stands there that is not said to be missing."""
    return text.strip().lower() not in ("", "nan", "na", "null", "none")


def text_of(value: Any) -> str:
    """A value of JSON or Parquet as text: numbers that are equal have one, so 7, 7.0 and "7" are the same.

    What is missing (None, NaN) is empty.
    """
    if isinstance(value, float):
        if math.isnan(value):
            return ""
        return str(int(value)) if value.is_integer() else repr(value)
    return "" if value is None else str(value)


def has_polars() -> bool:
    return find_spec("polars") is not None


def polars() -> Any:
    """The package.

    Raises:
        UnsupportedError: if it is not installed.
    """
    if not has_polars():
        raise UnsupportedError(
            "Parquet needs Polars, which is not installed: pip install 'anechoic[streaming]', or use CSV."
        )
    import polars as found

    return found
