"""The state of a run as one SQLite file: every change is there as a whole, once, or not at all.

A process that is killed leaves the file before a transaction or after it. What a transaction says is on disk
when it ends; so whatever is shown to anybody after it can be found again, and what was lost before it was
seen by nobody.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from anechoic._validate import flag
from anechoic.errors import CheckpointError, GuaranteeError, MismatchError, ReplayError
from anechoic.keys import checked_key, derive, new_key
from anechoic.runs.counter import Counter
from anechoic.runs.held import PATIENCE, HeldFile

_META = "CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"


class StateFile(ABC):
    """A state file, open for this process alone, with the tables that a subclass adds.

    Guarantee: as long as all processes use this one file, each row of noise belongs to one release. A second
    process under whatever name of the file, a fork, a copy, a file with a second name (hard link), one moved
    while it is open, one of another identity or key, and damaged content are refused. All that was returned
    is in this one file: SQLite's journal beside it only undoes a commit that was cut short, and without the
    journal such a commit is to be seen by the subclass, as parts of two states. An older
    version of the file put back in its place is seen where a `counter` is given, a path outside of what is
    backed up together with it; without one it is not.

    Unless a key is given, the file holds it: it is as secret as the data, and so is the journal beside it.
    Both are readable by their owner alone.

    Args:
        path: file name; its folder exists. It is begun where there is none.
        identity: JSON of what the run is, which must be the same whenever it is opened.
        salt: for a file that is begun, what makes its noise differ from that of others with the same key.
        key: 32 bytes that are then not written to the file; None for a fresh key inside it.
        counter: path of a small file that says how many commits there were; None for none.
        adopt: take a file that was moved or copied, on the caller's word that no other copy is continued.

    Attributes:
        path: without symbolic links.
        key, salt: of the file.
        commits: transactions so far.

    Raises:
        CheckpointError: if the file is damaged.
        GuaranteeError: if another process has it open.
        MismatchError: if it belongs to another run, or was made with another key.
        ReplayError: if it was copied, or an older version was put back.
    """

    #: What such a file is of, the version of its tables, and the statements that make them.
    KIND: ClassVar[str]
    FORMAT: ClassVar[int]
    SCHEMA: ClassVar[tuple[str, ...]]
    #: What to do: where a run cannot go on; after a change that failed; after one of which that is not known;
    #: after one that was written; and what may differ from a file's identity.
    NEW_RUN: ClassVar[str]
    AGAIN: ClassVar[str]
    AGAIN_UNKNOWN: ClassVar[str]
    WRITTEN: ClassVar[str]
    OTHERWISE: ClassVar[str]

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        identity: str,
        salt: bytes,
        key: bytes | None = None,
        counter: str | os.PathLike[str] | None = None,
        adopt: bool = False,
    ) -> None:
        adopt = flag("adopt", adopt)
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
            try:
                self._open(identity, salt, key, adopt)
                self._counter = None if counter is None else Counter(Path(counter))
                self._check_counter()
            except BaseException:
                self._database.close()
                raise
        except sqlite3.DatabaseError as error:
            self._file.close()
            raise CheckpointError(
                f"state file {self.path} is damaged, or no such file ({error}). {self.NEW_RUN}"
            ) from error
        except BaseException:
            self._file.close()
            raise

    # -- what a subclass adds ------------------------------------------------------------------

    @abstractmethod
    def _begin(self) -> None:
        """Write what a new file holds; inside the transaction that makes it, its tables being there."""

    @abstractmethod
    def _check_content(self, meta: dict[str, Any]) -> None:
        """Read what the tables hold, and refuse it if it is damaged.

        Raises:
            CheckpointError: for content that nobody wrote so.
        """

    @abstractmethod
    def _seal(self) -> None:
        """Write what stands for all the tables; at the end of every transaction."""

    @property
    @abstractmethod
    def releases_made(self) -> int:
        """Releases that the file knows of."""

    # -- opening -------------------------------------------------------------------------------

    def _open(self, identity: str, salt: bytes, key: bytes | None, adopt: bool) -> None:
        run = self._database.execute
        # what is committed is in the one file, not in a log beside it that a new name of the file would lose
        mode = run("PRAGMA journal_mode=PERSIST").fetchone()[0]
        if mode != "persist":
            raise CheckpointError(f"state file {self.path} cannot be kept in one piece (journal {mode!r}).")
        run("PRAGMA synchronous=FULL")  # a release is seen after its commit: then it must be on disk
        run("PRAGMA secure_delete=ON")
        if not run("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            self._create(identity, salt, key)
        found = run("PRAGMA quick_check").fetchone()[0]
        if found != "ok":
            raise CheckpointError(f"state file {self.path} is damaged ({found}). {self.NEW_RUN}")
        meta = dict(run("SELECT name, value FROM meta"))
        try:
            version, here = int(meta["format"]), str(meta["place"])
            self.key = self._found_key(meta, key)
            self.commits, self.salt = int(meta["commits"]), bytes(meta["salt"])
            self.identity = str(meta["identity"])
            self._owner = str(meta["owner"])
        except KeyError as error:
            raise self._foreign(error) from error
        if version != self.FORMAT:
            raise MismatchError(
                f"state file {self.path} has format {version}; this version reads {self.FORMAT}."
            )
        if self.identity != identity:
            raise MismatchError(
                f"state file {self.path} belongs to another {self.KIND}:"
                f" {_difference(self.identity, identity)}. {self.OTHERWISE}"
            )
        if here != self._file.place and not adopt:
            raise ReplayError(
                f"state file {self.path} is another file than the one that the {self.KIND} wrote: it was"
                " copied or moved. If two copies go on, rows of noise are used for different releases. If no"
                " other copy is continued and nothing was released after this one was taken, say adopt=True"
                " (--adopt on the command line)."
            )
        try:
            self._check_content(meta)
        except KeyError as error:
            raise self._foreign(error) from error
        self._owner = secrets.token_hex(16)
        with self._written():
            self._set("place", self._file.place)
            self._set("owner", self._owner)

    def _foreign(self, error: KeyError) -> CheckpointError:
        return CheckpointError(f"state file {self.path} is none of a {self.KIND}: it has no {error}.")

    def _create(self, identity: str, salt: bytes, key: bytes | None) -> None:
        run = self._database.execute
        run("BEGIN IMMEDIATE")
        for statement in (_META, *self.SCHEMA):
            run(statement)
        secret = new_key() if key is None else checked_key(key)
        self._set("format", str(self.FORMAT))
        self._set("identity", identity)
        self._set("place", self._file.place)
        self._set("owner", "")
        self._set("commits", "0")
        self._set("salt", salt)
        self._set("key_check", derive(secret, "state file", size=16))
        if key is None:
            self._set("key", secret)
        self.identity = identity
        self._begin()
        run("COMMIT")

    def _found_key(self, meta: dict[str, Any], key: bytes | None) -> bytes:
        if key is None and "key" not in meta:
            raise MismatchError(
                f"state file {self.path} does not hold its key: give the key that the {self.KIND} was begun"
                " with."
            )
        secret = bytes(meta["key"]) if key is None else checked_key(key)
        if derive(secret, "state file", size=16) != meta["key_check"]:
            raise MismatchError(f"state file {self.path} was begun with another key: give that one.")
        return secret

    def _check_counter(self) -> None:
        if self._counter is None:
            return
        outside, made = self._counter.read(), self.releases_made
        if outside is not None and (outside[0] != self._identity_mark() or outside[1] > self.commits):
            raise ReplayError(
                f"counter {self._counter.path} stands at {outside[1]} commits, state file {self.path} at"
                f" {self.commits}: an older version was put back, or the counter belongs to another"
                f" {self.KIND}. Going on would use rows of noise a second time. Put back the newest version"
                f" of the file; if it is lost: {self.NEW_RUN}"
            )
        if outside is None and made:
            raise ReplayError(
                f"counter {self._counter.path} is missing although {made} releases were made: without"
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
            self._seal()
        self.commits += 1
        if self._counter is not None:
            try:
                self._counter.write(self._identity_mark(), self.commits)
            except BaseException:
                what = f"state file {self.path} was written, its counter was not: open both again."
                self._fault = f"{what} {self.WRITTEN}"
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
                f" Open the file again, and {self.AGAIN}."
            )
            with contextlib.suppress(sqlite3.Error):
                run("ROLLBACK")
            raise
        try:
            run("COMMIT")
        except BaseException:  # Ctrl-C among them, which may come when all is written
            self._fault = (
                f"whether the last change of state file {self.path} was written is not known. Open the file"
                f" again, and {self.AGAIN_UNKNOWN}."
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

    def close(self) -> None:
        """Give the file and its lock back."""
        if os.getpid() == self._process:
            self._database.close()
            self._file.close()
        self._fault = f"state file {self.path} is closed."


def new_salt() -> bytes:
    """What makes the noise of one file differ from that of another with the same key; not secret."""
    return secrets.token_bytes(32)


def digest_of_parts(head: str, *blobs: bytes) -> bytes:
    """SHA-256 of text and blobs, each of the blobs behind its length."""
    found = hashlib.sha256(head.encode())
    for blob in blobs:
        found.update(len(blob).to_bytes(8, "little"))
        found.update(blob)
    return found.digest()


def _difference(written: str, given: str) -> str:
    try:
        names = _differing(json.loads(written), json.loads(given))
    except ValueError:
        return "its description cannot be read"
    if not names:
        return "it is written differently"
    return f"{', '.join(names)} {'differs' if len(names) == 1 else 'differ'}"


def _differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Names of entries that are not the same in both, down into those that have entries themselves."""
    names: list[str] = []
    for name in sorted(k for k in {*one, *other} if one.get(k) != other.get(k)):
        before, now = one.get(name), other.get(name)
        inner = _differing(before, now) if isinstance(before, dict) and isinstance(now, dict) else []
        of_one_kind = inner and "kind" not in inner
        plain = all(isinstance(value, int | float) for value in (before, now))
        said = f"{name} (was {before}, is {now})" if plain else name
        names += [f"{name}.{below}" for below in inner] if of_one_kind else [said]
    return names
