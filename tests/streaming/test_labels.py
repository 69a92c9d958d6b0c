"""Entries of a release are named: in memory, from a state file, in tables and in notebooks."""

import csv
import sqlite3

import numpy as np
import pytest

from anechoic import streaming
from anechoic.errors import CheckpointError
from anechoic.streaming.release import HEAD, write_releases
from tests.streaming.released import bytes_of
from tests.streaming.test_stream import NoNoise

VECTORS = np.zeros((3, 2))
NAMED = {
    "count": (streaming.Count(), [1, 2], [""]),
    "sum": (streaming.Sum(1.0, 2), VECTORS, ["0", "1"]),
    "mean": (streaming.Mean(0, 1), [0.5], [""]),
    "histogram": (streaming.Histogram(["AA", "<b>"]), ["AA"], ["AA", "<b>"]),
    "one and the same": (streaming.Histogram([7, "7"]), [7], ["7", "'7'"]),
    "distribution": (
        streaming.Distribution([0, 0.1, 5, 5 + 1e-12, 6]),
        [1.0],
        ["below 0.1", "below 5", "below 5.000000000001", "all"],
    ),
    "one bucket": (streaming.Distribution([0, 1]), [0.5], ["all"]),
    "quantiles": (streaming.Quantiles([0, 1, 2], [0.07, 0.5, 0.999]), [1.0], ["7%", "50%", "99.9%"]),
}


@pytest.mark.parametrize("name", NAMED)
def test_each_entry_has_its_label(name, tmp_path):
    statistic, batch, labels = NAMED[name]
    promise = {"epsilon": 1.0, "horizon": 1, "state": tmp_path / "s"}
    with streaming.Stream({"it": statistic}, **promise) as stream:
        [made] = stream.steps([batch])
        stored = next(stream.releases())
    [read] = streaming.read_releases(tmp_path / "s")
    for release in (made, stored, read):
        assert list(release.labels_of("it")) == labels
        assert list(release.named("it").values()) == release["it"].value.ravel().tolist()
        assert bytes_of(release) == bytes_of(made)


def test_categories_stand_in_tables(tmp_path):
    stream = NoNoise({"carrier": streaming.Histogram(["AA", "<b>"])}, epsilon=1.0, horizon=1)
    stream.steps([["AA", "AA", "<b>"]])
    write_releases(tmp_path / "r.csv", stream.releases())
    with (tmp_path / "r.csv").open(newline="") as file:
        rows = [dict(zip(HEAD, row, strict=True)) for row in csv.reader(file)][1:]
    assert [(row["entry"], row["label"], float(row["value"])) for row in rows] == [
        ("0", "AA", 2.0),
        ("1", "<b>", 1.0),
    ]


def test_labels_that_were_exchanged_are_seen_by_who_reads_them(tmp_path):
    with streaming.Stream(
        streaming.Histogram(["a", "b"]), epsilon=1.0, horizon=2, state=tmp_path / "s"
    ) as stream:
        stream.steps([["a"]])
    database = sqlite3.connect(tmp_path / "s", isolation_level=None)
    database.execute("""UPDATE meta SET value = '{"histogram": ["b", "a"]}' WHERE name = 'labels'""")
    database.close()
    with pytest.raises(CheckpointError, match="what it is called, is damaged"):
        streaming.read_releases(tmp_path / "s")


def test_the_only_statistic_needs_no_name():
    one = streaming.Stream(streaming.Histogram(["AA", "UA"]), epsilon=1.0, horizon=2).release()
    assert one.named() == one.named("histogram") and list(one.named()) == ["AA", "UA"]
    count = streaming.Stream(streaming.Count(), epsilon=1.0, horizon=2).release()
    assert count.named() == {"count": count.estimate}
    pair = {"a": streaming.Count(), "b": streaming.Count()}
    with pytest.raises(ValueError, match="name one"):
        streaming.Stream(pair, epsilon=1.0, horizon=2).release().named()


def test_a_notebook_shows_a_release_line_after_line():
    many = streaming.Histogram(["<b>", *map(str, range(30))])
    shown = streaming.Stream({"it": many}, epsilon=1.0, horizon=2).release(time="<i>")._repr_html_()
    assert shown.count("<tr>") == 1 + 20 and "and 11 more" in shown
    assert "&lt;b&gt;" in shown and "<b>" not in shown and "&lt;i&gt;" in shown and "<i>" not in shown
    few = streaming.Stream({"n": streaming.Count(), "m": streaming.Mean(0, 1)}, epsilon=1.0, horizon=2)
    release = few.release()
    shown = release._repr_html_()
    assert shown.count("<tr>") == 1 + 2 and "more" not in shown
    assert f"<td>{float(release['n'].value):.6g}</td>" in shown
