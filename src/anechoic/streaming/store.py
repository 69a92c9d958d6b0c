"""The state of a stream as one SQLite file: every step is there as a whole, once, or not at all.

What an update or a release changes (sums of the open step, memory of the noise, accounts of units, the
release as published) is one transaction, on disk before anybody sees the release. So a process that is killed
leaves the state before an instruction or after it; and a release that was lost before its commit was seen by
nobody, so that its row of noise may be used again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from anechoic.errors import CheckpointError, GuaranteeError, MismatchError, ReplayError
from anechoic.keys import checked_key, derive, new_key
from anechoic.streaming.counter import Counter
from anechoic.streaming.held import PATIENCE, HeldFile
from anechoic.streaming.ledger import Accounts
from anechoic.streaming.members import Members
from anechoic.streaming.release import Release
from anechoic.streaming.state import Snapshot

FORMAT = 2
_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), head TEXT NOT NULL, open BLOB NOT NULL,
    total BLOB NOT NULL, noise BLOB NOT NULL, digest BLOB NOT NULL);
CREATE TABLE releases (step INTEGER PRIMARY KEY, published BLOB NOT NULL, row BLOB NOT NULL,
    link BLOB NOT NULL);
CREATE TABLE batches (id TEXT PRIMARY KEY, step INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE units (unit BLOB PRIMARY KEY, steps INTEGER NOT NULL, last INTEGER NOT NULL,
    records INTEGER NOT NULL) WITHOUT ROWID;
"""
_NEW_RUN = "Start a new stream in another file, whose privacy cost adds to this one's."


class Store:
    """A state file, open for this process alone; see `anechoic.streaming.state.State`.

    Guarantee: as long as all processes use this one file, each row of noise belongs to one release. A second
    process under whatever name of the file, a fork, a copy, a file with a second name (hard link), one moved
    while it is open, one of another mechanism or key, and damaged content are refused. All that was returned
    is in this one file: SQLite's journal beside it only undoes a commit that was cut short, and without the
    journal such a commit is seen, as parts of two states. An older
    version of the file put back in its place is seen where a `counter` is given, a path outside of what is
    backed up together with it; without one it is not.

    The file holds the noise of past steps, the sums of the open step and, unless a key is given, the key: it
    is as secret as the data, and so is the journal beside it. Both are readable by their owner alone.

    Args:
        path: file name; its folder exists. It is begun where there is none.
        identity: JSON of what the stream is, which must be the same whenever it is opened.
        key: 32 bytes that are then not written to the file; None for a fresh key inside it. A key may serve
            several files: each has a salt of its own, from which, and the key, its noise follows.
        counter: path of a small file that says how many commits there were; None for none.
        adopt: take a file that was moved or copied, on the caller's word that no other copy is continued.

    Raises:
        CheckpointError: if the file is damaged.
        GuaranteeError: if another process has it open.
        MismatchError: if it belongs to another stream, or was made with another key.
        ReplayError: if it was copied, or an older version was put back.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        identity: str,
        key: bytes | None = None,
        counter: str | os.PathLike[str] | None = None,
        adopt: bool = False,
    ) -> None:
        self.path = Path(os.path.realpath(path))
        self._process = os.getpid()
        self._fault = ""
        if counter is not None and Path(os.path.realpath(counter)) == self.path:
            raise ValueError(f"counter={counter} is the state file itself: put it elsewhere.")
        self._file = HeldFile(self.path)
        try:
            self._database = sqlite3.connect(
                self.path, timeout=PATIENCE, isolation_level=None, check_same_thread=False
            )
            self._members = Members(self._database)
            try:
                self._open(identity, key, adopt)
                self._counter = None if counter is None else Counter(Path(counter))
                self._check_counter()
            except BaseException:
                self._database.close()
                raise
        except sqlite3.DatabaseError as error:
            self._file.close()
            raise CheckpointError(
                f"state file {self.path} is damaged, or no such file ({error}). {_NEW_RUN}"
            ) from error
        except BaseException:
            self._file.close()
            raise
        self.accounts: Accounts = self._members

    # -- opening -------------------------------------------------------------------------------

    def _open(self, identity: str, key: bytes | None, adopt: bool) -> None:
        run = self._database.execute
        # what is committed is in the one file, not in a log beside it that a new name of the file would lose
        mode = run("PRAGMA journal_mode=PERSIST").fetchone()[0]
        if mode != "persist":
            raise CheckpointError(f"state file {self.path} cannot be kept in one piece (journal {mode!r}).")
        run("PRAGMA synchronous=FULL")  # a release is seen after its commit: then it must be on disk
        run("PRAGMA secure_delete=ON")
        if not run("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            self._create(identity, key)
        found = run("PRAGMA quick_check").fetchone()[0]
        if found != "ok":
            raise CheckpointError(f"state file {self.path} is damaged ({found}). {_NEW_RUN}")
        meta = dict(run("SELECT name, value FROM meta"))
        try:
            version, here = int(meta["format"]), str(meta["place"])
            self.key = self._found_key(meta, key)
            self.commits, self._head = int(meta["commits"]), bytes(meta["head"])
            self.salt, members = bytes(meta["salt"]), bytes(meta["members"])
            written = str(meta["identity"])
        except KeyError as error:
            raise CheckpointError(
                f"state file {self.path} is none of a stream: it has no {error}."
            ) from error
        if version != FORMAT:
            raise MismatchError(f"state file {self.path} has format {version}; this version reads {FORMAT}.")
        if written != identity:
            raise MismatchError(
                f"state file {self.path} belongs to another stream: {_difference(written, identity)}. Open it"
                " with what it was begun with; for another mechanism or statistic begin another file, whose"
                " privacy cost adds to this one's."
            )
        if here != self._file.place and not adopt:
            raise ReplayError(
                f"state file {self.path} is another file than the one that the stream wrote: it was copied or"
                " moved. If two copies go on, rows of noise are used for different releases. If no other copy"
                " is continued and nothing was released after this one was taken, say adopt=True."
            )
        self._check_links()
        if self._members.read_all() != members:
            raise CheckpointError(
                f"the accounts of units or batches in state file {self.path} are damaged, so who took part"
                f" cannot be told. {_NEW_RUN}"
            )
        self._owner = secrets.token_hex(16)
        with self._written():
            self._set("place", self._file.place)
            self._set("owner", self._owner)

    def _create(self, identity: str, key: bytes | None) -> None:
        run = self._database.execute
        run("BEGIN IMMEDIATE")
        for statement in _SCHEMA.strip().split(";\n"):
            run(statement)
        secret = new_key() if key is None else checked_key(key)
        self._set("format", str(FORMAT))
        self._set("identity", identity)
        self._set("place", self._file.place)
        self._set("owner", "")
        self._set("commits", "0")
        self._set("head", hashlib.sha256(identity.encode()).digest())
        self._set("salt", new_salt())
        self._set("members", self._members.digest)
        self._set("key_check", derive(secret, "state file", size=16))
        if key is None:
            self._set("key", secret)
        run("COMMIT")

    def _found_key(self, meta: dict[str, Any], key: bytes | None) -> bytes:
        if key is None and "key" not in meta:
            raise MismatchError(
                f"state file {self.path} does not hold its key: give the key that the stream was begun with."
            )
        secret = bytes(meta["key"]) if key is None else checked_key(key)
        if derive(secret, "state file", size=16) != meta["key_check"]:
            raise MismatchError(f"state file {self.path} was begun with another key: give that one.")
        return secret

    def _check_links(self) -> None:
        link = hashlib.sha256(self._meta("identity").encode()).digest()
        expected = 0
        for step, published, row, stored in self._database.execute(
            "SELECT step, published, row, link FROM releases ORDER BY step"
        ):
            link = _link(link, published, row)
            if step != expected or link != stored:
                raise CheckpointError(
                    f"release {expected} in state file {self.path} is damaged or missing, so what was"
                    f" released cannot be told. {_NEW_RUN}"
                )
            expected += 1
        self.made = expected
        if link != self._head:
            raise CheckpointError(f"state file {self.path} lacks its last releases. {_NEW_RUN}")

    def _check_counter(self) -> None:
        if self._counter is None:
            return
        outside = self._counter.read()
        if outside is not None and (outside[0] != self._identity_mark() or outside[1] > self.commits):
            raise ReplayError(
                f"counter {self._counter.path} stands at {outside[1]} commits, state file {self.path} at"
                f" {self.commits}: an older version was put back, or the counter belongs to another stream."
                " Going on would use rows of noise a second time. Put back the newest version of the file; if"
                f" it is lost: {_NEW_RUN}"
            )
        if outside is None and self.made:
            raise ReplayError(
                f"counter {self._counter.path} is missing although {self.made} releases were made: without"
                " it an older version of the state file could not be told from the newest. Put it back, or"
                " open the file without counter on your own word."
            )
        self._counter.write(self._identity_mark(), self.commits)

    def _identity_mark(self) -> str:
        return derive(self.key, "counter", size=16).hex()

    # -- transactions --------------------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All changes inside are on disk when it ends, or none is.

        Raises:
            GuaranteeError: in a fork, after an earlier failure, or where another process has taken the file.
        """
        self._check_own()
        with self._written():
            if self._meta("owner") != self._owner or int(self._meta("commits")) != self.commits:
                raise GuaranteeError(
                    f"state file {self.path} was changed by somebody else since this process opened it: two"
                    " writers would use the same rows of noise. End this process; only one may go on."
                )
            self._set("commits", str(self.commits + 1))
            yield
            self._set("head", self._head)
            self._set("members", self._members.digest)
        self.commits += 1
        if self._counter is not None:
            try:
                self._counter.write(self._identity_mark(), self.commits)
            except BaseException:
                self._fault = (
                    f"state file {self.path} was written, its counter was not: open both again. Do not repeat"
                    " the batch; it is in the file."
                )
                raise

    @contextlib.contextmanager
    def _written(self) -> Iterator[None]:
        run = self._database.execute
        run("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._fault = (
                f"a change of state file {self.path} failed half-way: what is in memory is ahead of the file."
                " Open the file again, and repeat the batch."
            )
            with contextlib.suppress(sqlite3.Error):
                run("ROLLBACK")
            raise
        try:
            run("COMMIT")
        except BaseException:  # Ctrl-C among them, which may come when all is written
            self._fault = (
                f"whether the last change of state file {self.path} was written is not known. Open the file"
                " again, and repeat the batch only under the batch_id that it had: then it counts once."
            )
            with contextlib.suppress(sqlite3.Error):
                run("ROLLBACK")
            raise

    def _check_own(self) -> None:
        if os.getpid() != self._process:
            raise GuaranteeError(
                f"state file {self.path} was opened by process {self._process}, and process {os.getpid()} is"
                " a fork of it: open it in the process that uses it."
            )
        if self._fault:
            raise GuaranteeError(self._fault)
        self._file.check()

    def _meta(self, name: str) -> str:
        return str(self._database.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()[0])

    def _set(self, name: str, value: str | bytes) -> None:
        self._database.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    # -- content -------------------------------------------------------------------------------

    def load(self) -> Snapshot | None:
        found = self._database.execute("SELECT head, open, total, noise, digest FROM state").fetchone()
        if found is None:
            if self.made:
                raise CheckpointError(f"state file {self.path} has lost its open step. {_NEW_RUN}")
            return None
        head, *blobs, digest = found
        if _digest(head, *blobs) != digest:
            raise CheckpointError(f"the open step in state file {self.path} is damaged. {_NEW_RUN}")
        fields = json.loads(head)
        snapshot = Snapshot(
            fields["step"],
            blobs[0],
            fields["total_dtype"],
            blobs[1],
            fields["noise_dtype"],
            tuple(fields["noise_shape"]),
            blobs[2],
            fields["counts"],
            fields["time"],
        )
        if snapshot.step != self.made:
            raise CheckpointError(
                f"state file {self.path} holds {self.made} releases and stands at step {snapshot.step}."
                f" {_NEW_RUN}"
            )
        if (fields["commits"], fields["members"]) != (self.commits, self._members.digest.hex()):
            raise CheckpointError(
                f"state file {self.path} holds parts of two states: a commit was cut short, and its"
                f" journal is not beside it. Put {self.path.name}-journal back; else: {_NEW_RUN}"
            )
        return snapshot

    def save(self, take: Callable[[], Snapshot]) -> None:
        snapshot = take()
        head = json.dumps(
            {
                "step": snapshot.step,
                "commits": self.commits + 1,  # of the transaction that this is part of
                "members": self._members.digest.hex(),
                "total_dtype": snapshot.total_dtype,
                "noise_dtype": snapshot.noise_dtype,
                "noise_shape": snapshot.noise_shape,
                "counts": snapshot.counts,
                "time": snapshot.time,
            }
        )
        blobs = (snapshot.open, snapshot.total, snapshot.noise)
        self._database.execute(
            "INSERT OR REPLACE INTO state VALUES (1, ?, ?, ?, ?, ?)", (head, *blobs, _digest(head, *blobs))
        )

    def seen(self, batch_id: str) -> int | None:
        return self._members.step_of(batch_id)

    def mark(self, batch_id: str, step: int) -> None:
        self._members.mark(batch_id, step)

    def append(self, release: Release, row: bytes) -> None:
        published = release.to_bytes()
        self._head = _link(self._head, published, row)
        self._database.execute(
            "INSERT INTO releases VALUES (?, ?, ?, ?)", (release.step, published, row, self._head)
        )
        self.made = release.step + 1

    def release(self, step: int) -> Release:
        query = "SELECT published FROM releases WHERE step = ?"
        return Release.from_bytes(self._database.execute(query, (step,)).fetchone()[0])

    def row(self, step: int) -> bytes:
        return bytes(self._database.execute("SELECT row FROM releases WHERE step = ?", (step,)).fetchone()[0])

    def releases(self) -> Iterator[Release]:
        for (published,) in self._database.execute("SELECT published FROM releases ORDER BY step"):
            yield Release.from_bytes(published)

    def close(self) -> None:
        """Give the file and its lock back."""
        if os.getpid() == self._process:
            self._database.close()
            self._file.close()
        self._fault = f"state file {self.path} is closed."


def new_salt() -> bytes:
    """What makes the noise of one file differ from that of another with the same key; not secret."""
    return secrets.token_bytes(32)


def _digest(head: str, *blobs: bytes) -> bytes:
    found = hashlib.sha256(head.encode())
    for blob in blobs:
        found.update(len(blob).to_bytes(8, "little"))
        found.update(blob)
    return found.digest()


def _link(before: bytes, published: bytes, row: bytes) -> bytes:
    return hashlib.sha256(before + len(published).to_bytes(8, "little") + published + row).digest()


def _difference(written: str, given: str) -> str:
    try:
        one, other = json.loads(written), json.loads(given)
        names = sorted(k for k in {*one, *other} if one.get(k) != other.get(k))
    except ValueError:
        return "its description cannot be read"
    return f"{', '.join(names)} differ" if names else "it is written differently"
