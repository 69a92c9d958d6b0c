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


def test_a_share_of_records_that_cannot_be_read_is_refused_by_its_numbers(tmp_path, capsys):
    path = tmp_path / "a.csv"
    path.write_text("t\n" + f"{DAY}00:30\n" * 98 + "secret\n" * 2)
    until = ["--start", DAY + "00:00", "--until", DAY + "01:00"]
    assert run(capsys, path, *until, "--bad-share", "0.02")[0] == 0
    code, out, error = run(capsys, path, *until)
    assert code == 3 and "2.0 % of 100 records are left out" in error and "--bad-share" in error
    assert not out and "secret" not in error
