"""Records of Polars and DuckDB, larger than memory, into a stream: beside the same sums without privacy.

python benchmarks/engines.py [--rows 100000000] [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from anechoic import streaming
from anechoic.engines.frames import accumulated

SITES = ["north", "south", "east", "west"]
#: Steps that the records are spread over, in order of time, and rows of a file.
STEPS, PART = 24, 10**7


def write_records(folder: Path, rows: int) -> None:
    """Parquet files of a site, a delay and a step, at most `PART` rows each."""
    import polars as pl

    choice = np.random.default_rng(0)
    for begin in range(0, rows, PART):
        count = min(PART, rows - begin)
        columns = {
            "site": pl.Series(choice.integers(0, 4, count, np.uint8)).replace_strict(range(4), SITES),
            "delay": choice.normal(5, 40, count).astype(np.float32),
            "step": ((begin + np.arange(count)) * STEPS // rows).astype(np.int32),
        }
        pl.DataFrame(columns).write_parquet(folder / f"{begin:012}.parquet")


def stream_of() -> streaming.Stream:
    statistics = {
        "visits": streaming.Count("site"),
        "sites": streaming.Histogram(SITES, "site"),
        "delay": streaming.Mean(-60, 360, "delay"),
    }
    return streaming.Stream(statistics, epsilon=1.0, horizon=STEPS)


def with_polars(folder: Path) -> Any:
    import polars as pl

    return pl.scan_parquet(folder / "*.parquet")


def with_duckdb(folder: Path) -> Any:
    import duckdb

    return duckdb.sql(f"SELECT * FROM read_parquet('{folder}/*.parquet')")


def plain(folder: Path) -> list[float]:
    """The same sums by Polars, without bounds on what workers may say and without noise."""
    import polars as pl

    delay = pl.col("delay").cast(pl.Float64).clip(-60, 360)
    by = pl.scan_parquet(folder / "*.parquet").group_by("step", "site").agg(pl.len(), delay.sum())
    found = by.collect(engine="streaming").group_by("step").agg(pl.sum("len"), pl.sum("delay")).sort("step")
    return list(np.cumsum(found["len"].to_numpy()))


def private(frame: Any) -> list[float]:
    stream = stream_of()
    stream.add_sums(accumulated(frame, stream, step="step"), batch_id="all")
    return [float(made["visits"].value) for made in stream.steps([streaming.Accumulator(stream)] * STEPS)]


WAYS: dict[str, Callable[[Path], list[float]]] = {
    "Polars without privacy": plain,
    "Polars into a stream": lambda folder: private(with_polars(folder)),
    "DuckDB into a stream": lambda folder: private(with_duckdb(folder)),
}


def measured(way: str, folder: Path) -> dict[str, float]:
    """Seconds of the processor and of the clock, and peak memory, of a process of its own."""
    program = [sys.executable, __file__, "--way", way, "--folder", str(folder)]
    return dict(json.loads(subprocess.run(program, check=True, capture_output=True, text=True).stdout))


def peak() -> float:
    """Peak memory of this process, in MB; what resource says of it begins at that of its parent."""
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return float(found[1]) / 1024 if found else float("nan")


def run_alone(way: str, folder: Path) -> None:
    first, began = time.process_time(), time.perf_counter()
    last = float(WAYS[way](folder)[-1])
    found = {
        "processor": time.process_time() - first,
        "seconds": time.perf_counter() - began,
        "MB": peak(),
        "visits": last,
    }
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10**7, help="of records; 10**9 take 7 GB of disk")
    parser.add_argument("--quick", action="store_true", help="10**6 rows")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        run_alone(options.way, options.folder)
        return
    rows = 10**6 if options.quick else options.rows
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        write_records(Path(name), rows)
        print(f"{rows:,} records, a count, a histogram and a mean over {STEPS} steps\n")
        print("| | processor, s | clock, s | records a processor second | peak memory, MB | visits |")
        print("|---|---|---|---|---|---|")
        for way in WAYS:
            one = measured(way, Path(name))
            speed = rows / one["processor"]
            print(
                f"| {way} | {one['processor']:.1f} | {one['seconds']:.1f} | {speed:,.0f} | {one['MB']:.0f}"
                f" | {one['visits']:,.0f} |"
            )
            found[f"records a processor second: {way}"] = speed
            found[f"peak MB: {way}"] = one["MB"]
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
