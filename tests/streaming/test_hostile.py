"""Hostile records neither end a stream nor change what honest ones add: fuzzed, by file and in Python."""

import math
import time

import numpy as np
import pytest

from anechoic import cli, streaming
from anechoic.streaming.clock import iso
from tests.streaming.test_sensitivity import ODD
from tests.streaming.test_stream import NoNoise

MANY = [2_000, pytest.param(100_000, marks=pytest.mark.slow)]
DAY = "2013-01-01T"


def hostile_line(rng):
    """Bytes of a record that is none, or whose time, carrier or delay is none."""
    raw = bytes(rng.integers(0, 256, int(rng.integers(1, 40)), dtype=np.uint8)).replace(b"\n", b"")
    text = str(rng.choice(["9999-12-31", "0001-01-01T00:00+23:59", "1e999", "9" * 400, "-1", "nan", ""]))
    made = [
        raw,
        b'"' + raw,
        raw + b'"',
        f"{text},AA,5".encode(),
        f"{DAY}01:00,AA,5,{text}".encode(),
        f"{DAY}01:00".encode(),
        b'x,"' + b"y" * int(rng.integers(1, 200_000)),
        f'{text},"two\nlines",5'.encode(),
        b"\0",
        b"\xef\xbb\xbf,,",
        b"\r,\r,",
    ]
    return made[int(rng.choice(len(made), p=[0.2] * 3 + [0.05] * 3 + [0.002] + [0.062] * 4))]


class QuietStream(NoNoise, streaming.Stream):
    """Its releases are the integer sums."""


@pytest.mark.parametrize("many", MANY)
@pytest.mark.slow
def test_a_file_of_hostile_records_is_read_to_its_end(tmp_path, capsys, monkeypatch, many):
    pytest.importorskip("polars")
    from anechoic.streaming import command

    monkeypatch.setattr(command, "Stream", QuietStream)
    rng = np.random.default_rng(1)
    honest = [f"{DAY}{i % 3:02}:30,{'AU'[i % 2]}A,{i}" for i in range(300)]
    lines = [line.encode() for line in honest] + [hostile_line(rng) for _ in range(many)]
    rng.shuffle(lines)
    outcomes = []
    for name, kept in (("good", [line.encode() for line in honest]), ("all", lines)):
        path = tmp_path / f"{name}.csv"
        path.write_bytes(b"\n".join([b"t,c,d", *kept, b""]))
        arguments = ["--input", path, "--time", "t", "--every", "1h", "--start", DAY + "00:00", "--count"]
        arguments += ["--until", DAY + "03:00", "--histogram", "c:AA,UA", "--sum", "d:1000", "--epsilon", "1"]
        arguments += ["--bad-share", "1", "--horizon", "3", "--out", tmp_path / f"{name}.jsonl"]
        assert cli.main(["stream", *map(str, arguments)]) == 0
        outcomes.append((tmp_path / f"{name}.jsonl").read_bytes())
        printed = capsys.readouterr()
    assert outcomes[0] == outcomes[1]
    assert "private: " in printed.err and "private" not in printed.out
    left_out = sum(int(line.split()[1]) for line in printed.err.splitlines() if line.startswith("  private"))
    assert left_out > 0.9 * many


@pytest.mark.parametrize("many", MANY)
def test_hostile_objects_in_lists_change_nothing(many):
    rng = np.random.default_rng(2)
    statistics = {
        "n": streaming.Sum(2.0, column="x"),
        "m": streaming.Mean(-1, 1, "x"),
        "q": streaming.Quantiles([-1, 0, 1], column="x"),
        "h": streaming.Histogram([0, 1, "a"], "c"),
    }
    numbers, categories = rng.normal(size=many // 2).tolist(), rng.integers(0, 3, many // 2).tolist()
    alone, together = (NoNoise(statistics, epsilon=1.0, horizon=2) for _ in range(2))
    alone.update({"x": numbers, "c": categories})
    odd = [one for one in ODD if type(one) is not list]  # a vector of one number
    wrong = odd * (many // 2 // len(ODD))
    mixed = [*zip(numbers, categories, strict=True), *zip(wrong, wrong, strict=True)]
    order = rng.permutation(len(mixed))
    together.update({"x": [mixed[i][0] for i in order], "c": [mixed[i][1] for i in order]})
    for one in (alone, together):
        one.release()
    assert alone._state.published(0) == together._state.published(0)
    assert together.diagnostics()["n: not finite"] > 0.4 * many


def run(capsys, path, *arguments):
    common = ["--input", path, "--time", "t", "--every", "1h", "--count", "--epsilon", "1"]
    code = cli.main(["stream", *map(str, [*common, *arguments])])
    return code, *capsys.readouterr()


@pytest.mark.parametrize(
    "odd", ["9999-12-31T00:00", iso(time.time() + 9e6), "2e17"], ids=["year 9999", "in months", "seconds"]
)
@pytest.mark.few(1)
def test_a_time_ahead_of_the_clock_ends_no_step(tmp_path, capsys, odd):
    path, state = tmp_path / "a.csv", ["--state", tmp_path / "s", "--start", DAY + "00:00"]
    path.write_text(f"t\n{DAY}00:30\n{odd}\n{DAY}02:30\n")
    code, out, error = run(capsys, path, *state)
    assert code == 0 and "2 steps released" in out and "1 records of steps that are ahead of" in error
    path.write_text(f"t\n{odd}\n{DAY}03:30\n")
    assert "1 steps released, 3 in all" in run(capsys, path, *state)[1]


def test_until_ends_no_step_after_now_unless_forced(tmp_path, capsys):
    path, begin = tmp_path / "a.csv", math.floor(time.time() / 3600) * 3600 - 7200
    path.write_text(f"t\n{begin + 1}\n")
    arguments = ["--start", iso(begin), "--until", iso(begin + 36_000)]
    code, out, error = run(capsys, path, *arguments)
    assert code == 0 and ("2 steps released" in out or "3 steps released" in out) and "--force" in error
    assert "10 steps released" in run(capsys, path, *arguments, "--force")[1]


def test_a_share_of_records_that_cannot_be_read_is_refused_by_its_numbers(tmp_path, capsys):
    path = tmp_path / "a.csv"
    path.write_text("t\n" + f"{DAY}00:30\n" * 8 + "secret\n" * 2)
    until = ["--start", DAY + "00:00", "--until", DAY + "01:00"]
    assert run(capsys, path, *until)[0] == 0
    code, out, error = run(capsys, path, *until, "--bad-share", "0.1")
    assert code == 2 and "2 of 10 records of " in error and "--bad-share" in error
    assert not out and "secret" not in error
