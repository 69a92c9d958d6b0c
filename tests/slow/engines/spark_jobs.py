"""Records, streams and queries of the tests of Spark; what a driver does until it is killed.

python -m tests.slow.engines.spark_jobs FOLDER KILLS
"""

import json
import os
import random
import signal
import subprocess
import sys
import traceback
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

import anechoic.engines
import anechoic.runs
import anechoic.streaming
from anechoic.engines.spark import StreamSink
from anechoic.participation import MinSep
from anechoic.runs import digests
from anechoic.streaming.clock import Clock
from tests.streaming.released import bytes_of
from tests.streaming.test_accumulator import all_of, columns

START = datetime(2026, 5, 24, tzinfo=UTC)
CLOCK = {"time": "at", "start": "2026-05-24T00:00+00:00", "every": "1h"}
DELAY = 600
FILES, ROWS, HOURS = 6, 80, 4.4
UNITS = {"participation": MinSep(1, 6), "per_step": 400}
ROOMS = tuple(
    str(Path(room.__file__).parent) for room in (anechoic.streaming, anechoic.runs, anechoic.engines)
)
QUIET = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # a JVM that begins fast
SETTINGS = {
    "spark.master": "local[2,4]",  # a task is tried four times
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "Asia/Kolkata",  # steps are of UTC whatever the session has
    "spark.ui.showConsoleProgress": "false",
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


def session(**more):
    """Spark of this process; or that of a JVM that other drivers had before it."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    conf = SparkConf().setAll(list((SETTINGS | more).items()))
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        conf.set("spark.driver.extraJavaOptions", QUIET)
        made = SparkSession.builder.config(conf=conf).getOrCreate()
    else:
        gateway = launch_gateway()
        java, jconf = gateway.jvm.org.apache.spark, SparkConf(_jvm=gateway.jvm)
        jconf.setAll(list(SETTINGS.items())).setAppName("tests")
        inner = java.api.java.JavaSparkContext.fromSparkContext(java.SparkContext.getOrCreate(jconf._jconf))
        made = SparkSession(SparkContext(gateway=gateway, jsc=inner, conf=jconf))
    made.sparkContext.setLogLevel("OFF")
    return made


def query(spark, folder, sink, then=lambda frame: frame, files=1):
    """All files through a query, to its end; so many a micro-batch."""
    source = spark.readStream.schema("who string, x double, kind string, at timestamp")
    frame = then(source.option("maxFilesPerTrigger", files).parquet(str(folder / "in")))
    written = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder / "checkpoint"))
    written.trigger(availableNow=True).start().awaitTermination()


def drive(folder, kill_at):
    """A driver that dies before that line of the library, counted from the first batch; lines that it ran."""
    lines = 0

    def trace(frame, event, _):
        nonlocal lines
        if not frame.f_code.co_filename.startswith(ROOMS):
            return None
        if event == "line":
            lines += 1
            if lines == kill_at:
                os.killpg(0, signal.SIGKILL)
        return trace

    with all_of(state=folder / "state") as stream:
        sink = StreamSink(stream, **CLOCK, delay=f"{DELAY}s")

        def traced(frame, number):
            sys.settrace(trace)
            try:
                sink(frame, number)
            finally:
                sys.settrace(None)

        query(session(), folder, traced)
    return lines


def child(folder, kill_at):
    """`drive` in a process group of its own: lines that it ran, or None if it was killed."""
    report = folder / "lines"
    report.unlink(missing_ok=True)
    number = os.fork()
    if number == 0:
        os.setpgid(0, 0)
        try:
            report.write_text(str(drive(folder, kill_at)))
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    status = os.waitpid(number, 0)[1]
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return None
    return int(report.read_text())


def main():
    """Drivers are killed and begin again, until so many were; with FOLDER/0, FOLDER/1, … a stream each."""
    folder, kills = Path(sys.argv[1]), int(sys.argv[2])
    digests.new_salt = bytes  # all streams with one key have one noise
    choice = random.Random(f"{folder} {kills}")
    launch = "import sys; from pyspark.java_gateway import launch_gateway as launch; made = launch()\n" + (
        "said = made.gateway_parameters; print(said.port, said.auth_token, flush=True); sys.stdin.read()"
    )
    holder = None
    if sys.argv[3] == "one JVM":  # else each driver begins one, which dies with it
        holder = subprocess.Popen(
            [sys.executable, "-c", launch], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"] = (
            holder.stdout.readline().split()
        )
    lines, killed, streams = 2500, 0, 0
    while killed < kills:
        place = folder / f"{streams}"
        place.mkdir(exist_ok=True)
        if not (place / "in").exists():
            write_files(place / "in")
        ran = child(place, choice.randint(1, lines))
        killed += ran is None
        if ran is not None:
            streams += 1
    place = folder / f"{streams}"
    if place.exists():
        child(place, 0)
        streams += 1
    if holder is not None:
        holder.communicate("")
    (folder / "report").write_text(json.dumps({"killed": killed, "streams": streams}))


if __name__ == "__main__":
    main()
