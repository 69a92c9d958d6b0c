"""Spark delivers batches again, in other groups, and loses executors: releases are those of the records."""

import os
import shutil

import pytest

pytest.importorskip("pyspark")


from tests.slow.engines.spark_jobs import FILES, UNITS, expected, query
from tests.slow.engines.test_spark import ROOT, pytestmark, released, sink_of  # noqa: F401 - the marks hold here too
from tests.streaming.test_accumulator import all_of


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
