"""What Spark adds up itself is what NumPy does in its workers, and a stream that gets the records."""

import math
from datetime import timedelta

import numpy as np
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as F

from anechoic import streaming
from anechoic.engines import spark as adapter
from anechoic.engines.spark_sums import spoken
from anechoic.participation import FullBatch
from tests.engines.spark_jobs import START
from tests.engines.test_spark import bytes_of, pytestmark, sink_of  # noqa: F401 - the marks hold here too
from tests.streaming.test_accumulator import all_of

STATISTICS = {
    "n": streaming.Count("x"),
    "kinds": streaming.Histogram(["a", "b", "ü"], "kind"),
    "narrow": streaming.Mean(-0.1, 0.7, "x"),
    "wide": streaming.Mean(-60, 360, "x"),
    "sum": streaming.Sum(0.3, column="x"),
    "by": streaming.Grouped(streaming.Mean(-1, 3, "x"), "kind", ["b", "a"]),
    "whole": streaming.Mean(0, 9, "age"),
    "n by": streaming.Grouped(streaming.Count("x"), "kind", ["a"]),
}
SCHEMA = "x double, kind string, age int, at timestamp"


def records():
    choice = np.random.default_rng(3)
    bounds = [-60.0, 360.0, -0.1, 0.7, 0.3, -0.3, -1.0, 3.0, 0.0]
    odd = [*bounds, *np.nextafter(bounds, math.inf), *np.nextafter(bounds, -math.inf), -0.0, 5e-324, 1e308]
    odd += [-1.7976931348623157e308, math.nan, math.inf, -math.inf, None]
    values = [*odd, *odd, *choice.normal(0, [[0.2], [2], [300]], (3, 300)).ravel().tolist()]
    for place, x in enumerate(values):
        hour = [-0.4, -1.2, 0.0, 0.999_999_999, 1.0, 2.2, 3.7][choice.integers(7)]
        at = None if place % 31 == 5 else START + timedelta(microseconds=round(hour * 3.6e9))
        kind = ["a", "b", "ü", "A", "a ", "", None][choice.integers(7)]
        yield None if x is None else float(x), kind, [None, -3, 4, 2**31 - 1][choice.integers(4)], at


@pytest.mark.parametrize("partitions", [1, 3])
def test_spark_adds_up_the_integers_of_numpy(spark, monkeypatch, partitions):
    listed = list(records())
    frame = spark.createDataFrame(listed, SCHEMA).repartition(partitions)
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", "q")
    found, asked = [], []
    try:
        for way in ("Spark", "NumPy"):
            stream = all_of(statistics=STATISTICS)
            if way == "NumPy":
                monkeypatch.setattr(adapter, "spoken", lambda layout, schema: None)
            else:
                assert spoken(stream.layout, frame.schema) is not None
            sink = sink_of(stream, delay=None, over=lambda frame, number: asked[-1])
            asked.append(0.0)
            sink(frame, 0)
            asked.append(sink.clock.start + 4 * 3600)
            sink(frame, 0)  # adds nothing, and ends the steps
            found.append((bytes_of(stream), stream.diagnostics()))
    finally:
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)
    assert found[0] == found[1]
    direct, wanted = all_of(statistics=STATISTICS), []
    for step in range(4):
        some = [
            one for one in listed if one[3] is not None and (one[3] - START) // timedelta(hours=1) == step
        ]
        x, kind, age, _ = zip(*some, strict=True)
        direct.update({"x": list(x), "kind": list(kind), "age": list(age)})
        wanted.append(direct.release(sink.clock.end_of(step)).to_bytes())
    assert found[0][0] == wanted


def layout_of(statistics, participation=None):
    return all_of(statistics=statistics, participation=participation).layout


def test_what_spark_has_no_words_for_goes_to_python(spark):
    frame = spark.createDataFrame([(1.0, "a", 3, START)], SCHEMA)
    for statistic in [
        streaming.Histogram([4, "a"], "kind"),
        streaming.Distribution([0.0, 1.0, 2.0], "x"),
        streaming.Sum(1.0, 2, "x"),
        streaming.Mean(0, 1, "kind"),
        streaming.Grouped(streaming.Distribution([0.0, 1.0, 2.0], "x"), "kind", ["a"]),
    ]:
        assert spoken(layout_of({"n": streaming.Count("x"), "one": statistic}), frame.schema) is None
    kinds = streaming.Histogram(["a"], "kind")
    assert spoken(layout_of(kinds), frame.schema) is not None
    folded = frame.withColumn("kind", F.expr("kind collate UTF8_LCASE"))
    assert spoken(layout_of(kinds), folded.schema) is None
    assert spoken(layout_of(kinds, FullBatch()), frame.schema) is None
    many = {f"{i}": streaming.Histogram(list(map(str, range(120))), "kind") for i in range(2)}
    assert spoken(layout_of(many), frame.schema) is None
