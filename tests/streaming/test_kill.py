"""kill -9 between any two instructions: the state is that of before or after, and no row is used twice."""

import os
import shutil
import signal
import subprocess

import pytest

import anechoic.runs
import anechoic.streaming
from anechoic.runs.settings_check import MECHANISM
from anechoic.streaming.accumulator import Accumulator
from anechoic.streaming.store import Store
from tests.runs.kills import folders, killed_at, lines_of_a_run
from tests.streaming.test_store import KEY, board, feed

ROOM = folders(anechoic.streaming, anechoic.runs)
STEPS = range(4)


def run(path, published):
    """What an operator's program does: go on where the file stands, and append what is released to a log."""
    with board(path, key=KEY) as stream:
        for t in STEPS[stream.step :]:
            stream.update({"x": [0.5, 0.1 * t]}, unit_ids=[t, "a"], batch_id=f"{t}")
            stream.update({"x": [-0.25]}, unit_ids=[f"u{t}"], batch_id=f"{t} more")
            write(published, t, stream.release(t).to_bytes())


def run_in_groups(path, published):
    """The same, two steps in a commit, whose noise is drawn ahead; known batches are fed again."""
    with board(path, key=KEY) as stream:
        for group in (STEPS[:2], STEPS[2:]):
            made = stream.steps(**batches_of(group), batch_ids=[f"{t}" for t in group])
            for t, release in zip(group, made, strict=True):
                write(published, t, release.to_bytes())


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
                write(published, stream.step, stream.release(stream.step).to_bytes())


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
    grouped = [release.to_bytes() for release in board(key=KEY).steps(**batches_of(STEPS))]
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
            assert [release.to_bytes() for release in stream.releases()] == expected
    return deaths


@pytest.mark.parametrize("run", [run_in_groups, run_with_sums])
def test_killed_at_some_places(tmp_path, run):
    assert try_kills(tmp_path, 3, run) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("run", [run, run_in_groups, run_with_sums])
def test_killed_at_many_places(tmp_path, run):
    assert try_kills(tmp_path, 60, run) >= 55


def released_and_left(path):
    """A release by a process that ends without closing its stream; its log, and what that was before."""
    log, before = path.with_name(f"{path.name}-wal"), path.with_suffix(".before")
    child = os.fork()
    if child == 0:
        stream = board(path, key=KEY)
        stream.update({"x": [0.5]}, unit_ids=["a"], batch_id="first")
        before.write_bytes(log.read_bytes())
        stream.release(0)
        os._exit(0)
    os.waitpid(child, 0)
    return log, before.read_bytes()


@pytest.mark.slow
def test_the_power_fails_between_write_and_sync(tmp_path):
    """Of what no sync has put on disk any part may be there: it is the state before, or that after."""
    alone = board(key=KEY)
    alone.update({"x": [0.5]}, unit_ids=["a"])
    expected, met = alone.release(0).to_bytes(), []
    for number in range(13):
        log, before = released_and_left(tmp_path / f"{number}.db")
        after = log.read_bytes()
        before = before.ljust(len(after), b"\0")
        changed = [place for place, (one, two) in enumerate(zip(before, after, strict=True)) if one != two]
        cut = changed[number * (len(changed) - 1) // 12] + (number == 12)
        with open(log, "r+b") as file:
            file.seek(cut)
            file.write(before[cut:])
        with board(tmp_path / f"{number}.db", key=KEY) as stream:
            met.append(stream.step)
            assert not stream.update({"x": [0.5]}, unit_ids=["a"], batch_id="first")
            made = stream.get() if stream.step else stream.release(0)
            assert made.to_bytes() == expected
    assert met == [0] * 12 + [1]


def traced(run, given, *how):
    """Call `run` in a child process under strace; the child's status."""
    ready, go = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.read(ready, 1)
            run(*given)
        finally:
            os._exit(0)
    command = ["strace", "-p", f"{child}", *how]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        attached = "attached" in tracer.stderr.readline()
        os.write(go, b".")
        status = os.waitpid(child, 0)[1]
    os.close(ready)
    os.close(go)
    if not attached:
        pytest.skip("processes cannot be traced here")
    return status


def killed_at_sync(run, number, *given):
    """Call `run` in a child process that dies as it asks for so many-th sync, whose bytes it has written."""
    how = ["-o", os.devnull, "-e", "trace=fdatasync", "-e", f"inject=fdatasync:signal=KILL:when={number}"]
    return traced(run, given, *how) == signal.SIGKILL


def commit(path, count):
    with board(path, key=KEY) as stream:
        for i in range(count):
            stream.update({"x": [0.5]}, unit_ids=[i], batch_id=f"{i}")
            stream.add_sums(Accumulator(stream).add({"x": [0.5]}, [f"u{i}"]), batch_id=("q", i))


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.slow
def test_a_commit_waits_once_for_the_disk(tmp_path):
    waits = []
    for count in (2, 12):
        log = tmp_path / f"{count}.log"
        assert (
            traced(commit, (tmp_path / f"{count}.db", count), "-o", log, "-e", "trace=fsync,fdatasync") == 0
        )
        waits.append(log.read_text().count("sync("))
    assert waits[1] - waits[0] == 20  # of twice ten commits


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize("run", [run, run_with_sums])
@pytest.mark.slow
def test_killed_between_write_and_sync(tmp_path, run):
    whole, deaths = feed(board(key=KEY), STEPS), 0
    for number in range(1, 30, 2):
        path, published = tmp_path / f"{number}.db", tmp_path / f"{number}.log"
        deaths += killed_at_sync(run, number, path, published)
        run(path, published)
        assert all(made == whole[step] for step, made in log_of(published))
        with board(path, key=KEY) as stream:
            assert [release.to_bytes() for release in stream.releases()] == whole
    assert deaths >= 8


@pytest.mark.usefixtures("salted")
@pytest.mark.slow
def test_killed_with_noise_of_every_opening_no_step_is_shown_in_two_ways(tmp_path):
    """What was drawn and lost is drawn anew with other noise: nobody has seen it."""
    total = lines_of_a_run(run, tmp_path / "all.db", tmp_path / "all.log", rooms=ROOM)
    for number in range(3):
        path, published = tmp_path / f"{number}.db", tmp_path / f"{number}.log"
        killed_at(run, 1 + (2 * number + 1) * total // 6, path, published, rooms=ROOM)
        run(path, published)
        with board(path, key=KEY) as stream:
            kept = {release.step: release.to_bytes() for release in stream.releases()}
        assert list(kept) == list(STEPS)
        assert all(made == kept[step] for step, made in log_of(published))


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
