"""The journal of releases: what it takes, what it holds a run to, and what it recognises as not its file."""

import contextlib
import dataclasses
import hashlib
import hmac
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import GCM
from hypothesis import given, settings
from hypothesis import strategies as st

from anechoic.errors import AnechoicError, CheckpointError, GuaranteeError, MismatchError, ReplayError
from anechoic.runs import Journal, conflicts, digest_key_of, state_file
from anechoic.runs.digests import digest_of
from anechoic.runs.file_lock import LockedFile
from anechoic.runs.journal import read_journal
from anechoic.runs.release_chain import ReleaseChain

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
PRINT = "f" * 64
SECRET = digest_key_of(KEY)
LONG_AGO = 10**9


def a_digest(word):
    return hashlib.sha256(str(word).encode()).hexdigest()


def opened(path, position=0, *, key=KEY, fingerprint=PRINT, **how):
    return Journal.open(path, position=position, key=key, fingerprint=fingerprint, **how)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.journal"


@pytest.fixture
def long_ago(monkeypatch):
    """A clock that stands still, until it is called."""
    monkeypatch.setattr(state_file.time, "time", lambda: LONG_AGO)
    return monkeypatch.undo


def filled(path, releases=5, first=0):
    """A closed journal of some releases, and how far it was."""
    book = opened(path, first)
    for t in range(first, first + releases):
        book.record(t, a_digest(t))
    mark = book.mark()
    book.close()
    return mark


def killed(path, releases=3):
    """A journal whose process was killed after so many releases: the last of them are in its log."""
    child = os.fork()
    if not child:
        book = opened(path)
        for t in range(releases):
            book.record(t, a_digest(t))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    return path.with_name(f"{path.name}-wal")


def edited(path, *statements):
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        for statement, *values in statements:
            assert database.execute(statement, values).rowcount


def test_releases_are_on_disk_before_record_returns(path):
    book = opened(path, 3)
    for t in range(3, 7):
        book.record(t, a_digest(t))
        found = read_journal(path)
        assert (found.first, found.end, found.digests[-1]) == (3, t + 1, a_digest(t))


def test_repeated_releases_must_be_the_same(path):
    mark = filled(path, 5)
    book = opened(path, 2, mark=mark)
    book.record(2, a_digest(2))
    with pytest.raises(ReplayError, match="release 3 was made before and would now be another one"):
        book.record(3, a_digest("changed"))
    book.record(3, a_digest(3))
    book.record(4, a_digest(4))
    book.record(5, a_digest(5))
    assert read_journal(path).digests == tuple(a_digest(t) for t in range(6))


def test_releases_come_in_order(path):
    book = opened(path, 2)
    for position in (1, 3):
        with pytest.raises(ReplayError, match=f"would make release {position}"):
            book.record(position, a_digest(0))


def test_a_worker_that_outlives_a_killed_run_does_not_hold_its_journal(path):
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        book = opened(path)
        book.record(0, a_digest(0))
        worker = os.fork()
        if not worker:
            signal.pause()
        os.write(writer, worker.to_bytes(4, "little"))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    worker = int.from_bytes(os.read(reader, 4), "little")
    try:
        assert opened(path, 1).end == 1
    finally:
        os.kill(worker, signal.SIGKILL)


def test_two_engines_of_one_process_share_it(path):
    one, other = opened(path), opened(path)
    one.record(0, a_digest(0))
    with pytest.raises(ReplayError):
        other.record(0, a_digest("other"))
    assert one is other
    with pytest.raises(MismatchError, match="another run: fingerprint differs"):
        opened(path, fingerprint="0" * 64)


def test_a_refused_second_opening_leaves_the_locks_of_the_first(path):
    """Whoever opens and closes a file ends all locks of SQLite that its process has on it."""
    book = opened(path)
    book.record(0, a_digest(0))
    with pytest.raises(GuaranteeError, match="open in this process already"):
        LockedFile(path)
    read_journal(path)
    with pytest.raises(MismatchError):
        opened(path, fingerprint="0" * 64)
    code = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM meta').fetchall()"
    subprocess.run([sys.executable, "-I", "-c", code, str(path)], check=True)
    assert path.with_name(f"{path.name}-wal").stat().st_size  # nobody else was the last to close the file
    book.record(1, a_digest(1))
    assert read_journal(path).end == 2


def test_a_commit_cut_short_is_no_release(path, tmp_path):
    log, ends, mark, whole = killed(path), [], None, path
    for cut in range(0, log.stat().st_size, 1000):
        (tmp_path / str(cut)).mkdir()
        for file in (whole, log):
            shutil.copy(file, tmp_path / str(cut))
        path = tmp_path / str(cut) / path.name
        os.truncate(path.with_name(log.name), log.stat().st_size - cut)
        found = read_journal(path)
        ends.append(found.end)
        assert found.digests == tuple(a_digest(t) for t in range(found.end))
        if not cut:
            mark = opened(path, 3, adopt=True).mark()
        if found.end == 2:
            break
    assert set(ends) == {2, 3}
    with pytest.raises(CheckpointError, match="was cut or put back"):
        opened(path, 2, mark=mark, adopt=True)  # the checkpoint was written after the commit was whole
    book = opened(path, 2, adopt=True)
    book.record(2, a_digest("anything"))
    assert read_journal(path).digests[2] == a_digest("anything")


def test_a_file_that_was_only_created_is_begun_again(path):
    path.touch()
    opened(path, 4).close()
    assert read_journal(path).first == 4
    path.write_bytes(b"")
    mark = dataclasses.replace(filled(path.with_name("other"), 0), end=4)
    with pytest.raises(CheckpointError, match=r"is missing: .*PrivacyEngine\.charge"):
        opened(path, 4, mark=mark)  # a checkpoint knew one
    sqlite3.connect(path).execute("PRAGMA journal_mode=WAL").connection.close()
    assert path.stat().st_size
    with pytest.raises(CheckpointError, match="is missing"):
        opened(path, 4, mark=mark)


@given(st.data())
@settings(deadline=None, max_examples=40)
def test_whatever_is_changed_is_seen(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("whole") / "run.journal"
    filled(path)
    before, content = read_journal(path), bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        opened(path, 5).close()
        assert read_journal(path) == before  # it was no part of the content
    except AnechoicError:
        return


RELEASES = "SELECT step, time, row FROM releases ORDER BY step"


def relinked(path):
    """The public end of the chain of what is there now, which anybody can compute."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        chain = ReleaseChain(Journal, path, dict(database.execute("SELECT name, value FROM meta")))
        for _, when, row in database.execute(RELEASES):
            chain.add(when, row)
    return chain.link


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM releases WHERE step = 4",
        "DELETE FROM releases WHERE step = 1",
        "DELETE FROM releases",
        "UPDATE releases SET row = zeroblob(32) WHERE step = 2",
        "UPDATE releases AS r SET row = (SELECT row FROM releases WHERE step = 7 - r.step) WHERE step > 2",
        "UPDATE meta SET value = '1' WHERE name = 'first'",
        "INSERT INTO releases VALUES (5, 'null', zeroblob(32))",
    ],
)
def test_releases_that_are_left_out_swapped_or_added_without_the_key_are_seen(path, statement):
    filled(path)
    edited(path, (statement,))
    with pytest.raises(CheckpointError, match="missing|damaged"):
        read_journal(path)
    with pytest.raises(CheckpointError, match="missing|damaged"):
        opened(path, 4)
    edited(path, ("UPDATE meta SET value = ? WHERE name = 'link'", relinked(path)))
    with pytest.raises(CheckpointError, match="missing|damaged"):
        opened(path, 4)


# Which file it is.


def test_a_shorter_journal_is_refused(path):
    filled(path, 3)
    old = path.read_bytes()
    book = opened(path, 3)
    book.record(3, a_digest(3))
    mark = book.mark()
    book.close()
    path.write_bytes(old)
    for end in (mark.end, -1):
        with pytest.raises(CheckpointError, match="was cut or put back"):
            opened(path, 3, mark=dataclasses.replace(mark, end=end), adopt=True)


def test_another_copy_that_went_on_by_itself_is_refused(path, tmp_path):
    filled(path, 3)
    copy = tmp_path / "copy.journal"
    shutil.copy(path, copy)
    ours, theirs = opened(path, 3), opened(copy, 3, adopt=True)
    ours.record(3, a_digest("ours"))
    theirs.record(3, a_digest("theirs"))
    mark = ours.mark()
    assert conflicts(path, copy) == [3]
    ours.close(), theirs.close()
    with pytest.raises(ReplayError, match="another copy of this run went on by itself"):
        opened(copy, 3, mark=mark, adopt=True)


def test_a_copied_journal_is_refused_until_it_is_adopted(path, tmp_path):
    mark = filled(path)
    copy = tmp_path / "copy.journal"
    shutil.copy2(path, copy)
    with pytest.raises(ReplayError, match="is another file than the one that the training run wrote"):
        opened(copy, 5, mark=mark)
    for refused in (dataclasses.replace(mark, head="0" * 64), dataclasses.replace(mark, end=6)):
        with pytest.raises(AnechoicError):
            opened(copy, 5, mark=refused, adopt=True)
    with pytest.raises(ReplayError, match="is another file"):  # what was refused was not adopted
        opened(copy, 5, mark=mark)
    opened(copy, 5, mark=mark, adopt=True).close()
    opened(copy, 5, mark=mark).close()  # from now on it is the one
    assert conflicts(path, copy) == []


def test_a_journal_without_its_log_is_refused(path):
    log = killed(path)
    content = log.read_bytes()
    log.unlink()
    with pytest.raises(CheckpointError, match="was not closed, and its log .* is missing"):
        opened(path, 0)
    log.write_bytes(content)
    with pytest.raises(MismatchError):
        opened(path, fingerprint="0" * 64)  # who is refused leaves the log
    assert opened(path, 3).end == 3


def test_a_journal_that_was_put_back_in_place_is_refused(path, long_ago):
    mark = filled(path)
    long_ago()
    with pytest.raises(ReplayError, match=r"was changed \d+ s after its last commit"):
        opened(path, 5, mark=mark)
    opened(path, 5, mark=mark, adopt=True).close()
    opened(path, 5, mark=mark).close()


def test_times_are_kept_to_the_minute(path):
    log = killed(path)
    content = path.read_bytes() + log.read_bytes()
    now = int(time.time())
    seen = {n for n in range(now - 300, now + 1) if str(n).encode() in content}
    assert seen and all(n % 60 == 0 for n in seen)


def test_a_run_that_ends_long_after_its_last_release_changed_its_file_itself(path, monkeypatch):
    book = opened(path)
    monkeypatch.setattr(state_file.time, "time", lambda: LONG_AGO)
    book.record(0, a_digest(0))
    monkeypatch.undo()
    book.close()
    assert opened(path, 1).end == 1


def test_a_journal_of_another_run_or_mechanism_is_refused(path):
    filled(path)
    with pytest.raises(MismatchError, match="another training run: run differs"):
        opened(path, 5, key=OTHER)
    with pytest.raises(MismatchError, match="another training run: fingerprint differs"):
        opened(path, 5, fingerprint="0" * 64)


def test_a_full_disk_stops_the_run(path):
    book = opened(path)
    book._database.run("PRAGMA max_page_count = 1")
    with pytest.raises(CheckpointError, match="full: make room on the disk"):
        for t in range(400):
            book.record(t, a_digest(t))
    with pytest.raises(GuaranteeError, match="failed half-way.*go on from the last checkpoint"):
        book.record(t, a_digest(t))
    book.close()
    assert opened(path, t).end == t > 20


def test_a_journal_that_is_carried_to_another_folder_is_the_same(path, tmp_path):
    book = opened(path)
    book.record(0, a_digest(0))
    folders = [tmp_path / "one", tmp_path / "two"]
    for t, folder in enumerate(folders, 1):
        folder.mkdir()
        mark = book.mark()
        book = opened(book.carry(folder), t, mark=mark)
        book = opened(book.carry(folder), t, mark=mark)
        assert book.path == folder / path.name and opened(path, t) is book
        book.record(t, a_digest(t))
    mark = book.mark()
    book.close()
    assert opened(path, 3, mark=mark).path == folders[1] / path.name
    opened(path, 3).close()
    tmp_path.rename(tmp_path.with_name("elsewhere"))
    folders = [tmp_path.with_name("elsewhere") / folder.name for folder in folders]
    assert opened(folders[0].parent / path.name, 3).path == folders[1] / path.name  # links go along
    (folders[0] / path.name).unlink()
    assert os.listdir(folders[0]) == []
    assert opened(folders[1] / path.name, 3, mark=mark).end == 3


@pytest.mark.parametrize("call", ["rename", "symlink"])
def test_without_links_a_journal_stays_where_it_is(path, tmp_path, monkeypatch, call):
    def none(*_):
        raise OSError(1, "no links here")

    book = opened(path)
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(os, call, none)
    assert book.carry(tmp_path / "other") == path
    assert os.listdir(tmp_path / "other") == [] and os.listdir(path.parent).count(path.name) == 1
    assert opened(path).end == 0


def test_another_file_of_the_name_is_not_taken(path, tmp_path):
    book = opened(path)
    other = tmp_path / "other"
    other.mkdir()
    (other / path.name).write_bytes(b"")
    with pytest.raises(MismatchError, match="is not the journal of this run"):
        book.carry(other)
    book.record(0, a_digest(0))


def test_group_commit_waits_for_the_disk_every_so_often(path):
    book = opened(path, sync_every=4)
    waits = []
    for t in range(10):
        book.record(t, a_digest(t))
        waits.append(book._database.run("PRAGMA synchronous")[0][0] == 2)  # at every commit, as for 2 alone
    assert [t for t, waited in enumerate(waits) if waited] == [3, 7]
    assert read_journal(path).end == 10  # a killed process loses none
    book.mark()
    assert book._database.run("PRAGMA synchronous") == [(2,)]
    every = opened(path.with_name("every"))
    assert every._database.run("PRAGMA synchronous") == [(2,)]


def test_a_folder_where_nobody_can_write_can_be_read(path, monkeypatch):
    filled(path)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert read_journal(path).end == 5
    assert sorted(os.listdir(path.parent)) == [path.name, f"{path.name}.lock"]


def test_conflicts_of_different_runs_are_not_compared(tmp_path):
    filled(tmp_path / "one")
    opened(tmp_path / "two", key=OTHER).close()
    with pytest.raises(ValueError, match="belong to different runs"):
        conflicts(tmp_path / "one", tmp_path / "two")


def test_digests_tell_parts_and_order_apart():
    words = [b"ab", b"c"], [b"a", b"bc"], [b"abc"], [b"c", b"ab"], [], [b""], [b"ab", b"c", b""]
    found = [digest_of(parts, SECRET) for parts in words]
    assert len(set(found)) == len(found)
    assert found[:4] == [
        digest_of((np.frombuffer(p, np.uint8) for p in parts), SECRET) for parts in words[:4]
    ]


def test_digests_are_hmacs_of_tags_and_see_every_bit(path):
    large = np.random.default_rng(0).integers(256, size=2**22 + 3, dtype=np.uint8)
    tags = [Cipher(AES(SECRET[:32]), GCM(place.to_bytes(12, "little"))).encryptor() for place in range(2)]
    for tag, block in zip(tags, (large[: 2**22], large[2**22 :]), strict=True):
        tag.authenticate_additional_data(block.tobytes())
        tag.finalize()
    text = len(large).to_bytes(8, "little") + tags[0].tag + tags[1].tag
    expected = hmac.new(SECRET[32:], text, "sha256").hexdigest()
    assert digest_of([large], SECRET) == expected == opened(path).digest([large])
    for place in (0, 2**22 - 1, 2**22, 2**22 + 2):
        large[place] ^= 1
        assert digest_of([large], SECRET) != expected
        large[place] ^= 1
    assert digest_of([large], digest_key_of(OTHER)) != expected
    with pytest.raises(ValueError, match="64 bytes"):
        digest_of([large], SECRET[:32])


def test_nothing_in_it_is_secret(path):
    filled(path)
    content = path.read_bytes()
    assert KEY.hex().encode() not in content and KEY not in content
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert "key" not in dict(database.execute("SELECT name, value FROM meta"))
    assert oct(path.stat().st_mode & 0o777) == "0o600"
