"""The state file: what is on disk goes on bit for bit, and what could use noise twice is refused."""

import os
import shutil
import sqlite3
import stat
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from anechoic import streaming
from anechoic.errors import CheckpointError, GuaranteeError, MismatchError, ReplayError
from anechoic.participation import MinSep
from anechoic.sampling import External
from anechoic.streaming.mechanisms import planned_mechanism
from anechoic.streaming.store import Store
from anechoic.streaming.stream_state import InMemory
from tests.streaming.released import bytes_of

KEY = bytes(range(32))


@cache  # and not where tests are collected, in every process
def promise():
    over, promised = streaming.Running(), MinSep(2, 3)
    mechanism = planned_mechanism(
        over=over, horizon=12, participation=promised, epsilon=1.0, delta=1e-6, dimension=3
    )
    return {"mechanism": mechanism, "participation": promised}


def board(path=None, **options):
    statistics = {"n": streaming.Count("x"), "m": streaming.Mean(-1, 1, "x")}
    return streaming.Stream(statistics, state=path, **{**promise(), **options})


def feed(stream, steps):
    """Two updates and a release for each step; the bytes released."""
    found = []
    for t in steps:
        stream.update({"x": [0.5, 0.1 * t]}, unit_ids=[t, "a"], batch_id=f"{t}")
        stream.update({"x": [-0.25]}, unit_ids=[f"u{t}"])
        found.append(bytes_of(stream.release(t)))
    return found


@pytest.fixture
def whole():
    """What an uninterrupted run releases."""
    return feed(board(key=KEY), range(12))


@pytest.mark.parametrize("over", [streaming.Running(), streaming.SlidingWindow(3)])
@pytest.mark.slow
def test_opened_again_after_every_call_it_goes_on_bit_for_bit(tmp_path, over):
    expected, path = feed(board(key=KEY, over=over), range(6)), tmp_path / "run.db"
    found = []
    for t in range(6):
        for units, x, name in [([t, "a"], [0.5, 0.1 * t], f"{t}"), ([f"u{t}"], [-0.25], None)]:
            with board(path, key=KEY, over=over) as stream:
                stream.update({"x": x}, unit_ids=units, batch_id=name)
        with board(path, key=KEY, over=over) as stream:
            found.append(bytes_of(stream.release(t)))
        with board(path, key=KEY, over=over) as stream:
            assert bytes_of(stream.get()) == found[-1] and stream.step == t + 1
    assert found == expected
    with board(path, key=KEY, over=over) as stream:
        assert [*map(bytes_of, stream.releases())] == expected


def test_sums_of_the_open_step_the_total_and_later_steps_come_back(tmp_path):
    options = {"epsilon": 1.0, "horizon": 12, "state": tmp_path / "s"}
    with streaming.Stream(streaming.Count(), **options) as stream:
        stream.update(3), stream.release(5), stream.update(2)
        later = [streaming.Accumulator(stream, step).add(step) for step in (3, 7)]
        stream.add_sums(later, batch_id="later")
        before = stream._stream_state
    with streaming.Stream(streaming.Count(), **options) as stream:
        after = stream._stream_state
    assert before.open.any() and sorted(after.ahead) == [3, 7]
    assert all(np.array_equal(after.ahead[step], before.ahead[step]) for step in (3, 7))
    assert np.array_equal(after.open, before.open) and np.array_equal(after.total, before.total)
    assert (after.step, after.time, after.counts) == (1, 5, before.counts)


def test_a_plan_made_again_with_other_digits_goes_on_with_the_mechanism_of_the_run(tmp_path):
    import anechoic as an

    def planned(second):
        strategy = an.strategies.BandedToeplitz(9, np.array([1.0, second]))
        sampling = External(an.participation.Single(), 1, steps=9)
        return an.calibrate(strategy, sampling=sampling, epsilon=1.0, delta=1e-6)

    begun = planned(0.5)
    expected = [*map(bytes_of, streaming.Stream(streaming.Count(), mechanism=begun, key=KEY).steps(range(9)))]
    found = []
    for t in range(9):
        plan = planned(0.5 + t * 1e-6)
        with streaming.Stream(streaming.Count(), mechanism=plan, key=KEY, state=tmp_path / "s") as stream:
            assert stream.mechanism == begun
            found += [*map(bytes_of, stream.steps([t]))]
    assert found == expected


def test_a_batch_that_was_released_gives_the_stored_release(tmp_path):
    with board(tmp_path / "s") as stream:
        first = stream.steps([{"x": [1.0]}], unit_ids=[["a"]], batch_ids=["one"])
    with board(tmp_path / "s") as stream:
        again = stream.steps([{"x": [1.0]}], unit_ids=[["a"]], batch_ids=["one"])
        assert bytes_of(again[0]) == bytes_of(first[0]) and stream.step == 1
        assert not stream.update({"x": [1.0]}, unit_ids=["a"], batch_id="one")


def test_the_file_is_for_its_owner_and_names_no_unit(tmp_path):
    path = tmp_path / "s"
    with board(path, key=KEY) as stream:
        stream.update({"x": [1.0]}, unit_ids=["ann.lovelace"])
        for name in os.listdir(tmp_path):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600, name
        stream.release()
    content = path.read_bytes()
    assert b"lovelace" not in content and KEY not in content
    with board(tmp_path / "t") as stream:
        assert stream._state.key in (tmp_path / "t").read_bytes()


@pytest.mark.usefixtures("salted")
def test_two_files_with_one_key_have_noise_of_their_own(tmp_path):
    found = []
    for name in "st":
        with board(tmp_path / name, key=KEY) as stream:
            found.append(stream.release()["n"].value)
    assert found[0] != found[1]


def test_streams_of_other_statistics_with_one_key_have_noise_of_their_own():
    noise = [
        streaming.Stream({name: streaming.Count()}, key=KEY, epsilon=1.0, horizon=4).release().estimate
        for name in ("a", "b")
    ]
    assert noise[0] != noise[1]


def test_releases_are_read_while_the_stream_runs(tmp_path):
    path = tmp_path / "a file #1?.db"
    with board(path) as stream:
        expected = feed(stream, range(3))
        assert [*map(bytes_of, streaming.read_releases(path))] == expected
        assert [release.step for release in streaming.read_releases(path, since=2)] == [2]
        stream.release()
    assert len(streaming.read_releases(path)) == 4
    with pytest.raises(CheckpointError, match="cannot be read"):
        streaming.read_releases(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_writer_behind_the_lock_stops_the_other(tmp_path):
    stream = board(tmp_path / "s", key=KEY)
    other = sqlite3.connect(tmp_path / "s")
    other.execute("UPDATE meta SET value = x'00' WHERE name = 'tag'")
    other.commit()
    other.close()
    with pytest.raises(GuaranteeError, match="changed by somebody else"):
        stream.release()
    with pytest.raises(GuaranteeError, match="open the file again"):
        stream.update({"x": [0.0]}, unit_ids=[1])


def test_every_name_of_the_file_is_the_same_file(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "s")
    with board(tmp_path / "link") as stream:
        stream.release()
        with pytest.raises(GuaranteeError, match="open in this process"):
            board(tmp_path / "s")
    with board(tmp_path / "s") as stream:
        assert stream.step == 1
        os.rename(tmp_path / "s", tmp_path / "u")
        with pytest.raises(GuaranteeError, match="moved, removed or replaced"):
            stream.release()
        shutil.copy(tmp_path / "u", tmp_path / "s")
        with pytest.raises(GuaranteeError, match="moved, removed or replaced"):
            stream.release()


def test_a_stream_that_nobody_closes_is_closed(tmp_path):
    board(tmp_path / "s", key=KEY).release()
    assert set(os.listdir(tmp_path)) == {"s", "s.lock"}
    with board(tmp_path / "s", key=KEY) as stream:
        assert stream.step == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mechanism": None, "epsilon": 2.0, "horizon": 12}, "mechanism"),
        ({"over": streaming.SlidingWindow(4)}, "over"),
        ({"per_step": 2}, "per_step"),
        ({"weights": {"n": 2.0, "m": 1.0}}, "weights"),
        ({"level": 0.9}, "level"),
    ],
)
@pytest.mark.few(3)
def test_another_stream_is_refused(tmp_path, change, words):
    board(tmp_path / "s").close()
    with pytest.raises(MismatchError, match=f"another stream: .*{words}.* differ"):
        board(tmp_path / "s", **change)


def test_other_statistics_are_refused(tmp_path):
    board(tmp_path / "s").close()
    with pytest.raises(MismatchError, match="statistics"):
        streaming.Stream({"n": streaming.Count("x")}, state=tmp_path / "s", **promise())


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE releases SET row = x'00' WHERE step = 0", "released.* damaged"),
        ("UPDATE releases SET time = '7' WHERE step = 0", "released.* damaged"),
        ("DELETE FROM releases WHERE step = 1", "release 1 .* missing"),
        ("DELETE FROM releases WHERE step = 2", "last ones are missing"),
        ("UPDATE state SET content = zeroblob(length(content))", "parts of two states"),
        ("DELETE FROM state", "parts of two states"),
        ("UPDATE units SET content = x'00'", "parts of two states"),
        ("DELETE FROM units", "parts of two states"),
        ("DELETE FROM batches", "parts of two states"),
        ("DELETE FROM openings", "damaged, or holds parts of two states"),
        ("UPDATE openings SET salt = x'00'", "damaged, or holds parts of two states"),
        ("DELETE FROM meta WHERE name = 'link'", "released.* damaged"),
        ("UPDATE meta SET value = '{\"n\": []}' WHERE name = 'labels'", "released.* damaged"),
        ("UPDATE meta SET value = '{}' WHERE name = 'mechanism'", "released.* damaged"),
        ("UPDATE meta SET value = x'00' WHERE name = 'salt'", "damaged, or holds parts of two states"),
        ("UPDATE meta SET value = 'x' WHERE name = 'place'", "copied or moved"),
        ("UPDATE meta SET value = '2' WHERE name = 'format'", "format 2, .* reads format 1 alone"),
        ("DROP TABLE releases", "damaged, or no such file"),
    ],
)
@pytest.mark.few(9)
def test_damage_is_seen(tmp_path, statement, words):
    with board(tmp_path / "s") as stream:
        feed(stream, range(3))
    database = sqlite3.connect(tmp_path / "s")
    database.execute(statement)
    database.commit()
    database.close()
    with pytest.raises((CheckpointError, MismatchError, ReplayError), match=words):
        board(tmp_path / "s")


def test_something_else_is_refused(tmp_path):
    (tmp_path / "s").write_bytes(b"once upon a time, " * 1000)
    with pytest.raises(CheckpointError, match="no such file"):
        board(tmp_path / "s")
    database = sqlite3.connect(tmp_path / "t")
    database.execute("CREATE TABLE meta (name, value)")
    database.commit()
    database.close()
    with pytest.raises(CheckpointError, match="none of a stream"):
        board(tmp_path / "t")


def test_a_failed_commit_publishes_nothing_and_stops_the_stream(tmp_path, whole, monkeypatch):
    path = tmp_path / "s"
    with board(path, key=KEY) as stream:
        feed(stream, range(4))
        with monkeypatch.context() as patch:
            patch.setattr(Store, "save", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
            with pytest.raises(OSError, match="disk full"):
                stream.release(4)
        with pytest.raises(GuaranteeError, match="open the file again"):
            stream.release(4)
    with board(path, key=KEY) as stream:
        assert stream.step == 4 and feed(stream, range(4, 12)) == whole[4:]


def test_a_bad_batch_in_a_group_changes_nothing(tmp_path, whole):
    with board(tmp_path / "s", key=KEY) as stream:
        with pytest.raises(ValueError, match="real numbers"):
            stream.steps([{"x": [0.5]}, {"x": np.array(["?"])}], unit_ids=[["a"], ["b"]])
        with pytest.raises(ValueError, match="one entry a record"):
            stream.steps([{"x": [0.5]}, {"x": [0.5]}], unit_ids=[["a"], "b"])
        assert feed(stream, range(12)) == whole


def test_memory_and_file_are_one_interface():
    public = {name for name in vars(InMemory) if not name.startswith("_")}
    assert public <= set(dir(Store))


def test_a_commit_that_may_have_been_written_is_not_to_be_repeated(tmp_path):
    """Ctrl-C may come when all is on disk: who is told to repeat the batch would count it twice."""
    stream = streaming.Stream(streaming.Count(), epsilon=1.0, delta=1e-6, horizon=4, state=tmp_path / "s.db")
    database = stream._state._database

    class Interrupted:
        version = database.version

        def run(self, text, *arguments):
            found = database.run(text, *arguments)
            if text == "COMMIT":
                raise KeyboardInterrupt
            return found

    stream._state._database = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        stream.update([1])
    stream._state._database = database
    with pytest.raises(GuaranteeError, match="only under the batch_id"):
        stream.update([1])


@pytest.mark.parametrize("kept", [True, False])
def test_after_ctrl_c_half_way_that_is_what_is_said(tmp_path, monkeypatch, kept):
    """Not that time went back, nor that a batch waits for release(): memory is ahead of what counts."""
    promise = {"epsilon": 1.0, "horizon": 8, "state": tmp_path / "s" if kept else None}
    stream = streaming.Stream(streaming.Count(), **promise)
    group = {"batches": [1, 2], "times": [0, 1], "batch_ids": ["a", "b"]}
    calls = lambda: stream.steps(**group), lambda: stream.release(0), lambda: stream.update(1, batch_id="b")
    with monkeypatch.context() as patch:
        patch.setattr(stream, "_save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stream.steps(**group)
    for again in calls:
        with pytest.raises(GuaranteeError, match="failed half-way"):
            again()
    if kept:
        stream.close()
        with streaming.Stream(streaming.Count(), **promise) as stream:
            assert [release.step for release in stream.steps(**group)] == [0, 1]


def test_after_ctrl_c_behind_the_commit_nothing_goes_on(tmp_path):
    promise = {"epsilon": 1.0, "horizon": 8, "state": tmp_path / "s"}
    stream = streaming.Stream(streaming.Count(), **promise)
    stream._state.counter = SimpleNamespace(done=interrupted)
    with pytest.raises(KeyboardInterrupt):
        stream.steps([1], batch_ids=["a"])
    assert stream.step == 0
    for again in (lambda: stream.steps([1], batch_ids=["a"]), stream.release):
        with pytest.raises(GuaranteeError, match="was written, what goes with it may not be"):
            again()
    stream.close()
    with streaming.Stream(streaming.Count(), **promise) as stream:
        assert [release.step for release in stream.steps([1], batch_ids=["a"])] == [0]


def interrupted(*_):
    raise KeyboardInterrupt


def test_interrupted_when_a_change_has_just_begun(tmp_path, monkeypatch):
    stream = board(tmp_path / "s", key=KEY)
    feed(stream, range(2))
    run = stream._state._database.run

    def interrupted(statement, values=()):
        run(statement, values)
        if statement.startswith("BEGIN"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stream._state._database, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stream.release()
    with pytest.raises(GuaranteeError, match="open the file again"):
        stream.release()
    stream.close()
    with board(tmp_path / "s", key=KEY) as again:
        assert again.step == 2


def count_at(path, **options):
    return streaming.Stream(streaming.Count(), epsilon=1.0, horizon=40, state=path, **options)


@pytest.mark.slow
def test_a_reader_that_holds_a_transaction_does_not_stop_the_stream(tmp_path):
    """As the sqlite3 shell, a backup, or a reader that was stopped."""
    path = tmp_path / "s"
    with count_at(path) as stream:
        stream.release()
        reader = sqlite3.connect(path)
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM releases").fetchone() == (1,)
        for _ in range(20):
            stream.update(3)
            stream.release()
        assert reader.execute("SELECT count(*) FROM releases").fetchone() == (1,)
        assert len(streaming.read_releases(path)) == 21
    with count_at(path) as stream:  # opened again beside it
        assert stream.step == 21 and stream.release().step == 21
    reader.close()
    with count_at(path) as stream:
        assert stream.step == 22


def test_another_writer_is_said_and_waited_for(tmp_path):
    with count_at(tmp_path / "s") as stream:
        stream._state._database.run("PRAGMA busy_timeout=20")
        other = sqlite3.connect(tmp_path / "s", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(CheckpointError, match="another program is writing to it"):
            stream.release()
        other.close()
        assert stream.release().step == 0  # nothing was changed: it goes on


def test_one_wait_for_the_disk_a_commit(tmp_path):
    """The log is appended to; the file itself is written when there is much of it, and at the end."""
    with count_at(tmp_path / "s") as stream:
        before, size = (tmp_path / "s").read_bytes(), (tmp_path / "s-wal").stat().st_size
        stream.steps([1] * 3)
        assert (tmp_path / "s").read_bytes() == before and (tmp_path / "s-wal").stat().st_size >= size
