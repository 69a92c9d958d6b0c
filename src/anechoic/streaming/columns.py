"""Columns of records, as series of Polars: text, or the numbers of a Parquet file."""

from __future__ import annotations

import math
from datetime import UTC, tzinfo
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from anechoic._validate import Array
from anechoic.streaming.clock import seconds_of, seconds_of_local
from anechoic.streaming.coded import Coded, coded


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


#: Times that Polars reads as Python does; others are read one by one.
_PLAIN = r"^[12]\d{3}-\d\d-\d\d[T ]\d\d:\d\d(:[0-5]\d)?$"


#: Microseconds since 1970 that float64 holds, in any time zone; times of other centuries are read one by one.
_EXACT = 2**53 - 2**40


def times_of(column: pl.Series, zone: tzinfo) -> Array:
    """A column as seconds since 1970, as `seconds_of` reads its texts."""
    if column.dtype == pl.String:
        full = column.str.slice(0, 10) + "T" + column.str.slice(11, 8) + ":00"
        read = full.str.slice(0, 19).str.to_datetime("%Y-%m-%dT%H:%M:%S", time_unit="us", strict=False)
        known, local = column.str.contains(_PLAIN) & read.is_not_null(), zone
    elif isinstance(column.dtype, pl.Datetime):
        read = column.dt.cast_time_unit("us")
        known, local = read.to_physical().is_between(-_EXACT, _EXACT), UTC if column.dtype.time_zone else zone
    else:
        return seconds_of(texts_of(column), zone)
    known = known.fill_null(False)
    found = np.full(len(column), math.nan)
    found[known.to_numpy()] = seconds_of_local(read.to_physical().filter(known).to_numpy(), local)
    rest = np.flatnonzero(np.isnan(found))
    if len(rest):
        found[rest] = seconds_of(texts_of(column[rest]), zone)
    return found


def categories_of(column: pl.Series) -> Coded:
    """A column as text, each of them once."""
    if column.dtype != pl.String:
        column = column_of(texts_of(column))
    values, places = coded(column.fill_null("")) or ([], np.zeros(0, np.int64))
    return Coded(values, places)


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
