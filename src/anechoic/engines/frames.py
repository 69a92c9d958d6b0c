"""Frames of Polars, relations of DuckDB and batches of Arrow, larger than memory: sums of their steps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import positive_int
from anechoic.streaming import Accumulator
from anechoic.streaming.clock import by_step
from anechoic.streaming.columns import Coded, coded
from anechoic.streaming.layout import layout_of

__all__ = ["accumulated"]

#: Records that are read at once.
ROWS = 2**18


def accumulated(
    frame: Any, of: Any, *, step: str | None = None, unit: str | None = None, rows: int = ROWS
) -> list[Accumulator]:
    """Return what the records of a frame add, by step: for `Stream.add_sums`, which wants a batch id with it.

    Some records are in memory at once, of the columns that the stream reads; and an accumulator for each
    step, which for units that a ledger bounds holds each unit.

    Args:
        frame: a LazyFrame or DataFrame of Polars, a relation of DuckDB, a table of Arrow, or batches of it.
        of: the stream, or its `accumulator_spec()`.
        step: column of integers with the step of each record, which has to be a function of the record; None
            for records that all belong to the step that is open when they arrive. Records of no step, or of
            one below 0, are left out and counted.
        unit: column of the ids of units, where the stream tells units by ids.
        rows: that are read at once, >= 1.

    Returns:
        One accumulator for each step that has records, in the order of steps.

    Raises:
        ValueError: for something else than a frame, a column that is missing, steps that are no integers, or
            as `Accumulator`.
    """
    layout = layout_of(of)
    if unit is None and layout.secret is not None:
        raise ValueError("unit=None, but the stream tells units by ids: unit= names the column of ids.")
    kinds = layout.columns
    names = [*kinds, *(name for name in (step, unit) if name is not None and name not in kinds)]
    found: dict[int | None, Accumulator] = {}
    without = 0
    for batch in _batches(frame, names, positive_int("rows", rows)):
        columns = {name: _plain(batch[name], kinds.get(name, {False})) for name in kinds}
        units = None if unit is None else _plain(batch[unit], {False})
        whole: Any = columns if columns else len(batch)
        if step is None:
            found.setdefault(None, Accumulator(layout)).add(whole, units)
            continue
        steps = _steps(batch[step])
        without += int(np.count_nonzero(steps < 0))
        for one, places in by_step(steps):
            some = {name: column[places] for name, column in columns.items()} if columns else len(places)
            ids = None if units is None else units[places]
            found.setdefault(one, Accumulator(layout, one)).add(some, ids)
    made = [found[one] for one in sorted(found, key=lambda one: one or 0)]
    if without and made:
        made[0].remarks["without a step"] += without
    return made


def _batches(frame: Any, names: list[str], rows: int) -> Iterator[Any]:
    """The named columns of some records after others."""
    frame = frame.lazy() if hasattr(frame, "lazy") and hasattr(frame, "iter_slices") else frame
    if hasattr(frame, "collect_batches"):  # Polars
        _check_there(names, frame.collect_schema().names())
        chosen = frame.select(names) if names else frame
        yield from chosen.collect_batches(chunk_size=rows, maintain_order=False)
    elif hasattr(frame, "to_arrow_reader"):  # DuckDB
        _check_there(names, frame.columns)
        quoted = ", ".join('"' + name.replace('"', '""') + '"' for name in names)
        yield from (frame.project(quoted) if names else frame).to_arrow_reader(rows)
    elif hasattr(frame, "to_batches"):
        _check_there(names, frame.schema.names)
        yield from frame.to_batches(rows)
    elif isinstance(frame, Iterable) and not isinstance(frame, str | bytes | dict):
        yield from frame
    else:
        raise ValueError(
            f"frame, a {type(frame).__name__}, must be a frame of Polars, a relation of DuckDB, or batches of"
            " Arrow."
        )


def _check_there(names: list[str], known: list[str]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"the frame has no column {name!r}: it has {', '.join(map(repr, known))}.")


def _plain(column: Any, kinds: Iterable[bool | None]) -> Any:
    """A column that parts can be taken of: an array of numbers, or one that has each value once."""
    if True not in kinds and (held := coded(column)) is not None:
        return Coded(*held)
    found = np.asarray(column)
    if found.dtype.kind in "biuf":
        return found
    listed = column.to_list() if hasattr(column, "to_list") else column.to_pylist()
    made = np.empty(len(listed), object)
    made[:] = listed
    return made


def _steps(column: Any) -> NDArray[np.int64]:
    """Steps as integers; -1 for none."""
    found = np.asarray(column)
    kind = getattr(column, "type", getattr(column, "dtype", found.dtype))  # Arrow's, Polars' or NumPy's
    if not re.fullmatch(r"u?int\d+", str(kind).lower()):
        raise ValueError(
            f"the column of steps is of {kind}: give integers. A time becomes one by whole division,"
            " t // 3600; / gives floats, in DuckDB too, of which hardly one is a step."
        )
    if found.dtype.kind == "f":  # integers with missing ones among them
        return np.where(np.abs(found) < 2.0**53, found, -1.0).astype(np.int64)
    return found.astype(np.int64)
