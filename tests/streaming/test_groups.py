"""Statistics by groups: each as it would be alone, and all of them at the noise of one."""

import csv

import numpy as np
import pytest

from anechoic import cli, streaming
from anechoic.participation import MinSep
from tests.streaming.test_stream import NoNoise

GROUPS = ["AA", "UA", "DL"]
RNG = np.random.default_rng(4)
BATCH = {
    "g": RNG.choice([*GROUPS, "ZZ"], 400).tolist(),
    "x": RNG.normal(0.3, 0.8, 400),
    "v": RNG.normal(0, 0.7, (400, 2)),
    "c": RNG.integers(0, 3, 400),
}
STATISTICS = {
    "count": streaming.Count(),
    "count of a column": streaming.Count("x"),
    "sum": streaming.Sum(1.0, column="x"),
    "vectors": streaming.Sum(1.0, 2, "v"),
    "mean": streaming.Mean(-1, 1, "x"),
    "histogram": streaming.Histogram([0, 1], "c"),
    "distribution": streaming.Distribution([-1, 0, 0.5, 1], "x"),
    "quantiles": streaming.Quantiles([-1, 0, 0.5, 1], column="x"),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_each_group_is_released_as_if_it_were_alone(name):
    promise = {"epsilon": 40.0, "horizon": 2}
    together = NoNoise({"s": streaming.Grouped(STATISTICS[name], "g", GROUPS)}, **promise)
    together.update(BATCH)
    found = together.release()
    assert found.labels_of("s")[0].startswith("AA") and len(found.labels_of("s")) == found["s"].value.size
    alone = NoNoise({"s": STATISTICS[name]}, **promise)
    assert alone.standard_deviations(0) == pytest.approx(together.standard_deviations(0), rel=1e-6)
    for place, group in enumerate(GROUPS):
        alone = NoNoise({"s": STATISTICS[name]}, **promise)
        own = np.array(BATCH["g"]) == group
        alone.update({key: np.asarray(column)[own] for key, column in BATCH.items()})
        expected = alone.release()["s"]
        for part in ("value", "low", "high"):
            assert np.allclose(
                getattr(found["s"], part)[place], getattr(expected, part), rtol=1e-6, atol=1e-6
            )
    assert together.diagnostics()["s: unknown group"] == BATCH["g"].count("ZZ")


@pytest.mark.parametrize("name", STATISTICS)
def test_one_record_changes_one_group_by_its_bound(name):
    one = STATISTICS[name]
    grouped, unit = streaming.Grouped(one, "g", GROUPS), 2**20 * one.quantum
    for place in range(40):
        record = {key: column[place : place + 1] for key, column in BATCH.items()}
        added = grouped.total(grouped.read(record), None, unit).reshape(len(GROUPS), -1)
        assert np.count_nonzero(added.any(axis=1)) <= (BATCH["g"][place] in GROUPS)
        assert sum(int(v) ** 2 for v in added.ravel()) <= (unit * grouped.bound) ** 2


def test_units_are_held_to_their_participation_across_groups():
    board = streaming.Stream(
        {"n": streaming.Count()}, by=("g", ["a", "b"]), epsilon=900.0, horizon=2, participation=MinSep(1, 2)
    )
    board.update({"g": ["a", "b", "a"]}, unit_ids=["ann", "ann", "bob"])
    assert np.rint(board.release()["n"].value).tolist() == [2, 0]


def test_what_cannot_be_grouped_is_refused():
    for wrong in (streaming.Count(within=2), streaming.Grouped(streaming.Count(), "g", ["a"]), 5):
        with pytest.raises(ValueError, match="cannot be taken by groups"):
            streaming.Grouped(wrong, "h", ["a"])
    with pytest.raises(ValueError, match="2 groups for 3 records"):
        grouped = streaming.Grouped(streaming.Count("x"), "g", ["a"])
        streaming.Stream({"n": grouped}, epsilon=1.0, horizon=1).update({"g": ["", "b"], "x": [1, 2, 3]})


def test_groups_by_the_command(tmp_path, capsys):
    (tmp_path / "a.csv").write_text(
        "t,g,d\n" + "2013-01-01T00:10,AA,1\n" * 300 + "2013-01-01T00:10,UA,0\n" * 90
    )
    arguments = ["--input", tmp_path / "a.csv", "--time", "t", "--every", "1h", "--start", "2013-01-01"]
    arguments += ["--until", "2013-01-01T01:00", "--count", "--mean", "d:0:1", "--by", "g:AA,UA"]
    arguments += ["--epsilon", "200", "--horizon", "1", "--out", tmp_path / "o.csv"]
    assert cli.main(["stream", *map(str, arguments)]) == 0
    with (tmp_path / "o.csv").open() as file:
        rows = {(row["statistic"], row["label"]): float(row["value"]) for row in csv.DictReader(file)}
    assert list(rows) == [("count", "AA"), ("count", "UA"), ("mean d", "AA"), ("mean d", "UA")]
    assert list(rows.values()) == pytest.approx([300, 90, 1, 0], abs=1)
    assert cli.main(["stream", *map(str, [*arguments, "--by", "AA"])]) == 2
    assert "must have the form column:category" in capsys.readouterr().err
