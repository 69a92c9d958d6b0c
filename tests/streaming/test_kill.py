"""kill -9 between any two instructions: the state is that of before or after, and no row is used twice."""

import os

import pytest

import anechoic.runs
import anechoic.streaming
from anechoic.runs.settings_check import MECHANISM
from anechoic.streaming.accumulator import Accumulator
from anechoic.streaming.store import Store
from tests.runs.kills import folders, killed_at, lines_of_a_run
from tests.streaming.released import bytes_of
from tests.streaming.test_store import KEY, board, feed

ROOM = folders(anechoic.streaming, anechoic.runs)
STEPS = range(4)


def run(path, published):
    """What an operator's program does: go on where the file stands, and append what is released to a log."""
    with board(path, key=KEY) as stream:
        for t in STEPS[stream.step :]:
            stream.update({"x": [0.5, 0.1 * t]}, unit_ids=[t, "a"], batch_id=f"{t}")
            stream.update({"x": [-0.25]}, unit_ids=[f"u{t}"], batch_id=f"{t} more")
            write(published, t, bytes_of(stream.release(t)))


def run_in_groups(path, published):
    """The same, two steps in a commit, whose noise is drawn ahead; known batches are fed again."""
    with board(path, key=KEY) as stream:
        for group in (STEPS[:2], STEPS[2:]):
            made = stream.steps(**batches_of(group), batch_ids=[f"{t}" for t in group])
            for t, release in zip(group, made, strict=True):
                write(published, t, bytes_of(release))


def run_with_sums(path, published):
    """A sink of a streaming engine: batches are of two steps, and each comes twice."""
    with board(path, key=KEY) as stream:
        for number, group in enumerate((STEPS[:2], STEPS[2:])):
            made = []
            for t in group:
                columns, ids = [{"x": [0.5, 0.1 * t]}, {"x": [-0.25]}], [[t, "a"], [f"u{t}"]]
                made += [Accumulator(stream, t).add(*given) for given in zip(columns, ids, strict=True)]
            stream.add_sums(made, batch_id=("query", number))
            assert not stream.add_sums(made, batch_id=("query", number))
            while stream.step <= group[-1]:
                write(published, stream.step, bytes_of(stream.release(stream.step)))


def batches_of(steps):
    return {
        "batches": [{"x": [0.5, 0.1 * t]} for t in steps],
        "unit_ids": [[t, "a"] for t in steps],
        "times": list(steps),
    }


def write(published, t, made):
    with open(published, "ab") as log:
        log.write(t.to_bytes(1, "little") + len(made).to_bytes(4, "little") + made)


def log_of(published):
    data, found = (published.read_bytes() if published.exists() else b""), []
    while data:
        size = int.from_bytes(data[1:5], "little")
        found.append((data[0], data[5 : 5 + size]))
        data = data[5 + size :]
    return found


def try_kills(tmp_path, kills, run=run):
    whole = feed(board(key=KEY), STEPS)
    grouped = [*map(bytes_of, board(key=KEY).steps(**batches_of(STEPS)))]
    expected = grouped if run is run_in_groups else whole
    total = lines_of_a_run(run, tmp_path / "all.db", tmp_path / "all.log", rooms=ROOM)
    deaths = 0
    for number in range(kills):
        place = 1 + number * (total - 1) // max(1, kills - 1)
        path, published = tmp_path / f"{number}.db", tmp_path / f"{number}.log"
        deaths += killed_at(run, place, path, published, rooms=ROOM)
        run(path, published)
        seen = dict(log_of(published))
        for step, made in log_of(published):
            assert made == expected[step] == seen[step]
        with board(path, key=KEY) as stream:
            assert [*map(bytes_of, stream.releases())] == expected
    return deaths


@pytest.mark.parametrize("run", [run_in_groups, run_with_sums])
def test_killed_at_some_places(tmp_path, run):
    assert try_kills(tmp_path, 3, run) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("run", [run, run_in_groups, run_with_sums])
def test_killed_at_many_places(tmp_path, run):
    assert try_kills(tmp_path, 60, run) >= 55


def test_a_look_at_what_a_killed_file_shows_leaves_its_log_as_it_was(tmp_path):
    """As root, SQLite changes the owner of a log that it opens: a restart a minute later would be refused."""
    path = tmp_path / "s.db"
    if os.fork() == 0:
        stream = board(path, key=KEY)
        stream.release(0)
        os._exit(0)
    os.wait()
    before = {file.name: file.stat().st_ctime_ns for file in tmp_path.iterdir()}
    assert "s.db-wal" in before
    shown = Store.shown(path, MECHANISM)
    assert {file.name: file.stat().st_ctime_ns for file in tmp_path.iterdir()} == before
    with board(path, key=KEY) as stream:
        assert stream.step == 1 and shown == stream.mechanism.to_json()
