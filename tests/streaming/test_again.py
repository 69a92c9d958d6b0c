"""What was released, read over other steps: the sums are theirs, and the errors as stated."""

import csv
import sqlite3

import numpy as np
import pytest

from anechoic import streaming
from anechoic.errors import CheckpointError, MismatchError
from anechoic.streaming.release import HEAD, write_releases
from tests.streaming.released import bytes_of
from tests.streaming.test_confidence_bands import KINDS, RUNS, N
from tests.streaming.test_stream import NoNoise

BATCHES = [[0.25] * n for n in (4, 0, 7, 2, 9, 1)]


@pytest.mark.slow
def test_differences_and_other_overs_without_noise_are_the_sums_of_those_steps():
    stream = NoNoise({"s": streaming.Sum(1.0)}, epsilon=1.0, horizon=9)
    stream.steps(BATCHES)
    sums = np.array([sum(batch) for batch in BATCHES])
    for begin, last in [(0, 0), (0, 5), (2, 4), (5, 5)]:
        found = stream.between(begin, last)
        assert np.isclose(found.estimate, sums[begin : last + 1].sum(), atol=1e-6) and found.step == last
    assert np.isclose(stream.between(3).estimate, sums[3:].sum(), atol=1e-6)
    for over in (streaming.Running(), streaming.SlidingWindow(2)):
        own = NoNoise({"s": streaming.Sum(1.0)}, epsilon=1.0, horizon=9, over=over)
        own.steps(BATCHES)
        again = [release.estimate for release in stream.releases_over(over)]
        assert np.allclose(again, [release.estimate for release in own.releases()], atol=1e-6)


@pytest.mark.parametrize("kind", ["planned", "endless", "tree"])
def test_errors_of_differences_and_other_overs_are_as_stated(kind):
    stream = streaming.Stream(streaming.Sum(bound=3.0, dimension=RUNS), key=bytes(32), **KINDS[kind])
    stream.steps([np.zeros((0, RUNS))] * N)
    found = [stream.between(begin, last) for begin, last in [(0, 3), (5, 9), (7, 7), (12, N - 1)]]
    found += list(stream.releases_over(streaming.SlidingWindow(4)))[::6]
    for release in found:
        ratio = np.sqrt(np.mean(np.square(release.estimate))) / release.standard_error[0]
        assert abs(ratio - 1) < 4.5 / np.sqrt(2 * RUNS)  # 4.5 standard deviations
        inside = (release.only.low <= 0) & (release.only.high >= 0)
        assert 0.93 < inside.mean() < 0.97
    independent = np.hypot(*(stream.standard_deviations(t)["sum"] for t in (11, N - 1)))
    assert found[3].standard_error[0] < independent


def test_what_has_no_difference_is_refused():
    stream = streaming.Stream(streaming.Count(), epsilon=1.0, horizon=4)
    with pytest.raises(ValueError, match="0 of Running"):
        stream.between(0)
    stream.steps([1, 2])
    for begin, last in [(-1, 1), (1, 0), (0, 2), (0, -1)]:
        with pytest.raises(ValueError, match=r"must lie between|are released"):
            stream.between(begin, last)
    with pytest.raises(ValueError, match="needs running totals"):
        streaming.Stream(streaming.Count(), epsilon=1.0, horizon=4, over=streaming.SlidingWindow(2)).between(
            0
        )


def read_again(stream):
    """Everything that is arithmetic on published rows."""
    found = [*stream.releases(), stream.get(), stream.between(1, 3), stream.between(2)]
    found += stream.releases_over(streaming.SlidingWindow(2))
    return [*map(bytes_of, [*found, *stream.releases()])]


@pytest.mark.slow
def test_groups_differences_and_partial_sums_go_on_from_a_file(tmp_path):
    statistics = {
        "n": streaming.Count(),
        "mean": streaming.Mean(-1, 1, "x"),
        "quantiles": streaming.Quantiles([-1, 0, 1], column="x"),
        "histogram": streaming.Histogram([0, "a"], "c"),
    }
    options = {"by": ("g", ["a", 7]), "epsilon": 9.0, "horizon": 9, "key": bytes(32)}
    batches = [{"g": ["a", 7, "b"] * n, "x": [0.1 * n] * 3 * n, "c": [0, "a", 2] * n} for n in range(6)]
    whole = streaming.Stream(statistics, **options)
    whole.steps(batches)
    for some in (batches[:4], batches[4:]):
        with streaming.Stream(statistics, **options, state=tmp_path / "s") as stream:
            stream.steps([streaming.Accumulator(stream).add(batch) for batch in some])
            made = read_again(stream)
    assert made == read_again(whole)
    with streaming.Stream(statistics, **options, state=tmp_path / "s") as stream:
        assert read_again(stream) == made
        labels = stream.get().labels
    found = streaming.read_releases(tmp_path / "s")
    assert [*map(bytes_of, found)] == made[:6] and found[0].labels == labels
    with pytest.raises(MismatchError, match="groups"):
        streaming.Stream(statistics, **{**options, "by": ("g", [7, "a"])}, state=tmp_path / "s")


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
