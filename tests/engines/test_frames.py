"""Frames larger than memory: their sums are those of the stream that got the records."""

import numpy as np
import pytest

from anechoic import streaming
from anechoic.engines.frames import accumulated
from anechoic.participation import MinSep
from tests.streaming.released import bytes_of
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
        found.append(bytes_of(stream.release()))
    return found, stream.diagnostics()


def releases_of(frame, unit=None, **how):
    stream = all_of(**how)
    stream.add_sums(accumulated(frame, stream, step="step", unit=unit, rows=64), batch_id="all")
    return [bytes_of(stream.release()) for _ in range(4)], stream.diagnostics()


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


@pytest.mark.parametrize("name", ["polars lazy", "polars", "arrow", "batches"])
def test_steps_that_are_no_integers_are_refused_by_type_not_left_out(name):
    """An attack by mistake: of t / 3600 hardly one is whole, and nearly every record would be dropped."""
    as_frames = {
        "polars lazy": polars.DataFrame.lazy,
        "polars": lambda one: one,
        "arrow": polars.DataFrame.to_arrow,
        "batches": lambda one: one.to_arrow().to_batches(2),
    }
    frame = polars.DataFrame({"x": [0.5] * 3, "kind": ["a"] * 3, "t": [0, 1800, None]})
    for floats in (polars.col("t") / 3600, polars.Series([0.0, 1.0, None])):
        with pytest.raises(ValueError, match=r"the column of steps is of .*: give integers.* t // 3600"):
            accumulated(as_frames[name](frame.with_columns(step=floats)), all_of(), step="step")
    whole = as_frames[name](frame.with_columns(step=polars.col("t") // 3600))
    [made] = accumulated(whole, all_of(), step="step")
    assert (made.step, made.count, made.remarks["without a step"]) == (0, 2, 1)


def test_duckdb_divides_to_floats():
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as database:
        database.register("held", arrow.table({"x": [0.5] * 2, "kind": ["a"] * 2, "t": [0, 1800]}))
        with pytest.raises(ValueError, match="of double: give integers"):
            accumulated(database.sql("select *, t / 3600 as step from held"), all_of(), step="step")
        [made] = accumulated(database.sql("select *, t // 3600 as step from held"), all_of(), step="step")
        assert made.count == 2
        with pytest.raises(ValueError, match="no column 'step': it has 'x', 'kind', 't'"):
            accumulated(database.sql("select * from held"), all_of(), step="step")


def test_what_is_missing_is_named():
    frame = polars.DataFrame({"x": [0.5], "kind": ["a"], "hour": [0]})
    for one in (frame.lazy(), frame.to_arrow()):
        with pytest.raises(ValueError, match="no column 'step': it has 'x', 'kind', 'hour'"):
            accumulated(one, all_of(), step="step")
    with pytest.raises(ValueError, match="unit= names the column"):
        accumulated(frame, all_of(participation=MinSep(2, 2)), step="hour")
    with pytest.raises(ValueError, match=r"lazy frame.*collect\(\).*engines.frames.accumulated"):
        all_of().update(frame.lazy())
    with pytest.raises(ValueError, match="must be a frame"):
        accumulated(7, all_of())


@pytest.mark.parametrize("units", [False, True])
def test_an_open_histogram_takes_frames(units):
    direct, *others = (open_histogram(units) for _ in range(3))
    for step in range(4):
        batch, ids = columns([one for one, at in zip(RECORDS, STEPS, strict=True) if at == step])
        direct.update(batch, ids if units else None)
        direct.release()
    for of, name in zip(others, ("polars lazy", "batches"), strict=True):
        made = accumulated(dict(frames())[name], of, step="step", unit="who" if units else None, rows=64)
        of.add_sums(made, batch_id="all")
        of.end_steps([None] * 4)
        assert [*map(bytes_of, of.releases())] == [*map(bytes_of, direct.releases())]
        assert of.diagnostics().get("without a category") == direct.diagnostics()["without a category"]


def open_histogram(units):
    promise = {"participation": MinSep(1, 4), "categories_per_unit": 3} if units else {}
    return streaming.PartitionSelectionHistogram("kind", epsilon=4.0, horizon=4, key=bytes(32), **promise)
