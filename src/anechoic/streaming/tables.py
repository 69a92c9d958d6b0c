"""Releases to files: CSV, JSON lines, and Parquet where Polars is installed."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from anechoic.streaming.columns import polars
from anechoic.streaming.release import Release

HEAD = ("step", "time", "statistic", "entry", "label", "value", "standard_error", "low", "high", "epsilon")


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
        polars()
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
                    cells = [None if isinstance(c, float) and math.isnan(c) else c for c in row]
                    file.write(json.dumps(dict(zip(HEAD, cells, strict=True))) + "\n")
        case ".parquet":
            rows = list(rows_of(releases))
            frame = polars().DataFrame(rows, schema=HEAD, orient="row", infer_schema_length=None)
            frame.write_parquet(path)
