"""Spark delivers batches again, in other groups, and loses executors: releases are those of the records."""

import json
import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from anechoic import streaming
from tests.slow.engines.spark_cluster import DEATHS
from tests.slow.engines.spark_jobs import FILES, UNITS, expected, query
from tests.slow.engines.test_spark import ROOT, pytestmark, released, sink_of  # noqa: F401 - the marks hold here too
from tests.streaming.released import bytes_of
from tests.streaming.test_accumulator import all_of
from tests.streaming.test_store import KEY


def test_batches_after_an_old_checkpoint_come_again_and_add_nothing(spark, folder):
    numbers = []
    with all_of(state=folder / "state") as stream:
        sink = sink_of(stream)

        def noted(frame, number):
            if len(numbers) == 2:  # batch 1 is done, batch 2 begins
                shutil.copytree(folder / "checkpoint", folder / "old")
            numbers.append(number)
            sink(frame, number)

        query(spark, folder, noted)
        before, held = released(stream), stream._stream_state.open
        assert before == expected()[0]
        shutil.rmtree(folder / "checkpoint")
        (folder / "old").rename(folder / "checkpoint")
        query(spark, folder, noted)
        assert numbers == [*range(FILES), *range(2, FILES)]
        assert released(stream) == before and (stream._stream_state.open == held).all()


@pytest.mark.parametrize("units", [False, True])
def test_the_order_and_the_grouping_of_files_change_nothing_before_a_step_ends(
    spark, tmp_path, folder, units
):
    found = []
    for place, (order, files) in enumerate([([0, 1, 2, 3, 4, 5], 1), ([3, 5, 0, 4, 1, 2], 2)]):
        for time_of, file in enumerate(order):
            os.utime(folder / "in" / f"{file}.parquet", (1_700_000_000 + time_of,) * 2)
        with all_of(state=tmp_path / f"state {place}", **(UNITS if units else {})) as stream:
            over = {FILES // files - 1: 2e9}
            more = {"delay": None, "over": lambda frame, number, over=over: over.get(number, 0.0)}
            sink = sink_of(stream, **more, unit="who" if units else None)
            numbers = []

            def noted(frame, number, sink=sink, numbers=numbers):
                numbers.append(number)
                sink(frame, number)

            shutil.rmtree(folder / "checkpoint", ignore_errors=True)
            query(spark, folder, noted, files=files)
            assert numbers == list(range(FILES // files))
            found.append(released(stream))
    assert found[0] == found[1] and len(found[0]) == 6


def test_a_batch_of_the_rate_source_that_comes_again_has_the_same_records_and_adds_nothing(spark, tmp_path):
    """The query is lost after the sums were kept, and before Spark has noted the batch."""
    begin = int(time.time()) - 3
    statistics = {"n": streaming.Count("value"), "mean": streaming.Mean(0, 400, "value")}
    promise = {"epsilon": 1.0, "horizon": 120, "key": KEY}
    clock = {"time": "timestamp", "start": datetime.fromtimestamp(begin, UTC).isoformat(), "every": "5s"}
    seen, found = [], []
    with streaming.Stream(statistics, state=tmp_path / "state", **promise) as stream:
        sink = sink_of(stream, **clock, delay="1s")

        def losing(frame, number):
            micros = F.unix_micros("timestamp").alias("micros")
            seen.append((number, sorted(map(tuple, frame.select(micros, "value").collect()))))
            sink(frame, number)
            if len(seen) == 2:
                raise RuntimeError("the driver is lost")

        for _ in range(2):
            source = spark.readStream.format("rate").option("rowsPerSecond", 40).load()
            written = source.writeStream.foreachBatch(losing).trigger(processingTime="1 second")
            running = written.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
            until = time.monotonic() + 120
            try:
                while running.isActive and (len(seen) < 5 or stream.step < 2) and time.monotonic() < until:
                    time.sleep(0.2)
            finally:
                running.stop()
            if len(seen) == 2:
                with pytest.raises(StreamingQueryException, match="the driver is lost"):
                    running.awaitTermination()
        found = released(stream)
    assert len(seen) >= 5 and len(found) >= 2
    assert seen[1] == seen[2] and seen[1][1]
    records = [record for _, some in dict(seen).items() for record in some]
    assert sorted(value for _, value in records) == list(range(len(records)))
    direct, wanted = streaming.Stream(statistics, **promise), []
    for step in range(len(found)):
        end = begin + 5 * (step + 1)
        values = [float(value) for micros, value in records if end - 5 <= micros / 1e6 < end]
        direct.update({"value": values})
        wanted.append(bytes_of(direct.release(sink.clock.end_of(step))))
    assert found == wanted


def test_executors_and_workers_that_are_killed_in_the_middle_of_a_batch_change_no_bit(tmp_path):
    program = [sys.executable, "-m", "tests.slow.engines.spark_cluster", str(tmp_path)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads((tmp_path / "report").read_text())
    assert not report["alive"]
    for units, deaths in zip((False, True), report["deaths"], strict=True):
        assert [what for what, _, _ in deaths] == [what for what, _ in DEATHS[units]]
        for what, _, line in deaths:
            assert ("CoarseGrainedExecutorBackend" in line) == (what == "executor")
    for units in (False, True):
        found = streaming.read_releases(tmp_path / str(units) / "state", statistics=None)
        assert [*map(bytes_of, found)] == expected(units)[0]
