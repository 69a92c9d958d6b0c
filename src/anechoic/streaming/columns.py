"""Columns of records, as series of Polars: text, or the numbers of a Parquet file."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from anechoic._validate import Array


def column_of(texts: list[str]) -> pl.Series:
    """A column of text."""
    return pl.Series(texts, dtype=pl.String)


def texts_of(column: pl.Series) -> list[str]:
    """A column as text."""
    if column.dtype == pl.String:
        return list(column.fill_null("").to_list())
    return list(map(text_of, column.to_list()))


def numbers_of(column: pl.Series) -> tuple[Array, NDArray[np.bool_]]:
    """A column as numbers, NaN for what is none; and where something stands that is none."""
    found = np.array(column.cast(pl.Float64, strict=False).to_numpy(), dtype=np.float64)
    if column.dtype != pl.String:
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
