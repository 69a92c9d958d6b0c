"""Spark into a stream: releases are those of the records, whatever fails, and workers know no secret."""

import base64
import json
import os
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import functions

from anechoic import streaming
from anechoic.engines.spark import StreamSink, releases
from anechoic.keys import derive
from anechoic.streaming.release import rows_of
from anechoic.units.ids import secret_of
from tests.slow.engines.spark_jobs import CLOCK, DELAY, START, UNITS, expected, query, tables
from tests.streaming.released import bytes_of
from tests.streaming.test_accumulator import STATISTICS, all_of
from tests.streaming.test_store import KEY

ROOT = Path(__file__).parents[3]
LATE = "of steps that were released before"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs a Java runtime"),
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings(
        "ignore::FutureWarning", "ignore::ResourceWarning", "ignore::DeprecationWarning"
    ),
]


def sink_of(stream, **more):
    return StreamSink(stream, **{**CLOCK, "delay": f"{DELAY}s", **more})


def released(stream):
    return [*map(bytes_of, stream.releases())]


@pytest.mark.parametrize("units", [False, True])
def test_releases_are_those_of_a_stream_that_gets_the_records(spark, folder, units):
    wanted, late = expected(units)
    assert len(wanted) == 4 and late > 5
    with all_of(state=folder / "state", **(UNITS if units else {})) as stream:
        query(spark, folder, sink_of(stream, unit="who" if units else None))
        assert released(stream) == wanted
        assert stream.diagnostics()[LATE] == late and stream.diagnostics()["without a step"] > 0
        shown = releases(spark, folder / "state").collect()
        assert list(map(tuple, shown)) == list(rows_of(stream.releases()))


@pytest.mark.parametrize("units", [False, True])
def test_an_open_histogram_takes_batches(spark, folder, units):
    promise = {"participation": UNITS["participation"], "categories_per_unit": 3} if units else {}
    direct, of = (
        streaming.PartitionSelectionHistogram("kind", epsilon=8.0, horizon=24, key=bytes(32), **promise)
        for _ in range(2)
    )
    wanted, _ = expected(units, direct)
    query(spark, folder, sink_of(of, unit="who" if units else None))
    assert released(of) == wanted and of.get().named()


def test_a_query_whose_checkpoint_was_deleted_is_refused_and_adds_nothing(spark, folder):
    with all_of(state=folder / "state") as stream:
        query(spark, folder, sink_of(stream))
        before, held = released(stream), stream._stream_state.open
        query(spark, folder, sink_of(stream))  # nothing new
        shutil.rmtree(folder / "checkpoint")
        with pytest.raises(StreamingQueryException, match="checkpoint was deleted"):
            query(spark, folder, sink_of(stream))
        assert released(stream) == before and (stream._stream_state.open == held).all()


def test_a_task_that_fails_and_is_tried_again_adds_once(spark, folder):
    mark = str(folder / "failed")

    def failing(batches):
        yield from batches
        try:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        raise RuntimeError("the executor is lost")

    with all_of(state=folder / "state") as stream:
        query(spark, folder, sink_of(stream), lambda frame: frame.mapInArrow(failing, frame.schema))
        assert os.path.exists(mark) and released(stream) == expected()[0]


@pytest.mark.parametrize("units", [False, True])
def test_batches_that_come_again_and_in_another_order_change_nothing(spark, units):
    how, over = (UNITS if units else {}), [0.0]
    frames = [spark.createDataFrame(table).repartition(3) for table in tables()]
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", "q")
    found = []
    try:
        for order in ([0, 1, 2, 3, 4, 5], [0, 4, 2, 2, 5, 1, 4, 0, 3, 5]):
            stream, over[0] = all_of(**how), 0.0
            more = {"delay": None, "over": lambda frame, number: over[0], "unit": "who" if units else None}
            sink = sink_of(stream, **more)
            for number in order:
                sink(frames[number], number)
            assert stream.step == 0
            over[0] = sink.clock.start + 4 * 3600
            sink(frames[0], 0)
            found.append((released(stream), stream.diagnostics()))
    finally:
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)
    assert found[0] == found[1] and len(found[0][0]) == 4


@pytest.mark.parametrize("units", [False, True])
def test_what_workers_are_sent_holds_no_secret(spark, folder, units, monkeypatch):
    sent, dumps = [], CloudPickleSerializer.dumps

    def spy(self, value):
        sent.append(dumps(self, value))
        return sent[-1]

    monkeypatch.setattr(CloudPickleSerializer, "dumps", spy)
    with all_of(state=folder / "state", **(UNITS if units else {})) as stream:
        sink = sink_of(stream, unit="who" if units else None)
        query(spark, folder, sink)
        noise = derive(KEY, f"streaming noise {stream._identity()}", size=32)
        secrets = [KEY, noise, derive(KEY, "streaming noise", size=32)]
        secrets += [] if units else [secret_of(KEY)]
        everything = b"".join(sent)
        assert (
            json.loads(stream.accumulator_spec())["stream"].encode() in everything
        )  # it looks at the right thing
        for secret in secrets:
            assert not any(
                form in everything
                for form in (
                    secret,
                    secret.hex().encode(),
                    base64.b64encode(secret),
                    secret[:8],
                    repr(secret).encode(),
                )
            )
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            cloudpickle.dumps(sink)


@pytest.mark.parametrize("statistics", [STATISTICS, {"n": streaming.Count("x")}])
def test_a_record_ahead_of_the_clock_ends_no_step_of_others(spark, statistics):
    first, second = (table.to_pandas().astype({"x": float}) for table in list(tables())[:2])
    first.loc[0, "at"] = first["at"].max().replace(year=2222)
    second.loc[0, "at"] = second["at"].max().replace(year=2222)
    second.loc[1, "at"] = START + timedelta(hours=2, minutes=11)
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", "q")
    try:
        stream = all_of(statistics=statistics)
        sink = sink_of(stream)
        sink(spark.createDataFrame(first), 0)
        assert stream.step == 0
        sink(spark.createDataFrame(second), 1)
    finally:
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)
    assert stream.step == 2  # by the latest of the others


def test_what_a_sink_cannot_use_is_refused(spark):
    stream = all_of()
    for more, message in [
        ({"delay": None}, "give one of them"),
        ({"over": lambda *_: 0.0}, "give one of them"),
        ({"start": "soon"}, "is no time"),
        ({"unit": "who"}, "a unit of its own"),
        ({"every": "1 parsec"}, "length of time"),
    ]:
        with pytest.raises(ValueError, match=message):
            sink_of(stream, **more)
    with pytest.raises(ValueError, match="holds units to a participation"):
        sink_of(all_of(**UNITS))
    with pytest.raises(ValueError, match="no streaming query"):
        sink_of(stream)(spark.range(3), 0)
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", "q")
    try:
        with pytest.raises(ValueError, match="need a TIMESTAMP"):
            sink_of(stream)(spark.range(3).withColumn("at", functions.lit("2026-05-24")), 0)
    finally:
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)
    stream.release("2026-05-24T07:00:00+00:00")
    with pytest.raises(ValueError, match="give those that it began with"):
        sink_of(stream)
    with pytest.raises(ValueError, match="names no column"):
        sink_of(streaming.Stream(streaming.Sum(1.0), epsilon=1.0, horizon=4))


def test_the_example_goes_on_where_it_stopped(tmp_path):
    shown = []
    for _ in range(2):
        program = [sys.executable, str(ROOT / "examples" / "spark_stream.py"), str(tmp_path / "visits")]
        done = subprocess.run(program, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        shown.append(done.stdout)
    assert shown[0] == shown[1] and "south" in shown[0]
    assert len(streaming.read_releases(tmp_path / "visits" / "state.db")) == 5
