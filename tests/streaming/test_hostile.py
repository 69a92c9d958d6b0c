"""Hostile records neither end a stream nor change what honest ones add: fuzzed, by file and in Python."""

import math
import time

import pytest

from anechoic import cli
from anechoic.streaming.clock import iso

DAY = "2013-01-01T"


def run(capsys, path, *arguments):
    common = ["--input", path, "--time", "t", "--every", "1h", "--count", "--epsilon", "1"]
    code = cli.main(["stream", *map(str, [*common, *arguments])])
    return code, *capsys.readouterr()


@pytest.mark.parametrize(
    "odd",
    ["9990-12-31T00:00", iso(time.time() + 9e6), "9000000000"],
    ids=["year 9990", "in months", "seconds"],
)
@pytest.mark.few(1)
def test_a_time_ahead_of_the_clock_ends_no_step(tmp_path, capsys, odd):
    path, state = tmp_path / "a.csv", ["--state", tmp_path / "s", "--start", DAY + "00:00"]
    path.write_text(f"t\n{DAY}00:30\n{odd}\n{DAY}02:30\n")
    assert run(capsys, path, *state)[0] == 3  # a third of the file
    state += ["--bad-share", "0.5"]
    code, out, error = run(capsys, path, *state)
    assert code == 0 and "2 steps released" in out and "33.3 % of 3 records are left out" in error
    path.write_text(f"t\n{odd}\n{DAY}03:30\n")
    assert "1 steps released, 3 in all" in run(capsys, path, *state)[1]


def test_until_ends_no_step_after_now_unless_forced(tmp_path, capsys):
    path, begin = tmp_path / "a.csv", math.floor(time.time() / 3600) * 3600 - 7200
    path.write_text(f"t\n{begin + 1}\n")
    arguments = ["--start", iso(begin), "--until", iso(begin + 36_000)]
    code, out, error = run(capsys, path, *arguments)
    assert code == 0 and ("2 steps released" in out or "3 steps released" in out) and "--force" in error
    assert "10 steps released" in run(capsys, path, *arguments, "--force")[1]
