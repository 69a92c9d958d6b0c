"""Releases to files: CSV, JSON lines, and Parquet with Polars."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from anechoic.statement.rounding import round_up
from anechoic.streaming.release import PARTS, Release

HEAD = ("step", "time", "statistic", "entry", "label", *PARTS, "epsilon")


def rows_of(releases: Iterable[Release]) -> Iterator[tuple[Any, ...]]:
    """One row for each number of each statistic, in the order of `HEAD`."""
    for release in releases:
        for name, estimate in release.estimates.items():
            arrays = (getattr(estimate, part).ravel().tolist() for part in PARTS)
            for entry, cells in enumerate(zip(release.labels_of(name), *arrays, strict=True)):
                yield (release.step, release.time, name, entry, *cells, float(round_up(release.epsilon, 6)))


def checked_target(path: Path) -> Path:
    """`path` if `write_releases` can write it.

    Raises:
        ValueError: for a name of another kind of file.
    """
    if path.suffix not in (".csv", ".jsonl", ".ndjson", ".parquet"):
        raise ValueError(f"out={path} must end in .csv, .jsonl or .parquet.")
    return path


def write_releases(path: Path, releases: Iterable[Release]) -> None:
    """All releases as a table: .csv, .jsonl or .parquet, by the file's name.

    Raises:
        ImportError: for Parquet without Polars.
        ValueError: for another kind of file.
    """
    rows = rows_of(releases)
    if checked_target(path).suffix == ".parquet":
        import polars

        polars.DataFrame(list(rows), schema=HEAD, orient="row", infer_schema_length=None).write_parquet(path)
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        if path.suffix == ".csv":
            csv.writer(file).writerows([HEAD, *rows])
            return
        for row in rows:
            cells = [None if isinstance(c, float) and math.isnan(c) else c for c in row]
            file.write(json.dumps(dict(zip(HEAD, cells, strict=True))) + "\n")
