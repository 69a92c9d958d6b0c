"""Records from files, and releases to files: CSV, JSON lines, and Parquet where Polars is installed."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from anechoic.errors import UnsupportedError
from anechoic.streaming.release import Release

HEAD = ("step", "time", "statistic", "entry", "label", "value", "standard_error", "low", "high", "epsilon")


def read_columns(source: str, names: Sequence[str], *, growing: bool = False) -> dict[str, list[str]]:
    """The named columns of a file, as text: CSV with a head, JSON lines (.jsonl, .ndjson) or Parquet.

    Args:
        source: file name, or "-" for standard input, which is CSV, or JSON lines where it begins with "{".
        names: of the columns.
        growing: whether somebody still writes the file. A last line without its end is then left out.

    A record is one line, in CSV too: a quoted field that goes on in the next line is refused, since a lone
    quote would take all records after it for one field. Then nothing is read, and the error says which line.

    Raises:
        ValueError: for a column that is missing, or a line that cannot be read.
        UnsupportedError: for Parquet without Polars.
    """
    if source.endswith(".parquet"):
        return _from_parquet(source, names)
    with _opened(source) as file:
        first = file.readline()
        lines = _chained(first, file)
        if growing:
            lines = (line for line in lines if line.endswith("\n"))
        if first.lstrip().startswith("{") or source.endswith((".jsonl", ".ndjson")):
            return _from_json(source, lines, names)
        return _from_csv(source, lines, names)


def _opened(source: str) -> AbstractContextManager[IO[str]]:
    return nullcontext(sys.stdin) if source == "-" else Path(source).open(encoding="utf-8", newline="")


def _chained(first: str, rest: IO[str]) -> Iterator[str]:
    if first:
        yield first
    yield from rest


def _from_csv(source: str, lines: Iterable[str], names: Sequence[str]) -> dict[str, list[str]]:
    rows = _rows(source, lines)
    _, head = next(rows, (1, []))
    places = [_place(source, name, head) for name in names]
    found: list[list[str]] = [[] for _ in names]
    for number, row in rows:
        if len(row) != len(head):
            raise ValueError(
                f"line {number} of {source} has {len(row)} fields, the head {len(head)}: mend it, or"
                " leave it out."
            )
        for column, place in zip(found, places, strict=True):
            column.append(row[place])
    return dict(zip(names, found, strict=True))


def _rows(source: str, lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """(number of the line, its fields) for each line that is not empty.

    Raises:
        ValueError: for a line that is no record by itself. Records are private: none is shown.
    """
    reader = csv.reader(lines, strict=True)
    before, row, why = 0, [], ""
    while not why:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            why = f"{error}; a field has at most {csv.field_size_limit()} letters"
        if not why and reader.line_num > before + 1:
            why = "a quoted field goes on in the next line"
        before += 1
        if row and not why:
            yield before, row
    raise ValueError(
        f"line {before} of {source} is no record ({why}): mend it, or leave it out. Nothing was read."
    )


def _from_json(source: str, lines: Iterable[str], names: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {name: [] for name in names}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            for name in names:
                found[name].append(text_of(record.get(name)))
        except (ValueError, AttributeError, RecursionError) as error:
            why = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
            raise ValueError(f"line {number} of {source} is no JSON object: {why}.") from None
    return found


def _from_parquet(source: str, names: Sequence[str]) -> dict[str, list[str]]:
    frame = _polars().read_parquet(source)
    for name in names:
        _place(source, name, frame.columns)
    return {name: [text_of(value) for value in frame[name].to_list()] for name in names}


def text_of(value: Any) -> str:
    """A value of JSON or Parquet as text: numbers that are equal have one, so 7, 7.0 and "7" are the same.

    What is missing (None, NaN) is empty.
    """
    if isinstance(value, float):
        if math.isnan(value):
            return ""
        return str(int(value)) if value.is_integer() else repr(value)
    return "" if value is None else str(value)


def _place(source: str, name: str, head: Sequence[str]) -> int:
    if name not in head:
        raise ValueError(f"{source} has no column {name!r}; it has {', '.join(head) or 'none'}.")
    return list(head).index(name)


def _polars() -> Any:
    if find_spec("polars") is None:
        raise UnsupportedError(
            "Parquet needs Polars, which is not installed: pip install 'anechoic[streaming]', or use CSV."
        )
    import polars

    return polars


def rows_of(releases: Iterable[Release]) -> Iterator[tuple[Any, ...]]:
    """One row for each number of each statistic, in the order of `HEAD`."""
    for release in releases:
        for name, estimate in release.estimates.items():
            arrays = (estimate.value, estimate.standard_error, estimate.low, estimate.high)
            columns = (release.labels_of(name), *(array.ravel().tolist() for array in arrays))
            for entry, cells in enumerate(zip(*columns, strict=True)):
                yield (release.step, release.time, name, entry, *cells, release.epsilon)


def checked_target(path: Path) -> Path:
    """`path` if `write_releases` can write it.

    Raises:
        UnsupportedError: for Parquet without Polars.
        ValueError: for a name of another kind of file.
    """
    if path.suffix == ".parquet":
        _polars()
    elif path.suffix not in (".csv", ".jsonl", ".ndjson"):
        raise ValueError(f"out={path} must end in .csv, .jsonl or .parquet.")
    return path


def write_releases(path: Path, releases: Iterable[Release]) -> None:
    """All releases as a table: .csv, .jsonl or .parquet, by the file's name.

    Raises:
        UnsupportedError: for Parquet without Polars.
        ValueError: for another kind of file.
    """
    match checked_target(path).suffix:
        case ".csv":
            with path.open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(HEAD)
                writer.writerows(rows_of(releases))
        case ".jsonl" | ".ndjson":
            with path.open("w", encoding="utf-8") as file:
                for row in rows_of(releases):
                    file.write(json.dumps(dict(zip(HEAD, row, strict=True))) + "\n")
        case ".parquet":
            rows = list(rows_of(releases))
            frame = _polars().DataFrame(rows, schema=HEAD, orient="row", infer_schema_length=None)
            frame.write_parquet(path)
