"""Records, streams and queries of the tests of Spark."""

import os
import sys
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from pyspark import SparkConf
from pyspark.sql import SparkSession

from anechoic.participation import MinSep
from anechoic.streaming.clock import Clock
from tests.streaming.released import bytes_of
from tests.streaming.test_accumulator import all_of, columns

START = datetime(2026, 5, 24, tzinfo=UTC)
CLOCK = {"time": "at", "start": "2026-05-24T00:00+00:00", "every": "1h"}
DELAY = 600
FILES, ROWS, HOURS = 6, 80, 4.4
UNITS = {"participation": MinSep(1, 6), "per_step": 400}
SETTINGS = {
    "spark.master": "local[2,4]",  # a task is tried four times
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "Asia/Kolkata",  # steps are of UTC whatever the session has
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # a JVM that begins fast
}


def files_of_records():
    """Records by file, of later hours in later ones; some come an hour late, and some have no time."""
    choice = np.random.default_rng(5)
    for file in range(FILES):
        found = []
        for i in range(ROWS):
            hour = HOURS * (file + choice.random()) / FILES - (1.2 if i % 11 == 3 else 0.0)
            at = None if i % 29 == 5 else START + timedelta(microseconds=round(hour * 3.6e9))
            kind = ["a", "b", "other", None][choice.integers(4)]
            found.append((f"u{file}.{i % 30}", float(choice.normal()), kind, at))
        yield found


def tables():
    schema = pa.schema(
        [("who", pa.string()), ("x", pa.float64()), ("kind", pa.string()), ("at", pa.timestamp("us", "UTC"))]
    )
    for records in files_of_records():
        yield pa.table(dict(zip(schema.names, map(list, zip(*records, strict=True)), strict=True)), schema)


def write_files(folder):
    """One file a micro-batch; Spark takes them in the order of their times."""
    folder.mkdir()
    for place, table in enumerate(tables()):
        path = folder / f"{place}.parquet"
        parquet.write_table(table, path)
        os.utime(path, (1_700_000_000 + place,) * 2)


def expected(units=False, direct=None):
    """Releases and remarks by one loop over the records, and a stream that gets them itself."""
    closed, late, kept = 0, 0, {}
    seconds = DELAY
    for records in files_of_records():
        times = [(at - START).total_seconds() for *_, at in records if at is not None]
        for who, x, kind, at in records:
            step = -1 if at is None else int((at - START).total_seconds() // 3600)
            late += 0 <= step < closed
            if step >= closed:
                kept.setdefault(step, []).append((who, x, kind))
        closed = max(closed, int((max(times) - seconds) // 3600))
    direct, found = direct or all_of(**(UNITS if units else {})), []
    clock = Clock(START.timestamp(), 3600.0)
    for step in range(closed):
        batch, ids = columns(kept.get(step, []))
        direct.update(batch, ids if units else None)
        found.append(bytes_of(direct.release(clock.end_of(step))))
    return found, late


def session():
    """Spark of this process."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    made = SparkSession.builder.config(conf=SparkConf().setAll(list(SETTINGS.items()))).getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    return made


def query(spark, folder, sink, then=lambda frame: frame, files=1):
    """All files through a query, to its end; so many a micro-batch."""
    source = spark.readStream.schema("who string, x double, kind string, at timestamp")
    frame = then(source.option("maxFilesPerTrigger", files).parquet(str(folder / "in")))
    written = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder / "checkpoint"))
    written.trigger(availableNow=True).start().awaitTermination()
