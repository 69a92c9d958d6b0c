"""Files of records: a file is the sum of its lines; what cannot be read is left out and counted."""

import gzip
import json
from argparse import Namespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("polars")

import polars as pl

from anechoic import streaming
from anechoic.streaming import command, sources
from anechoic.streaming.clock import seconds_of, zone_of
from anechoic.streaming.pending import PendingSteps
from anechoic.streaming.sources import numbers_of, source_of, texts_of, times_of
from tests.marks import slow

NAMES = ["t", "v", "c"]


def content(frames):
    """All that the command takes from frames, in text that shows every bit."""
    found = []
    for frame in frames:
        numbers, odd = numbers_of(frame["v"])
        times = times_of(frame["t"], zone_of("Europe/Zurich"))
        columns = times.tolist(), numbers.tolist(), odd.tolist(), texts_of(frame["c"]).to_list()
        found += [repr(row) for row in zip(*columns, strict=True)]
    return found


def read(path, names=NAMES, **how):
    """(frames, records, how many of them cannot be read) of a file."""
    source = source_of(str(path), names, **how)
    frames = list(source.batches())
    return frames, source.read, source.faults.total()


def texts(path, names=NAMES):
    frames = read(path, names)[0]
    return {name: [text for frame in frames for text in texts_of(frame[name])] for name in names}


PIECES = [
    "2024-01-01",
    "T05:00",
    "7",
    "-1.5",
    "1e400",
    "nan",
    "Bern",
    ",",
    '"',
    '""',
    "\r",
    "\0",
    " ",
    "é",
    "Zürich",
    "1,234.50",
]
PIECES = [piece.encode() for piece in PIECES]
PIECES += [b"\xef\xbb\xbf", b"\xff", b"\xc3", b"PK\3\4", b"\xff\xfe", b"|;\t"]
FIELDS = st.lists(st.sampled_from(PIECES), max_size=4).map(b"".join)
ROWS = st.tuples(FIELDS, FIELDS, FIELDS).map(b",".join)
VALUES = ['"2024-01-01"', "7", "7.0", "1e999", "NaN", "null", '"\\ud800"', '"\\u0000,"', "[1]", '"x\\"']
OBJECTS = st.tuples(*[st.sampled_from(VALUES)] * 3).map(lambda some: '{{"t":{},"v":{},"c":{}}}'.format(*some))
JSON = st.one_of(OBJECTS.map(str.encode), FIELDS, OBJECTS.map(lambda text: b"\xef\xbb\xbf" + text.encode()))
FILES = [(".csv", b"t,v,c\n", ROWS, "utf-8"), (".csv", b"t,v,c\n", ROWS, "gb18030")]
FILES += [(".jsonl", b"", JSON, "utf-8"), (".jsonl", b"", JSON, "cp1252")]


@pytest.mark.parametrize(
    ("ending", "head", "rows", "encoding", "block"),
    [(*file, 7) for file in FILES] + slow(*((*file, block) for file in FILES for block in (1, 2**23))),
)
@settings(derandomize=True, deadline=None, max_examples=40)
@given(data=st.data())
def test_a_file_is_the_sum_of_its_lines(tmp_path_factory, ending, head, rows, encoding, block, data):
    """With every prefix, whatever is read at once."""
    lines = data.draw(st.lists(rows, max_size=6))
    path = tmp_path_factory.mktemp("files") / f"a{ending}"
    before, sources.BLOCK = sources.BLOCK, block
    try:
        expected, counts = [], np.zeros(2, int)
        for place, line in enumerate(lines):
            path.write_bytes(head + line + b"\n")
            frames, *one = read(path, encoding=encoding)
            expected, counts = expected + content(frames), counts + one
            path.write_bytes(head + b"\n".join(lines[: place + 1]))  # the last line without an end
            frames, *whole = read(path, encoding=encoding)
            assert content(frames) == expected and whole == counts.tolist()
    finally:
        sources.BLOCK = before


def test_a_parquet_file_is_the_sum_of_its_rows(tmp_path, monkeypatch):
    values = [1.0, None, 2.5, float("nan"), 7.0, 3.0, 9.0]
    kinds = ["\ufeffa", "", '"', "\0", "x", None, "y"]
    frame = pl.DataFrame({"t": [*map(str, range(6)), None], "v": values, "c": kinds})
    parts = [content([frame[place : place + 1]]) for place in range(7)]
    for rows in (1, 3, 2**18):
        monkeypatch.setattr(sources, "ROWS", rows)
        for end in range(8):
            frame[:end].write_parquet(tmp_path / "a.parquet", row_group_size=2)
            frames, records, faults = read(tmp_path / "a.parquet")
            assert content(frames) == [row for part in parts[:end] for row in part]
            assert (records, faults) == (end, 0)
    assert texts(tmp_path / "a.parquet", ["v"]) == {"v": ["1", "", "2.5", "", "7", "3", "9"]}


def test_one_record_moves_the_sums_by_one_record(tmp_path, monkeypatch):
    """A byte order mark before a time once counted only where a block began: here each line begins one."""
    stream = streaming.Stream({"sum": streaming.Sum(1.0, column="amount")}, epsilon=1.0, horizon=24)
    hostile = [f"\ufeff2024-01-01T00:30:00,{sign}1,{'.' * 40}\n".encode() for sign in "+-"] * 40
    path = tmp_path / "a.csv"
    how = {"encoding": "utf-8", "separator": None, "decimal": ".", "thousands": "", "time_format": None}
    options = Namespace(input=str(path), time="t", unit=None, timezone="UTC", bad_share=1.0, **how)

    def exact(lines):
        path.write_bytes(b"t,amount,note\n" + b"".join(lines))
        pending = PendingSteps(stream, command.Clock(float(seconds_of(["2024-01-01"])[0]), 3600.0))
        for columns in command.BatchReader(options, stream).batches():
            pending.add(columns)
        return {step: sums.sums[0] / stream.shared.units["sum"] for step, sums in pending._sums.items()}

    for block in (len(hostile[0]), 64, 2**23):
        monkeypatch.setattr(sources, "BLOCK", block)
        found, without = (exact(lines) for lines in ([b"2024-01-01T00:30:00,+1,\n", *hostile], hostile))
        assert found == {0: pytest.approx(1.0, abs=1e-6)} and without == {0: pytest.approx(0.0, abs=1e-6)}


HOSTILE = [b'7,"', b'7,"secret', b'7,"secret"x', b"7,8,9", b"7", b"7,\xe9", b"\xff\xfe", b'"', b'a"b']
HOSTILE += [b"7," + b"5" * 200, b'7,"' + b"5" * 200 + b'"']


@pytest.mark.parametrize("odd", HOSTILE)
@pytest.mark.parametrize("block", [2**23, 211, 16, 7])
def test_a_line_that_is_no_record_is_left_out_by_itself(tmp_path, monkeypatch, odd, block):
    monkeypatch.setattr(sources, "BLOCK", block)
    monkeypatch.setattr(sources, "LONGEST", 100)
    (tmp_path / "a.csv").write_bytes(b"\n".join([b"t,v", b"0,.5", odd, b"1,", b"", b"2,.5"]))
    _, records, faults = read(tmp_path / "a.csv", ["t", "v"])
    assert texts(tmp_path / "a.csv", ["t", "v"]) == {"t": ["0", "1", "2"], "v": [".5", "", ".5"]}
    assert (records, faults) == (4, 1)


NO_JSON = [
    "[" * 5000,
    '{"t": 1',
    '["secret"]',
    '"secret"',
    f'{{"t": {"9" * 5000}}}',
    "null",
    "\0",
    '{"t": "\udcff"}',
]


@pytest.mark.parametrize("odd", [*NO_JSON, '{"t": "\\ud800"}'])
def test_a_line_that_is_no_json_is_left_out_by_itself(tmp_path, odd):
    lines = ['{"t": 1, "v": 2}', odd, '{"t": 3}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8", errors="surrogateescape")
    assert texts(tmp_path / "a.jsonl", ["t", "v"]) == {"t": ["1", "3"], "v": ["2", ""]}
    assert read(tmp_path / "a.jsonl")[1:] == (3, 1)


def test_quotes_separators_and_ends_of_lines(tmp_path):
    expected = {"t": ["1, 2", 'say "x"', '"', '5"'], "v": ["0.5", "", "", "7"]}
    lines = ["t,v", '"1, 2",0.5', "", '"say ""x""",', '"""",', '5",7']
    for end in ("\n", "\r\n"):
        for last in ("", end):
            for mark in (b"", b"\xef\xbb\xbf"):
                (tmp_path / "a.csv").write_bytes(mark + (end.join(lines) + last).encode())
                assert texts(tmp_path / "a.csv", ["t", "v"]) == expected
    with gzip.open(tmp_path / "a.csv.gz", "wb") as file:
        file.write((tmp_path / "a.csv").read_bytes())
    assert texts(tmp_path / "a.csv.gz", ["t", "v"]) == expected
    for mark in ";\t|":
        (tmp_path / "b.csv").write_text(f'"a, b"{mark}"t"{mark}v\n0{mark}1{mark}2,5\n')
        assert texts(tmp_path / "b.csv", ["v", "t", "a, b"]) == {"t": ["1"], "v": ["2,5"], "a, b": ["0"]}


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.csv", b"\xff\xfet\0,\0v\0\n\0", "UTF-16"),
        ("a.csv", gzip.compress(b"t,v\n", mtime=0), "proper ending"),
        ("a.csv.gz", gzip.compress(b"t,v\n1,2\n" * 9, mtime=0)[:-12], "cut short"),
        ("a.csv.gz", b"t,v\n1,2\n", "damaged"),
        ("a.csv", b"t,w\n1,2\n", "no column 'v'; it has 't', 'w'"),
        ("a.csv", b"t,v\r1,2\r3,4\n", "carriage return alone.*tr "),
        ("a.csv", b"t,v\r1,2\r3,4", "carriage return alone.*tr "),
        ("a.csv", b"", "is empty"),
        ("a.csv.gz", gzip.compress(b"", mtime=0), "is empty"),
        ("a.csv", b"t,v,t\n1,2,3\n", "several columns 't'"),
        ("a.csv", b't,"v","v"\n1,2,3\n', "several columns 'v'"),
    ],
)
def test_files_of_another_kind_are_refused_with_the_remedy(tmp_path, name, data, words):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=words):
        read(tmp_path / name, ["t", "v"])


def test_equal_numbers_have_one_text_and_missing_ones_none(tmp_path):
    values = [7, 7.0, "7", 70e-1, None, float("nan"), 7.5, 1e22, 10**22, -0.0]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"id": value}) + "\n" for value in values) + "{}\n")
    expected = ["7"] * 4 + [""] * 2 + ["7.5", "1" + "0" * 22, "1" + "0" * 22, "0", ""]
    assert texts(tmp_path / "x.jsonl", ["id"])["id"] == expected
    (tmp_path / "x.csv").write_text("id\n7\n007\n7.0\n nan\n")
    assert texts(tmp_path / "x.csv", ["id"])["id"] == ["7", "007", "7.0", " nan"]


def test_numbers_are_those_of_python():
    rng = np.random.default_rng(0)
    given = [
        " 5 ",
        "0x10",
        "1e999",
        "nan",
        "٣",
        "+.5e-3",
        "-inf",
        "Infinity",
        "5.",
        "4.9e-324",
        "1d",
        "-",
        "",
        "NA",
    ]
    given += [repr(float(x)) for x in rng.normal(size=200)] + [f"{x:.25f}" for x in rng.normal(size=50)]
    missing = {"", "nan", "na", "null", "none"}

    def number(text):
        try:
            return float(text) if text.isascii() else np.nan
        except ValueError:
            return np.nan

    found, odd = numbers_of(pl.Series(given, dtype=pl.String))
    assert np.array_equal(found, [number(text) for text in given], equal_nan=True)
    assert odd.tolist() == [
        bool(np.isnan(x)) and t.strip().lower() not in missing for x, t in zip(found, given, strict=True)
    ]


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_times_of_a_parquet_file_are_read_as_their_text(unit, zone):
    """Around changes of the clocks, with and without a zone; an hour that clocks skip is no time here."""
    turns = np.array([-1784822400, 1710057600, 1699160400, 1699164000, 0]) * 10**6 + 250000
    ticks = {"ms": turns // 1000, "us": turns, "ns": turns * 1000}[unit]
    column = pl.Series([*ticks.tolist(), None], dtype=pl.Int64).cast(pl.Datetime(unit))
    for times in (column, column.dt.replace_time_zone("UTC").dt.convert_time_zone("America/New_York")):
        assert np.array_equal(
            times_of(times, zone_of(zone)), seconds_of(texts_of(times), zone_of(zone)), equal_nan=True
        )
    skipped = pl.Series(["2024-03-10T02:30:00"]).str.to_datetime()
    assert np.isnan(times_of(skipped, zone_of("America/New_York"))).all()


def test_groups_of_three_digits_and_decimal_marks():
    """Each text as it is written, or none at all: a mark in another place is a slip of the pen."""
    given = [
        "1,234",
        "-1,234,567.5",
        "1,234.",
        "7",
        ".5",
        "12,34",
        "1234,567",
        ",123",
        "1,23",
        "1,2345",
        "1,234,",
    ]
    expected = [1234, -1234567.5, 1234, 7, 0.5]
    for thousands, decimal in ((",", "."), (".", ","), ("'", "."), ("_", ",")):
        marks = str.maketrans({",": thousands, ".": decimal})
        column = pl.Series("v", [text.translate(marks) for text in given])
        found, odd = numbers_of(column, decimal, thousands)
        assert found[:5].tolist() == expected and np.isnan(found[5:]).all(), thousands
        assert odd.tolist() == [False] * 5 + [True] * 6
    found, odd = numbers_of(pl.Series("v", ["1.5", "1,5", "1,5,5", ".", ""]), ",")
    assert np.array_equal(found, [np.nan, 1.5, *[np.nan] * 3], equal_nan=True)
    assert odd.tolist() == [True, False, True, False, False]


def test_a_line_that_shifts_its_encoding_shifts_no_other(tmp_path):
    """ISO-2022 goes on in another alphabet until it is told; so would the records of others."""
    lines = [b"t,v,c,note", "7,7,日本,x".encode("iso2022_jp"), b"8,8,x,\x1b$B", b"9,9,x,y"]
    (tmp_path / "a.csv").write_bytes(b"\n".join(lines))
    source = source_of(str(tmp_path / "a.csv"), NAMES, encoding="iso2022_jp")
    assert [row for frame in source.batches() for row in frame["t"].to_list()] == ["7", "8", "9"]
