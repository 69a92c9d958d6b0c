"""Files of records: one that cannot be read takes no other with it, is counted, and is not shown."""

import gzip
import os
from itertools import product

import numpy as np
import pytest

pytest.importorskip("polars")

import polars

from anechoic.streaming import sources
from anechoic.streaming.clock import seconds_of, zone_of
from anechoic.streaming.coded import coded
from anechoic.streaming.columns import categories_of, column_of, numbers_of, texts_of, times_of
from anechoic.streaming.sources import source_of
from tests.floats import same_bits

ORDINARY = [f"{i},0.5" for i in range(5)]


def read(path, names, *, growing=False):
    """(columns as lists of text, records, faults) of a file."""
    source = source_of(str(path), names, growing=growing)
    found = {name: [] for name in names}
    for batch in source.batches():
        for name in names:
            found[name] += texts_of(batch[name])
    return found, source.read, source.faults.total()


def read_columns(path, names):
    return read(path, names)[0]


HOSTILE = [
    b'7,"',  # never closed: not to the end of the file
    b'7,"secret',
    b'7,"secret"x',
    b"7,8,9",
    b"7",
    b"7,\xe9",
    b"\xff\xfe",
    b"7,\rx",
    b'7,"' + b"5" * 140_000 + b'"',
    b'"',
    b'a"b',
]


@pytest.mark.parametrize("odd", range(len(HOSTILE)))
@pytest.mark.parametrize("block", [2**23, 16, 7])
def test_a_record_that_cannot_be_read_is_left_out_by_itself(tmp_path, monkeypatch, odd, block):
    monkeypatch.setattr(sources, "BLOCK", max(block, 16 if len(HOSTILE[odd]) < 99 else 2**18))
    lines = [line.encode() for line in ORDINARY]
    (tmp_path / "a.csv").write_bytes(b"\n".join([b"t,v", *lines[:2], HOSTILE[odd], *lines[2:]]) + b"\n")
    found, records, faults = read(tmp_path / "a.csv", ["t", "v"])
    assert found == {"t": list("01234"), "v": ["0.5"] * 5}
    assert (records, faults) == (6, 1)


def test_what_stands_in_a_field_is_read_the_same_whatever_stands_beside_it(tmp_path):
    """Lines with quotes go another way than lines without: what is read is the same."""
    fields = [
        "",
        " 5 ",
        "1_0",
        "0x10",
        "1e999",
        "nan",
        "7\0",
        "\0",
        "é",
        "٣",
        "+.5e-3",
        "5" * 140_000,
        "a\tb",
    ]
    rng = np.random.default_rng(0)
    fields += [repr(float(x)) for x in rng.normal(size=200)] + [f"{x:.25f}" for x in rng.normal(size=50)]
    lines = ["t,v", *(f"{field},1" for field in fields)]
    columns = []
    for quoted in ([], ['"1, 2","say ""x"""']):
        (tmp_path / "a.csv").write_text("\n".join([*lines, *quoted, ""]), encoding="utf-8", newline="")
        [batch] = source_of(str(tmp_path / "a.csv"), ["t", "v"]).batches()
        numbers, odd = numbers_of(batch["t"])
        columns.append((texts_of(batch["t"])[: len(fields)], numbers[: len(fields)], odd[: len(fields)]))
    assert columns[0][0] == columns[1][0] == fields
    assert columns[0][1].tobytes() == columns[1][1].tobytes() and (columns[0][2] == columns[1][2]).all()

    def number(text):
        try:
            return float(text)
        except ValueError:
            return np.nan

    assert np.array_equal(columns[0][1], [number(field) for field in fields], equal_nan=True)


def test_quotes_and_ends_of_lines_are_read(tmp_path):
    expected = {"t": ["1, 2", 'say "x"', "two\nlines", '5"'], "v": ["0.5", "", "", "7"]}
    lines = ["t,v", '"1, 2",0.5', "", '"say ""x""",', '"two\nlines",', '5",7']
    for end in ("\n", "\r\n"):
        for last in ("", end):
            for mark in (b"", b"\xef\xbb\xbf"):
                text = end.join(lines).replace("two\r\n", "two\n") + last
                (tmp_path / "a.csv").write_bytes(mark + text.encode())
                assert read(tmp_path / "a.csv", ["t", "v"]) == (expected, 4, 0)
    with gzip.open(tmp_path / "a.csv.gz", "wb") as file:
        file.write((tmp_path / "a.csv").read_bytes())
    assert read_columns(tmp_path / "a.csv.gz", ["t", "v"]) == expected
    for mark in ";\t":
        (tmp_path / "b.csv").write_text(f"t{mark}v\n1{mark}2,5\n")
        assert read_columns(tmp_path / "b.csv", ["t", "v"]) == {"t": ["1"], "v": ["2,5"]}


def test_records_of_several_lines_are_read_across_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BLOCK", 64)
    lines = [f'{i},"one\ntwo {i}\nthree"' for i in range(50)]
    (tmp_path / "a.csv").write_text("\n".join(["t,v", *lines, '7,"never closed']) + "\n")
    found, records, faults = read(tmp_path / "a.csv", ["t", "v"])
    assert found["t"] == [str(i) for i in range(50)] and found["v"][3] == "one\ntwo 3\nthree"
    assert (records, faults) == (51, 1)


def test_a_line_that_is_too_long_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BLOCK", 100)
    (tmp_path / "a.csv").write_text("t,v\n1,2\n3," + "x" * 1000 + "\n5,6\n")
    assert read(tmp_path / "a.csv", ["t", "v"]) == ({"t": ["1", "5"], "v": ["2", "6"]}, 3, 1)


@pytest.mark.parametrize(
    "odd",
    [
        "[" * 5000,
        '{"t": 1',
        '["secret"]',
        '"secret"',
        f'{{"t": {"9" * 5000}}}',
        "null",
        "\0",
        '{"t": "\udcff"}',
    ],
)
def test_a_line_that_is_no_json_is_left_out_by_itself(tmp_path, odd):
    lines = ['{"t": 1, "v": 2}', odd, '{"t": 3}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8", errors="surrogateescape")
    assert read(tmp_path / "a.jsonl", ["t", "v"]) == ({"t": ["1", "3"], "v": ["2", ""]}, 3, 1)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"\xff\xfet\0,\0v\0\n\0", "UTF-16"),
        ("a.csv", gzip.compress(b"t,v\n", mtime=0), "proper ending"),
        ("a.csv.gz", gzip.compress(b"t,v\n1,2\n" * 9, mtime=0)[:-12], "cut short"),
        ("a.csv.gz", b"t,v\n1,2\n", "damaged"),
        ("a.csv", b"t,w\n1,2\n", "no column 'v'; it has t, w"),
        ("a.csv", b"t,v\xff\n1,2\n", "no head of CSV"),
    ],
)
def test_files_of_another_kind_are_refused_with_the_remedy(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=words):
        read(tmp_path / name, ["t", "v"])


def test_parquet_is_read_some_rows_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "ROWS", 3)
    values = [1.0, None, 2.5, float("nan"), 7.0, 3.0, 9.0]
    polars.DataFrame({"t": range(7), "v": values}).write_parquet(tmp_path / "a.parquet")
    source = source_of(str(tmp_path / "a.parquet"), ["v"])
    batches = list(source.batches())
    assert [len(batch["v"]) for batch in batches] == [3, 3, 1] and source.read == 7
    assert [text for batch in batches for text in texts_of(batch["v"])] == ["1", "", "2.5", "", "7", "3", "9"]
    numbers = np.concatenate([numbers_of(batch["v"])[0] for batch in batches])
    assert np.array_equal(numbers, np.array(values, dtype=float), equal_nan=True)


def test_what_grows_is_read_once_and_a_new_file_from_its_begin(tmp_path, capsys):
    path = tmp_path / "a.csv"
    source = source_of(str(path), ["t"], growing=True)

    def new():
        return [text for batch in source.batches() for text in texts_of(batch["t"])]

    path.write_text("t,v\n1,2\n3,")
    assert new() == ["1"]
    with path.open("a") as file:
        file.write('4\n5,"a\n')
    assert new() == ["3"]
    with path.open("a") as file:
        file.write('b"\n6,6')
    assert new() == ["5"] and new() == []
    os.rename(path, tmp_path / "a.csv.1")
    assert new() == []
    path.write_text("v,t\n1,7\n")
    assert new() == ["6", "7"]  # the end of the old file, then the new one
    assert "was replaced or cut" in capsys.readouterr().err
    path.write_text("v,t\n")
    assert new() == []
    assert "was replaced or cut" in capsys.readouterr().err
    with path.open("a") as file:
        file.write("8,8\n")
    assert new() == ["8"] and source.faults.total() == 0
    for wrong in ("-", "a.parquet", "a.csv.gz"):
        with pytest.raises(ValueError, match="--follow needs"):
            source_of(wrong, ["t"], growing=True)
    source.close()


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Australia/Lord_Howe"])
def test_times_are_read_as_one_by_one(zone):
    """Around changes of the clocks, at the ends of hours, and for what is no time at all."""
    days = ("03-10", "03-31", "04-07", "10-06", "11-03", "11-18")
    minutes = ("00:00", "29:59", "30", "59:59")
    cases = product((1883, 1970, 2013, 2024), days, "T ", (0, 1, 2, 3, 23), minutes)
    texts = [f"{year}-{day}{mark}{hour:02}:{minute}" for year, day, mark, hour, minute in cases]
    texts += ["2013-02-30T00:00:00", "2013-1-1T0:00", "2013-01-01T24:00:00", "2013-01-01T00:00:60", "7.5"]
    texts += ["0000-01-01T00:00:00", "2013-01-01T00:00:00Z", "2013-01-01T00:00:00.25", "2013-01-01", "x", ""]
    texts += ["2013-01-01T00:00:00+01:00", "nan", "inf", "2013-01-01X00:00:00", "20130101T000000", " 7 "]
    found, expected = times_of(column_of(texts), zone_of(zone)), seconds_of(texts, zone_of(zone))
    assert same_bits(found, expected)


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_so_are_times_of_a_parquet_file(unit):
    """Numbers of any century, parts of seconds, around changes of the clocks, with and without a zone."""
    choice = np.random.default_rng(0)
    turns = np.array([-1784822400, 1710054000, 1710057600, 1699160400, 1699164000]) * 10**6
    moments = [choice.integers(-9 * 10**15, 9 * 10**15, 200), [0, -1, 2**53 - 1], turns, turns + 250001]
    moments = np.concatenate(moments)
    ticks = {"ms": moments // 1000, "us": moments, "ns": moments * 1000 + 1}[unit]
    column = polars.Series([*ticks.tolist(), None], dtype=polars.Int64).cast(polars.Datetime(unit))
    for own in (None, "UTC", "America/New_York"):
        times = column if own is None else column.dt.replace_time_zone("UTC").dt.convert_time_zone(own)
        for zone in ("UTC", "America/New_York"):
            expected = seconds_of(texts_of(times), zone_of(zone))
            assert same_bits(times_of(times, zone_of(zone)), expected)


def test_a_part_of_a_long_column_has_its_own_categories():
    whole = categories_of(column_of([f"{i}" for i in range(1000)] * 2))
    values, places = coded(whole[[5, 1005, 7]])
    assert [values[place] for place in places] == ["5", "5", "7"] and len(values) == 2
    assert whole[[5, 1005]].to_list() == ["5", "5"] and len(whole) == 2000
