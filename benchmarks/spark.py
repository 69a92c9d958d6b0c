"""Records of Spark into a stream, beside the same query without privacy: the same files, groups and sums.

python benchmarks/spark.py [--rows 10000000] [--quick] [--json FILE]

Both are queries of Structured Streaming over Parquet with foreachBatch, each in a process of its own. Times
are those of the processor, of driver, JVM and Python workers together, with and without what an empty query
takes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from anechoic import streaming

SITES = ["north", "south", "east", "west"]
START, EVERY, STEPS, FILES = 1_779_580_800, 3600, 24, 4


def write_records(folder: Path, rows: int) -> None:
    """Parquet files, a micro-batch each: a site, a delay and a time; the last hour comes after all others."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    choice = np.random.default_rng(0)
    for file in range(FILES):
        count = rows // FILES
        seconds = START + EVERY * STEPS * (file + np.sort(choice.random(count))) / FILES
        table = {
            "site": pa.DictionaryArray.from_arrays(choice.integers(0, 4, count, np.int8), SITES).cast(
                pa.string()
            ),
            "delay": choice.normal(5, 40, count),
            "at": pa.array((seconds * 1e6).astype(np.int64), pa.timestamp("us", "UTC")),
        }
        path = folder / f"{file}.parquet"
        parquet.write_table(pa.table(table), path, row_group_size=2**20)
        os.utime(path, (1_700_000_000 + file,) * 2)


def session() -> Any:
    from pyspark.sql import SparkSession

    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    settings |= {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "3g"}
    made = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    return made


def plain(folder: Path) -> Any:
    """The same sums by Spark, kept by the driver: no bounds beyond clipping, no noise."""
    from pyspark.sql import functions as F

    found: dict[tuple[int, str], tuple[int, float]] = {}

    def sink(frame: Any, number: int) -> None:
        step = ((F.unix_micros("at") / 1e6 - START) / EVERY).cast("int").alias("step")
        clipped = F.least(F.greatest("delay", F.lit(-60.0)), F.lit(360.0))
        for row in frame.groupBy(step, "site").agg(F.count("*"), F.sum(clipped)).collect():
            before = found.get((row[0], row[1]), (0, 0.0))
            found[row[0], row[1]] = before[0] + row[2], before[1] + row[3]

    return sink


def private(folder: Path) -> Any:
    from anechoic.engines.spark import StreamSink

    statistics = {
        "visits": streaming.Count("site"),
        "sites": streaming.Histogram(SITES, "site"),
        "delay": streaming.Mean(-60, 360, "delay"),
    }
    board = streaming.Stream(statistics, epsilon=1.0, horizon=STEPS, state=folder / "state")
    return StreamSink(board, time="at", start="2026-05-24", every="1h", delay="1min")


def nothing(folder: Path) -> Any:
    return lambda frame, number: frame.limit(1).collect()


WAYS = {"nothing": nothing, "Spark without privacy": plain, "Spark into a stream": private}


def processor() -> float:
    """Seconds of the processor that all processes of this session took; nobody waits for the JVM."""
    ticks = 0
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # one that has just ended
            numbers = status.read_text().rpartition(")")[2].split()
            ticks += sum(map(int, numbers[11:15])) if int(numbers[3]) == os.getsid(0) else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def run_alone(way: str, folder: Path) -> None:
    spark = session()
    source = spark.readStream.schema("site string, delay double, at timestamp")
    with tempfile.TemporaryDirectory() as name:
        began = time.perf_counter()
        frame = source.option("maxFilesPerTrigger", 1).parquet(str(folder))
        query = frame.writeStream.foreachBatch(WAYS[way](Path(name)))
        query.option("checkpointLocation", f"{name}/checkpoint").trigger(availableNow=True).start()
        spark.streams.awaitAnyTermination()
        print(json.dumps({"processor": processor(), "clock": time.perf_counter() - began}), flush=True)
        spark.stop()


def measured(way: str, folder: Path) -> dict[str, float]:
    """Seconds of the processor, all processes together, and of the clock."""
    program = [sys.executable, __file__, "--way", way, "--folder", str(folder)]
    done = subprocess.run(
        program,
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        start_new_session=True,
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10**7, help="of records; 10**8 take 2 GB of disk")
    parser.add_argument("--quick", action="store_true", help="10**6 rows")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        run_alone(options.way, options.folder)
        return
    rows = 10**6 if options.quick else options.rows
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        write_records(Path(name), rows)
        found = {way: measured(way, Path(name)) for way in WAYS}
    print(f"{rows:,} records, {FILES} micro-batches, a count, a histogram and a mean over {STEPS} steps\n")
    print("| | processor, s | beyond an empty query, s | records a processor second | clock, s |")
    print("|---|---|---|---|---|")
    for way, one in found.items():
        more = one["processor"] - found["nothing"]["processor"]
        speed = f"{rows / more:,.0f}" if more > 0 else ""
        print(f"| {way} | {one['processor']:.1f} | {more:.1f} | {speed} | {one['clock']:.1f} |")
    base, ours = (found[f"Spark {way}"]["processor"] for way in ("without privacy", "into a stream"))
    start = found["nothing"]["processor"]
    said = f"{ours / base:.2f} all in, {(ours - start) / (base - start):.2f} beyond an empty query"
    print(f"\nwith privacy / without: {said}")
    if options.json:
        said = {f"processor s: {way}": one["processor"] for way, one in found.items()}
        options.json.write_text(json.dumps(said, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
