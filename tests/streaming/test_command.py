"""anechoic stream: times and steps, files in and out, and going on where it stopped."""

import csv
import io
import json
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("polars")

import polars

from anechoic import cli, streaming
from anechoic.budget import BudgetBook
from anechoic.keys import key_in_environment
from anechoic.participation import MinSep
from anechoic.statement.formats import FORMATS
from anechoic.streaming.clock import Clock, iso, length_of, seconds_of, zone_of
from anechoic.streaming.command import statistics_of
from anechoic.streaming.pending import Columns, PendingSteps
from anechoic.streaming.release import HEAD, write_releases
from tests.streaming.test_stream import NoNoise

CSV = """when,carrier,delay,tail
2013-01-01T05:15,AA,11,N1
2013-01-01T05:50,UA,-20,N2
2013-01-01T07:10,AA,400,N1
2013-01-01T06:59:59,ZZ,nonsense,N3
yesterday,AA,1,N1
2013-01-01T08:00,UA,3,N2
"""


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "flights.csv"
    path.write_text(CSV)
    return path


def run(capsys, *arguments):
    code = cli.main(["stream", *map(str, arguments)])
    done = capsys.readouterr()
    return code, done.out, done.err


# -- times -------------------------------------------------------------------------------------


def test_steps_have_one_length_in_utc_through_the_change_of_clocks():
    zone = zone_of("America/New_York")
    clock = Clock(float(seconds_of(["2013-11-03T00:00"], zone)[0]), 3600)
    texts = ["2013-11-03T00:59", "2013-11-03T01:30", "2013-11-03T01:30-05:00", "2013-11-03T02:00"]
    assert clock.step_of(seconds_of(texts, zone)).tolist() == [0, 1, 2, 3]
    clock = Clock(float(seconds_of(["2013-03-10T00:00"], zone)[0]), 3600)
    texts = ["2013-03-10T01:59", "2013-03-10T02:30", "2013-03-10T03:00"]  # 2:30 is skipped: 3:30 by the new
    assert clock.step_of(seconds_of(texts, zone)).tolist() == [1, 2, 2]


def test_times_before_the_start_and_none_at_all():
    clock = Clock(100.0, 10.0)
    seconds = seconds_of(
        ["100", "109.9", "110", "99", "never", "inf", "2e300", "1970-01-01T00:02Z"], form="s"
    )
    assert clock.step_of(seconds).tolist() == [0, 0, 1, -1, *[-(2**62)] * 4]
    assert clock.step_of(np.array([120.0, 2e300])).tolist() == [2, 2**61]
    assert clock.end_of(1) == iso(120.0) == "1970-01-01T00:02:00+00:00"


@pytest.mark.parametrize(("text", "expected"), [("30s", 30), ("15min", 900), ("1.5h", 5400), ("1 d", 86400)])
def test_lengths(text, expected):
    assert length_of(text, "--every") == expected


def test_what_is_no_length_or_zone_is_refused():
    for text in ("", "h", "0h", "-1h", "1y", "1h30"):
        with pytest.raises(ValueError, match="--every .* must be a length of time"):
            length_of(text, "--every")
    with pytest.raises(ValueError, match="Mars/Olympus"):
        zone_of("Mars/Olympus")


def feed(stream, columns, clock, *, now=math.inf, until=None):
    """Steps released, and records left out, of some columns."""
    pending = PendingSteps(stream, clock)
    pending.add(columns, now)
    return pending.release(pending.open_after(until, now)), pending.left_out()


@pytest.mark.slow
def test_records_without_an_id_are_left_out_where_units_count():
    stream = counting(participation=MinSep(1, 2))
    ids = np.array(["7", "", "nan", " ", "7"], dtype=object)
    _, left_out = feed(stream, columns_of([0.5] * 5, ids), Clock(0.0, 1.0), until=1.0)
    assert left_out == {"without an id": 2} and stream.get().estimate == 2  # of "7" and of "nan"
    alone = counting()
    assert feed(alone, columns_of([0.5] * 5), Clock(0.0, 1.0), until=1.0)[1] == {}


# -- records into steps --------------------------------------------------------------------------


def columns_of(steps, units=None):
    return Columns(np.array(steps, dtype=float), units, {"x": np.zeros(len(steps))})


def counting(**promise):
    return NoNoise({"n": streaming.Count("x")}, epsilon=1.0, horizon=9, **promise)


def test_records_count_in_the_step_of_their_own_time_whatever_their_order():
    stream = counting(over=streaming.SlidingWindow(1))
    released, left_out = feed(
        stream, columns_of([2.5, 0.1, 99.0, 3.0, 0.9, -1.0, math.nan]), Clock(0.0, 1.0), until=4.5
    )
    assert [release.estimate for release in stream.releases()] == [2, 0, 1, 1]
    assert [release.time for release in stream.releases()] == [iso(t) for t in (1, 2, 3, 4)]
    assert released == 4
    assert left_out == {
        "without a time that can be read": 1,
        "before the start": 1,
        "of steps that are not over": 1,
    }


def test_the_last_step_stays_open_and_late_records_are_left_out():
    stream = counting(over=streaming.SlidingWindow(1))
    feed(stream, columns_of([0.5, 1.5, 2.5]), Clock(0.0, 1.0))
    assert stream.step == 2
    _, left_out = feed(stream, columns_of([0.5, 0.6, 1.5, 2.5, 2.6, 3.5]), Clock(0.0, 1.0))
    assert [release.estimate for release in stream.releases()] == [1, 1, 2]
    assert left_out["of steps that were released before"] == 3
    assert feed(stream, columns_of([0.5]), Clock(0.0, 1.0))[0] == 0


@pytest.mark.slow
def test_no_step_ends_before_the_one_that_was_released():
    stream = counting()
    feed(stream, columns_of([0.5, 3.5]), Clock(0.0, 1.0))
    for clock in (Clock(-1.0, 1.0), Clock(0.0, 0.5)):
        with pytest.raises(ValueError, match="records would count in both"):
            feed(stream, columns_of([0.5, 9.5]), clock)
    assert stream.step == 3


def test_more_steps_than_the_horizon_are_refused_before_anything_if_they_are_asked_for():
    stream = counting()
    with pytest.raises(ValueError, match="planned for 9"):
        feed(stream, columns_of([0.5, 50.0]), Clock(0.0, 1.0), until=20.0)
    assert stream.step == 0
    released, left_out = feed(stream, columns_of([0.5, 50.0]), Clock(0.0, 1.0))  # a record asks for nothing
    assert released == 9 and left_out == {"of steps that are not over": 1}


def test_one_record_does_not_end_thousands_of_steps():
    stream = NoNoise({"n": streaming.Count("x")}, epsilon=1.0)
    feed(stream, columns_of([0.5, 2.5, 40.5, 9e6]), Clock(0.0, 1.0))
    assert stream.step == 40
    feed(stream, columns_of([41.5, 9e6]), Clock(0.0, 1.0), until=43.0)
    assert stream.step == 43


# -- the command ---------------------------------------------------------------------------------


ALL = ["--count", "--histogram", "carrier:AA,UA", "--quantiles", "delay:-60:360:60", "--epsilon", "5"]
WHEN = ["--time", "when", "--every", "1h", "--start", "2013-01-01T05:00", "--bad-share", "0.4"]


def test_a_file_becomes_a_table(table, tmp_path, capsys):
    out = tmp_path / "releases.csv"
    code, text, error = run(capsys, "--input", table, *WHEN, *ALL, "--mean", "delay:-60:360", "--out", out)
    assert code == 0 and "3 steps released, 3 in all, of all steps so far; epsilon 5.000 at" in text
    assert "private: 33.3 % of 6 records are left out, or in part: 1 without a time" in error
    assert "1 with no number in delay" in error
    assert "private: 1 records of steps that are not over (--until releases those that end by it)" in error
    assert "private: 1 records carrier: unknown category" in error and "private" not in text
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == HEAD and len(rows) == 3 * (1 + 2 + 3 + 1)
    assert all(len(row["epsilon"]) <= len("1.23456") for row in rows)
    assert {row["time"] for row in rows} == {f"2013-01-01T0{h}:00:00+00:00" for h in (6, 7, 8)}


def test_every_form_of_a_statement_is_written_for_the_reviewer(table, tmp_path, capsys):
    forms = [f"--statement={name}={tmp_path / name}" for name in FORMATS]
    given = ["--input", table, *WHEN, "--count", "--epsilon", "1", "--unit", "tail"]
    code, text, error = run(capsys, *given, *forms)
    assert code == 0 and all(f"Saved: {tmp_path / name}" in text for name in FORMATS), error
    for name in FORMATS:
        said = " ".join((tmp_path / name).read_text("utf-8").split())
        assert "one tail" in said and "the ledger of this stream" in said, name
    for bad in ("htm=x.md", "html", "html="):
        with pytest.raises(SystemExit):
            cli.main(["stream", *map(str, given), "--statement", bad])
        assert "must be FORMAT=FILE, with one of text, markdown" in capsys.readouterr().err
    code, text, error = run(capsys, *given, "--statement", f"html={tmp_path}/none/x")
    assert code == 2 and "cannot be written" in error and "released" not in text


def test_it_goes_on_where_it_stopped(table, tmp_path, capsys):
    state, out = tmp_path / "run.db", tmp_path / "out.jsonl"
    arguments = ["--input", table, *WHEN, *ALL, "--state", state, "--out", out]
    assert run(capsys, *arguments)[0] == 0
    before = out.read_text()
    with table.open("a") as file:
        file.write("2013-01-01T09:30,AA,5,N9\n")
    code, text, _ = run(capsys, *arguments)
    assert code == 0 and "1 steps released, 4 in all" in text
    assert out.read_text().startswith(before) and len(out.read_text().splitlines()) == 24
    assert json.loads(before.splitlines()[0])["statistic"] == "count"


def test_units_and_keys(table, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SECRET", "ab" * 32)
    arguments = ["--input", table, *WHEN, "--count", "--epsilon", "1", "--unit", "tail"]
    code, _, error = run(capsys, *arguments, "--state", tmp_path / "s", "--until", "2013-01-01T09:00")
    assert code == 0 and "private: 2 records of units that took part as often as they may" in error
    assert key_in_environment("SECRET") == bytes.fromhex("ab" * 32)
    monkeypatch.setenv("SECRET", "xy")
    with pytest.raises(ValueError, match="64 hexadecimal"):
        key_in_environment("SECRET")
    with pytest.raises(ValueError, match="variable OTHER must hold 64"):
        key_in_environment("OTHER")


def test_standard_input(capsys, monkeypatch):
    lines = [
        f'{{"when": {t}, "carrier": "AA", "delay": null}}\n'
        for t in (1.8e8, 1.8e8 + 10, 1.8e8 + 4000, 180007300)
    ]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("".join(lines).encode())))
    code, text, _ = run(capsys, "--input", "-", "--time", "when", "--every", "1h", *ALL)
    assert code == 0 and "2 steps released" in text and "from the first record" in text


@pytest.mark.parametrize("kept", [True, False])
def test_ctrl_c_says_what_is_kept(table, tmp_path, capsys, monkeypatch, kept):
    state = ["--state", tmp_path / "s"] if kept else []
    arguments = ["--input", table, *WHEN, "--count", "--epsilon", "1", *state]
    several, groups = streaming.Stream.steps, []

    def interrupted(*given, **more):
        groups.append(None)
        if len(groups) == 2:
            raise KeyboardInterrupt
        return several(*given, **more)

    with monkeypatch.context() as patch:
        patch.setattr("anechoic.streaming.pending.GROUP", 2)
        patch.setattr(streaming.Stream, "steps", interrupted)
        code, _, error = run(capsys, *arguments)
    assert code == 130 and "stopped" in error
    if kept:
        assert f"2 released steps are kept in {tmp_path / 's'}: the same command" in error
        code, text, _ = run(capsys, *arguments)
        assert code == 0 and "1 steps released, 3 in all" in text
    else:
        assert "without --state nothing is kept" in error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--epsilon", "1"], "--quantiles or --distribution"),
        (["--quantiles", "delay:0:200:7", "--epsilon", "1"], "high 196 or 203"),
        (["--distribution", "delay:0:1:0.3", "--epsilon", "1"], "high 0.9 or 1.2"),
        (["--distribution", "delay:0:1:3", "--epsilon", "1"], "high 3, or another width"),
        (["--count", "--epsilon", "0"], "epsilon=0.0"),
        (["--histogram", "carrier", "--epsilon", "1"], "categories taken from the data"),
        (["--quantiles", "delay:5:1:1", "--epsilon", "1"], "low < high"),
        (["--quantiles", "delay:0:1e300:1e-300", "--epsilon", "1"], "low < high"),
        (["--quantiles", "delay:0:1:inf", "--epsilon", "1"], "low < high"),
        (
            ["--mean", "delay:a:1", "--epsilon", "1"],
            "'delay:a:1' must have the form column:low:high, with numbers",
        ),
        (["--sum", "nosuch:1", "--epsilon", "1"], "no column 'nosuch'"),
        (["--count", "--epsilon", "1", "--min-sep", "3"], "need --unit"),
        (["--count", "--epsilon", "1", "--out", "x.doc"], "must end in"),
        (["--quantiles", "carrier:0:10:1", "--epsilon", "1"], "100.0 % of 6 records "),
        (["--histogram", "delay:1,2", "--mean", "delay:0:1", "--epsilon", "1"], "both as numbers"),
    ],
)
@pytest.mark.few(11)
def test_what_the_caller_can_mend_is_said(table, capsys, arguments, words):
    code, _, error = run(capsys, "--input", table, *WHEN, *arguments)
    assert code == (3 if "%" in words else 2) and words in error


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("2013-01-01T05:15,1,", "3 that are no CSV, or have too many or too few fields"),
        ("05:15,1", "3 without a time that can be read"),
        ("2013-01-01+01:00,1", "dates with an offset"),
        ("2013-01-01 05.15,1", "--time-format %Y-%m-%d %H.%M"),
        ("1.3570e+09,1", "numbers with an exponent, whose last digits are lost"),
    ],
)
def test_why_no_time_can_be_read(tmp_path, capsys, row, words):
    (tmp_path / "a.csv").write_text("when,v\n" + f"{row}\n" * 3)
    given = ["--time", "when", "--every", "1h"]
    code, _, error = run(capsys, "--input", tmp_path / "a.csv", *given, "--count", "--epsilon", "1")
    assert code == 2 and words in error


def test_a_state_needs_a_public_start(table, tmp_path, capsys):
    arguments = ["--time", "when", "--every", "1h", "--count", "--epsilon", "1", "--state", tmp_path / "s"]
    code, _, error = run(capsys, "--input", table, *arguments)
    assert code == 2 and "--state needs --start" in error


@pytest.mark.slow
def test_parquet_holds_what_was_released(tmp_path):
    stream = streaming.Stream(streaming.Histogram(["AA", "UA"]), epsilon=1.0, horizon=120)
    stream.steps([["AA"]] * 119)  # times begin late: a column's kind is not that of its first rows
    stream.release("2013-01-01T00:00:00+00:00")
    write_releases(tmp_path / "out.parquet", stream.releases())
    frame = polars.read_parquet(tmp_path / "out.parquet")
    assert frame["label"].to_list() == ["AA", "UA"] * 120
    assert frame["value"].to_list() == [v for release in stream.releases() for v in release.estimate]
    assert frame["time"].to_list() == [None] * 238 + ["2013-01-01T00:00:00+00:00"] * 2


def test_without_polars_the_remedy_is_named_before_anything_is_read(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("anechoic.cli.progress.find_spec", lambda name: None)
    code, _, error = run(capsys, "--input", tmp_path / "none.csv", *WHEN, "--count", "--epsilon", "1")
    assert code == 2 and "pip install 'anechoic[streaming]'" in error


def test_every_form_says_who_keeps_the_promise_and_what_is_released(tmp_path):
    """The forms of a stream's mechanism alone leave to a promise what the ledger of the stream enforces."""
    both = {"n": streaming.Count("x"), "m": streaming.Mean(-5, 9, "x")}
    held = {"participation": MinSep(2, 2), "per_step": 3, "unit": "person"}
    board = streaming.Stream(both, epsilon=1.0, horizon=4, **held)
    said = streaming.statement(board)
    for words in ("one person", "2 steps apart", "3 records each", "clipped to -5 … 9", "norm at most 0.99"):
        assert words in said, words
    board.update({"x": [1.0, 2.0]}, unit_ids=["ann", "bob"])
    assert streaming.statement(board) == said  # which holds nothing of the data
    for format in ("text", "markdown", "html", "json"):
        path = tmp_path / format
        said = " ".join(streaming.statement(board, format, data="Visits & calls", out=path).split())
        assert said == " ".join(path.read_text("utf-8").split())
        assert "______" not in said and said.replace("\\&", "&").replace("&amp;", "&").count("Visits & calls")
        for words in ("the ledger of this stream", "n: count; m: mean of x, clipped"):
            assert words in said, (format, words)
        assert "whoever forms the batches" not in said
    assert "Data set:      ______" in streaming.statement(board)
    with pytest.raises(ValueError, match="format="):
        streaming.statement(board, "nits")
    with pytest.raises(ValueError, match="data=int must be your words"):
        streaming.statement(board, data=3)
    with pytest.raises(TypeError, match="give a Stream or a PartitionSelectionHistogram"):
        streaming.statement(board.mechanism)


def test_the_statement_of_a_stream_speaks_of_streams():
    board = streaming.Stream({"n": streaming.Count("x")}, epsilon=1.0, horizon=4, unit="person")
    text = streaming.statement(board)
    assert "is a promise of whoever" in " ".join(text.split())
    for word in ("model", "example", "loss", "learning rate", "epochs", "torch", "checkpoint", "divided"):
        assert word not in text.replace("docs/proofs", "").partition("Proofs:")[0], word


def test_statements_are_in_words_whatever_the_horizon():
    both = {"a": streaming.Mean(0, 200, "amount"), "q": streaming.Quantiles([0, 10, 20], column="wait")}
    more = {"h": streaming.Histogram([*range(25)], "kind"), "s": streaming.Sum(3, column="x")}
    board = streaming.Stream(both | more, by=("place", ["Bern, Stadt", "Basel"]), epsilon=1.0)
    chosen = streaming.PartitionSelectionHistogram(epsilon=1.0)
    said, also = (" ".join(streaming.statement(one).split()) for one in (board, chosen))
    for words in (
        "a: mean of amount, clipped to 0 … 200, by place (Bern, Stadt, Basel)",
        "q: quantiles of wait (0.25, 0.5, 0.75) by 2 buckets from 0 to 20, by",
        "18, 19 and 5 more), by",
        "s: sum of x, clipped to norm 3",
        "of all releases, however many, together",
        "after each step; 0 so far",
    ):
        assert words in said, words
    assert "of all releases, however many, together" in also and "so far; 0 of" not in also
    assert "{" not in said and f"{2**40} releases" not in said + also


def test_short_forms_of_one_column_are_released_side_by_side():
    def made(**given):
        none = dict.fromkeys(("sum", "mean", "histogram", "quantiles", "distribution"), ())
        return statistics_of(SimpleNamespace(**{"time": "t", "count": False, **none, **given}))

    found = made(count=True, histogram=["c:AA", "c:DL", "count:AA"], mean=["d:0:1", "d:-60:360"])
    assert list(found) == ["count", "mean d", "mean d (d:-60:360)", "c", "c (c:DL)", "count (count:AA)"]
    assert found["c (c:DL)"].categories == ["DL"] and isinstance(found["count"], streaming.Count)
    with pytest.raises(ValueError, match="'d:0:1' is given twice"):
        made(mean=["d:0:1"] * 3)
    found = made(sum=["a:b:2.5"], quantiles=["x:0:1:0.25"], distribution=["x:0:1.2:0.3"])
    assert list(found) == ["sum of a:b", "quantiles of x", "distribution of x"]
    assert found["quantiles of x"].edges.tolist() == [0, 0.25, 0.5, 0.75, 1.0]
    assert len(found["distribution of x"].edges) == 5


def test_the_command_line_keeps_to_a_book(table, tmp_path, capsys, monkeypatch):
    key = bytes(range(32))
    book = BudgetBook(tmp_path / "b.db", "flights", key=key)
    book.grant(1.3, 1e-6, unit="event")
    monkeypatch.setenv("BOOK_KEY", key.hex())
    given = ["--input", table, "--time", "when", "--every", "1h", "--start", "2013-01-01T05:00", "--count"]
    given += ["--bad-share", "0.4"]
    given += ["--epsilon", 1.0, "--horizon", 9, "--book", tmp_path / "b.db", "--book-key-env", "BOOK_KEY"]
    code, _, err = run(capsys, *given)
    assert code == 2 and "--book and --data belong together" in err
    kept = [*given, "--data", "flights", "--state", tmp_path / "s.db"]
    for _ in range(2):  # the same command goes on, and costs nothing
        assert run(capsys, *kept)[0] == 0
        assert [one.status for one in book.account().live] == ["spent"]
    out = tmp_path / "out.csv"
    code, said, err = run(capsys, *given, "--data", "flights", "--out", out)
    assert code != 0 and "does not cover" in err and "released" not in said and not out.exists()
    assert len(book.account().live) == 1
