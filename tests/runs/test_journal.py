"""The journal of releases: what it takes, what it holds a run to, and what it recognises as not its file."""

import dataclasses
import hashlib
import hmac
import itertools
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import GCM
from hypothesis import given, settings
from hypothesis import strategies as st

from anechoic.errors import CheckpointError, GuaranteeError, MismatchError, ReplayError
from anechoic.runs import Journal, conflicts, digest_key_of, identity_of, journal
from anechoic.runs.journal_format import SECOND, Record, Seal, digest_of, parse, read_journal

RUN = identity_of(bytes(range(32)))
OTHER = identity_of(bytes(range(1, 33)))
PRINT = "f" * 64
SECRET = digest_key_of(bytes(range(32)))


def a_digest(word):
    return hashlib.sha256(str(word).encode()).hexdigest()


def opened(path, position=0, *, identity=RUN, fingerprint=PRINT, digest_key=SECRET, **how):
    what = {"identity": identity, "fingerprint": fingerprint, "digest_key": digest_key}
    return Journal.open(path, position=position, **what, **how)


def written(path, kind, releases, time=SECOND):
    """A journal of an earlier version in the place of `path`, which anybody can write."""
    record, content = Record(), b""
    lines = [(kind, RUN, PRINT, 0, time), ("place", path.stat().st_ino, time)]
    for fields in [*lines, *(("release", t, digest, time) for t, digest in enumerate(releases))]:
        content += record.line(*fields)
        record.take(content.splitlines(keepends=True)[-1])
    path.write_bytes(content)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.journal"


def filled(path, releases=5, first=0):
    """A closed journal of some releases, and how far it was."""
    book = opened(path, first)
    for t in range(first, first + releases):
        book.record(t, a_digest(t))
    mark = book.mark()
    book.close()
    return mark


def test_releases_are_on_disk_before_record_returns(path):
    book = opened(path, 3)
    for t in range(3, 7):
        book.record(t, a_digest(t))
        found = read_journal(path)
        assert (found.first, found.end, found.digests[-1]) == (3, t + 1, a_digest(t))
    assert not found.torn


def test_repeated_releases_must_be_the_same(path):
    mark = filled(path, 5)
    book = opened(path, 2, mark=mark)
    book.record(2, a_digest(2))
    with pytest.raises(ReplayError, match="release 3 was made before and would now be another one"):
        book.record(3, a_digest("changed"))
    book.record(3, a_digest(3))
    book.record(4, a_digest(4))
    book.record(5, a_digest(5))
    assert read_journal(path).digests == [a_digest(t) for t in range(6)]


def test_releases_come_in_order(path):
    book = opened(path, 2)
    for position in (1, 3):
        with pytest.raises(ReplayError, match=f"would make release {position}"):
            book.record(position, a_digest(0))


@pytest.mark.slow
def test_another_process_cannot_open_it_and_a_worker_does_not_hold_it(path):
    book = opened(path)
    code = f"""
        from anechoic.runs import Journal
        what = dict(identity={RUN!r}, fingerprint={PRINT!r}, digest_key={SECRET!r})
        Journal.open({str(path)!r}, position=0, **what)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "is open in another process" in refused.stderr
    child = os.fork()
    if not child:  # a data loader's worker, which outlives its parent by seconds
        signal.pause()
    try:
        book.close()
        assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_fork_cannot_record(path):
    book = opened(path)
    child = os.fork()
    if not child:
        try:
            book.record(0, a_digest(0))
        except GuaranteeError as error:
            os._exit(7 if "is a fork" in str(error) else 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    book.record(0, a_digest(0))
    assert read_journal(path).end == 1


def test_two_engines_of_one_process_share_it(path):
    one, other = opened(path), opened(path)
    one.record(0, a_digest(0))
    with pytest.raises(ReplayError):
        other.record(0, a_digest("other"))
    assert one is other


@pytest.mark.parametrize("cut", [1, 20, 60, 139])
def test_a_torn_line_is_no_release(path, cut):
    mark = filled(path, 3)
    content = path.read_bytes()
    last = content.rsplit(b"\n", 2)[1] + b"\n"
    with path.open("r+b") as file:  # as a crash leaves it: the same file
        file.truncate(len(content) - len(last) + min(cut, len(last) - 1))
    record = read_journal(path)
    assert (record.end, record.torn) == (2, True)
    with pytest.raises(CheckpointError, match="was cut or put back"):
        opened(path, 2, mark=mark)  # the checkpoint was written after the line was whole
    book = opened(path, 2)
    book.record(2, a_digest("anything"))
    assert read_journal(path).digests[2] == a_digest("anything")


def test_a_file_that_was_only_created_is_begun_again(path):
    for content in (b"", b"run 0123"):
        path.write_bytes(content)
        opened(path, 4).close()
        assert read_journal(path).first == 4
        path.unlink()


@given(st.data(), st.sampled_from(["run", "keyed", "authentic"]))
@settings(deadline=None, max_examples=60)
def test_whatever_is_changed_in_whole_lines_is_seen(data, kind):
    record, content = Record(seal=Seal(SECRET)), b""
    for fields in [(kind, RUN, PRINT, 0, SECOND), ("place", "1.2", SECOND), ("release", 0, a_digest(0), 0)]:
        line = record.line(*fields)
        assert record.take(line)
        content += line
    place = data.draw(st.integers(0, len(content) - 1))
    byte = data.draw(st.integers(0, 255))
    changed = content[:place] + bytes([byte]) + content[place + 1 :]
    if changed == content:
        return
    try:
        found = parse(changed)
    except CheckpointError:
        return
    assert found.torn and place == len(content) - 1  # without its line end the last line is torn


def test_lines_that_are_left_out_or_swapped_are_seen(path):
    filled(path, 4)
    lines = path.read_bytes().splitlines(keepends=True)
    for damaged in (lines[:2] + lines[3:], [*lines[:3], lines[4], lines[3], *lines[5:]], lines[1:]):
        with pytest.raises(CheckpointError, match="damaged or was edited"):
            parse(b"".join(damaged))


# Which file it is.


def test_a_missing_journal_is_refused(path):
    mark = filled(path)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"is missing: .*PrivacyEngine\.charge"):
        opened(path, 5, mark=mark)


def test_a_shorter_journal_is_refused(path):
    filled(path, 3)
    old = path.read_bytes()
    book = opened(path, 3)
    book.record(3, a_digest(3))
    mark = book.mark()
    book.close()
    with path.open("r+b") as file:
        file.truncate(len(old))
    for lines in (mark.lines, 0, -1):
        with pytest.raises(CheckpointError, match="was cut or put back"):
            opened(path, 3, mark=dataclasses.replace(mark, lines=lines), adopt=True)


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
    with pytest.raises(ReplayError, match="is another file than the one that the run wrote"):
        opened(copy, 5, mark=mark)
    opened(copy, 5, mark=mark, adopt=True).close()
    opened(copy, 5, mark=mark).close()  # from now on it is the one
    assert conflicts(path, copy) == []


def test_a_journal_that_was_put_back_in_place_is_refused(path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(journal.time, "time_ns", lambda: 10**18)  # long ago
        mark = filled(path)
    with pytest.raises(ReplayError, match=r"was changed \d+ s after its last line was written"):
        opened(path, 5, mark=mark)
    opened(path, 5, mark=mark, adopt=True).close()
    opened(path, 5, mark=mark).close()


def test_a_journal_that_was_cut_within_an_old_line_is_refused(path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(journal.time, "time_ns", lambda: 10**18)  # long ago
        filled(path)
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.truncate(len(content) - 200)
    assert (read_journal(path).end, read_journal(path).torn) == (3, True)
    with pytest.raises(ReplayError, match=r"was changed \d+ s after .*adopt_journal=True"):
        opened(path, 3)
    opened(path, 3, adopt=True).close()
    assert not read_journal(path).torn
    opened(path, 3).close()


# Without the run's key.


def test_a_journal_that_was_cut_and_made_fresh_without_the_key_is_refused(path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(journal.time, "time_ns", lambda: 10**18)  # long ago
        filled(path, 6)
    lines = path.read_bytes().splitlines(keepends=True)
    kept = parse(b"".join(lines[:4]))
    assert (kept.end, kept.time) == (2, 0)
    with pytest.raises(ValueError, match="under a key"):
        kept.line("place", kept.token, time.time_ns())
    forged = parse(b"".join(lines[:4]))
    forged.seal = Seal(digest_key_of(bytes(32)))  # a key, but not the run's
    for fresh in (forged.line("place", kept.token, time.time_ns()), b""):
        with path.open("r+b") as file:
            file.write(b"".join([*lines[:4], fresh]))
            file.truncate()
        with pytest.raises((CheckpointError, ReplayError), match="was edited|was changed .* s after"):
            opened(path, 2)


def test_a_journal_of_a_version_that_anybody_can_write_has_to_be_adopted(path, tmp_path):
    release = [b"what was released"]
    for kind, key in (("keyed", SECRET), ("run", None)):
        path = tmp_path / kind
        opened(path).close()
        written(path, kind, [digest_of(release, key)])
        assert (read_journal(path).end, read_journal(path).keyed) == (1, key is not None)
        with pytest.raises(ReplayError, match="anybody can write.*adopt_journal=True"):
            opened(path, 0)
        book = opened(path, 0, adopt=True)
        book.record(0, book.digest(release))
        with pytest.raises(ReplayError, match="would make release 2"):
            book.record(2, book.digest(release))
        book.record(1, book.digest(release))
        book.close()
        assert (read_journal(path).end, read_journal(path).authentic) == (2, False)


def test_without_the_key_nobody_learns_how_long_a_step_took(path, monkeypatch):
    clock = iter(SECOND * (1_700_000_000 + np.cumsum([1, 1, 5, 1, 9, 2, 1])))
    now = {}
    monkeypatch.setattr(journal.time, "time_ns", lambda: int(now.setdefault(len(now), next(clock))))
    filled(path, 5)
    seals = [line.split()[-2] for line in path.read_text().splitlines()]
    assert [len(seal) for seal in seals] == [48] * 7 == [48] * len(now)
    record = Record(seal=Seal(SECRET))
    told = [record.take(line) and record.time for line in path.read_bytes().splitlines(keepends=True)]
    assert told == list(now.values())  # the run itself knows
    hidden = [int.from_bytes(bytes.fromhex(seal)[16:], "little") for seal in seals]
    shown = [a ^ b for a, b in itertools.pairwise(hidden)]
    assert not set(shown) & {(a // SECOND) ^ (b // SECOND) for a in told for b in told}
    assert read_journal(path).time == 0


def test_times_that_anybody_can_read_are_whole_minutes(path, monkeypatch):
    monkeypatch.setattr(journal.time, "time_ns", lambda: 10**18 + 123_456_789)
    book = opened(path, digest_key=None)
    book.record(0, a_digest(0))
    assert read_journal(path).time == -(-(10**18) // (60 * SECOND)) * 60 * SECOND


def test_a_renamed_folder_is_the_same_journal(path, tmp_path):
    (tmp_path / "old").mkdir()
    mark = filled(tmp_path / "old" / path.name)
    (tmp_path / "old").rename(tmp_path / "new")
    opened(tmp_path / "new" / path.name, 5, mark=mark)


def test_a_journal_of_another_run_or_mechanism_is_refused(path):
    filled(path)
    with pytest.raises(MismatchError, match="belongs to run"):
        opened(path, 5, identity=OTHER)
    with pytest.raises(MismatchError, match="mechanism with fingerprint"):
        opened(path, 5, fingerprint="0" * 64)


def test_a_journal_that_is_deleted_under_a_run_stops_it(path):
    book = opened(path)
    book.record(0, a_digest(0))
    path.unlink()
    with pytest.raises(GuaranteeError, match="was deleted while the run goes on"):
        book.record(1, a_digest(1))


def test_a_full_disk_stops_the_run(path, monkeypatch):
    book = opened(path)
    with monkeypatch.context() as patch:
        patch.setattr(journal.os, "write", lambda handle, line: 3)
        with pytest.raises(GuaranteeError, match="could not be written"):
            book.record(0, a_digest(0))
    with pytest.raises(GuaranteeError, match="could not be written"):
        book.record(0, a_digest(0))


def test_a_link_in_another_folder_is_the_same_journal(path, tmp_path):
    book = opened(path)
    other = tmp_path / "other"
    other.mkdir()
    book.link(other)
    book.record(0, a_digest(0))
    mark = book.mark()
    book.close()
    path.unlink()
    assert opened(other / path.name, 1, mark=mark).end == 1


def test_another_file_of_the_name_is_not_taken(path, tmp_path):
    book = opened(path)
    other = tmp_path / "other"
    other.mkdir()
    (other / path.name).write_bytes(b"")
    with pytest.raises(MismatchError, match="is not the journal of this run"):
        book.link(other)


def test_group_commit_waits_for_the_disk_every_so_often(path, monkeypatch):
    waited = []
    real = os.fdatasync
    monkeypatch.setattr(journal.os, "fdatasync", lambda handle: (waited.append(handle), real(handle)))
    book = opened(path, sync_every=4)
    before = len(waited)
    for t in range(10):
        book.record(t, a_digest(t))
    assert len(waited) - before == 2
    assert read_journal(path).end == 10  # a killed process loses none
    book.mark()
    assert len(waited) - before == 3


def test_conflicts_of_different_runs_are_not_compared(tmp_path):
    filled(tmp_path / "one")
    opened(tmp_path / "two", identity=OTHER).close()
    with pytest.raises(ValueError, match="belong to different runs"):
        conflicts(tmp_path / "one", tmp_path / "two")


@pytest.mark.parametrize("key", [None, SECRET])
def test_digests_tell_parts_and_order_apart(key):
    words = [b"ab", b"c"], [b"a", b"bc"], [b"abc"], [b"c", b"ab"], [], [b""], [b"ab", b"c", b""]
    found = [digest_of(parts, key) for parts in words]
    assert len(set(found)) == len(found)
    assert (
        found
        == [digest_of((np.frombuffer(part, np.uint8) for part in parts), key) for parts in words[:4]]
        + found[4:]
    )


def test_keyed_digests_are_hmacs_of_tags_and_see_every_bit():
    large = np.random.default_rng(0).integers(256, size=2**22 + 3, dtype=np.uint8)
    tags = [Cipher(AES(SECRET[:32]), GCM(place.to_bytes(12, "little"))).encryptor() for place in range(2)]
    for tag, block in zip(tags, (large[: 2**22], large[2**22 :]), strict=True):
        tag.authenticate_additional_data(block.tobytes())
        tag.finalize()
    text = len(large).to_bytes(8, "little") + tags[0].tag + tags[1].tag
    expected = hmac.new(SECRET[32:], text, "sha256").hexdigest()
    assert digest_of([large], SECRET) == expected
    for place in (0, 2**22 - 1, 2**22, 2**22 + 2):
        large[place] ^= 1
        assert digest_of([large], SECRET) != expected
        large[place] ^= 1
    assert digest_of([large], digest_key_of(bytes(range(1, 33)))) != expected
    with pytest.raises(ValueError, match="64 bytes"):
        digest_of([large], SECRET[:32])


def test_a_journal_goes_on_with_the_digests_that_it_was_begun_with(path, tmp_path):
    release = [b"what was released"]
    book = opened(path, digest_key=SECRET)
    assert book.digest(release) == digest_of(release, SECRET)
    book.record(0, book.digest(release))
    book.close()
    assert read_journal(path).keyed
    with pytest.raises(MismatchError, match="digest_key_of"):
        opened(path, 1, digest_key=None)
    book = opened(path, 0)
    book.record(0, book.digest(release))
    with pytest.raises(ReplayError, match="release 0"):
        book.record(0, book.digest([b"something else"]))
    opened(tmp_path / "plain", digest_key=None).close()
    plain = opened(tmp_path / "plain", adopt=True)
    assert plain.digest(release) == digest_of(release)
    plain.record(0, plain.digest(release))
    assert not read_journal(tmp_path / "plain").keyed
    with pytest.raises(ValueError, match="under a key"):
        conflicts(path, tmp_path / "plain")
    with pytest.raises(ValueError, match="64 bytes"):
        opened(tmp_path / "short", digest_key=bytes(32))


def test_digests_of_large_parts_are_those_of_their_blocks(monkeypatch):
    large = np.random.default_rng(0).integers(256, size=5 * 2**22 + 3, dtype=np.uint8)
    expected = hashlib.sha256(len(large).to_bytes(8, "little"))
    for start in range(0, len(large), 2**22):
        expected.update(hashlib.sha256(large[start : start + 2**22]).digest())
    assert digest_of([large]) == expected.hexdigest()
    monkeypatch.setattr("anechoic.runs.journal_format._MANY", 99)
    assert digest_of([large]) == expected.hexdigest()


def test_nothing_in_it_is_secret(path):
    key = bytes(range(32))
    filled(path)
    content = path.read_bytes()
    assert key.hex().encode() not in content and key not in content
    assert oct(path.stat().st_mode & 0o777) == "0o600"
