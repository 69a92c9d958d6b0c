"""Frames larger than memory: their sums are those of the stream that got the records."""

import numpy as np
import pytest

from anechoic.engines.frames import accumulated
from anechoic.participation import MinSep
from tests.streaming.test_accumulator import all_of, columns

polars = pytest.importorskip("polars")
arrow = pytest.importorskip("pyarrow")

CHOICE = np.random.default_rng(0)
RECORDS = [
    (f"u{CHOICE.integers(60)}", float(CHOICE.normal()), ["a", "b", "other", None][CHOICE.integers(4)])
    for _ in range(400)
]
STEPS = CHOICE.integers(0, 4, 400).tolist()


def frames():
    names = ("who", "x", "kind")
    table = arrow.table(
        {**dict(zip(names, map(list, zip(*RECORDS, strict=True)), strict=True)), "step": STEPS}
    )
    yield "polars lazy", polars.from_arrow(table).lazy()
    yield "polars", polars.from_arrow(table)
    yield "arrow", table
    yield "batches", table.to_batches(37)
    yield "parts of polars", [polars.from_arrow(table)[:100], polars.from_arrow(table)[100:]]


def expected(**how):
    stream = all_of(**how)
    found = []
    for step in range(4):
        batch, units = columns([one for one, at in zip(RECORDS, STEPS, strict=True) if at == step])
        stream.update(batch, units if how else None)
        found.append(stream.release().to_bytes())
    return found, stream.diagnostics()


def releases_of(frame, unit=None, **how):
    stream = all_of(**how)
    stream.add_sums(accumulated(frame, stream, step="step", unit=unit, rows=64), batch_id="all")
    return [stream.release().to_bytes() for _ in range(4)], stream.diagnostics()


@pytest.mark.parametrize("name", dict(frames()))
def test_sums_of_a_frame_are_those_of_its_records(name):
    assert releases_of(dict(frames())[name]) == expected()


def test_units_of_a_frame_go_to_the_ledger():
    how = {"participation": MinSep(2, 2), "per_step": 400}
    (_, frame), *_ = frames()
    assert releases_of(frame, "who", **how) == expected(**how)


def test_duckdb_relations_are_read_in_batches():
    duckdb = pytest.importorskip("duckdb")
    table = dict(frames())["arrow"]
    with duckdb.connect() as database:
        database.register("records", table)
        assert releases_of(database.sql("SELECT * FROM records ORDER BY random()")) == expected()


def test_records_without_a_step_are_counted():
    frame = polars.DataFrame({"x": [0.5] * 4, "kind": ["a"] * 4, "step": [0, None, -1, 1]})
    made = accumulated(frame, all_of(), step="step")
    assert [(one.step, one.count) for one in made] == [(0, 1), (1, 1)]
    assert made[0].remarks["without a step"] == 2
    with pytest.raises(ValueError, match="give integers"):
        accumulated(frame.with_columns(step=polars.lit("0")), all_of(), step="step")
    assert [one.step for one in accumulated(frame, all_of())] == [None]
    with pytest.raises(ValueError, match="must be a frame"):
        accumulated(7, all_of())
