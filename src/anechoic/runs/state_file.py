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
import sqlite3
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from anechoic._validate import flag
from anechoic.errors import (
    AnechoicError,
    CheckpointError,
    GuaranteeError,
    MismatchError,
    ReplayError,
)
from anechoic.keys import checked_key, derive, new_key
from anechoic.runs import openings
from anechoic.runs.database import PATIENCE, Database
from anechoic.runs.exclusive_file import HeldFile
from anechoic.runs.identity import difference
from anechoic.runs.rollback_counter import Counter
from anechoic.runs.sealing import Sealer, filled

_SCHEMA = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE openings (first INTEGER PRIMARY KEY, salt BLOB NOT NULL)",
)

#: Under which name a file shows the JSON of its mechanism.
MECHANISM = "mechanism"


class StateFile(ABC):
    """A state file, open for this process alone, with the tables that a subclass adds.

    Guarantee: as long as all processes use this one file, each row of noise belongs to one release. A second
    process under whatever name of the file, a fork, a copy, a file with a second name (hard link), one moved
    while it is open, one of another identity or key, and damaged content are refused. Every opening commits
    a salt of its own before a row of noise is drawn, and rows from there on follow from it: where an older
    version of the file is put back, or a copy goes on, rows that were released before are not drawn again,
    and what that costs is one more release with independent noise. It is seen where a `counter` is given, a
    path outside of what is backed up together with it; once given, the file cannot be opened without it.

    While the file is open, and after a process that was killed, commits may be in SQLite's log beside it
    (`NAME-wal`). A file that was not closed is refused without it.

    Everything private is sealed with the key. Where the key is given it is not in the file, which then shows
    what was released, sizes, and who has the same digest as in another version of the file; see
    docs/streaming-operators.md. Unless a key is given, the file holds it: it is as secret as the data, and so
    is the log. Both are readable by their owner alone.

    Args:
        path: file name; its folder exists. It is begun where there is none.
        identity: JSON of what the run is, which must be the same whenever it is opened.
        shown: what the file says of the run besides, for those who read it without key, by name.
        key: 32 bytes that are then not written to the file; None for a fresh key inside it.
        counter: path of a small file that says how many commits there were; None for none.
        adopt: take a file that was moved or copied, or is without its log or its counter, on the caller's
            word that it is the newest and that no other copy is continued.

    Attributes:
        path: without symbolic links.
        key, salt: of the file.
        seal: for what is private.
        openings: from which row of noise on which salt holds.
        commits: transactions so far.

    Raises:
        CheckpointError: if the file is damaged, or SQLite cannot use it.
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
        shown: Mapping[str, str] | None = None,
        key: bytes | None = None,
        counter: str | os.PathLike[str] | None = None,
        adopt: bool = False,
    ) -> None:
        adopt = flag("adopt", adopt)
        self.path = Path(os.path.realpath(path))
        self._process = os.getpid()
        self._fault = ""
        self._counter = None if counter is None else Counter(Path(counter))
        if counter is not None and Path(os.path.realpath(counter)) == self.path:
            raise ValueError(f"counter={counter} is the state file itself: put it elsewhere.")
        self._file = HeldFile(self.path)
        try:
            self._database = Database(self.path, self.NEW_RUN)
            try:
                self._open(identity, dict(shown or {}), key, adopt)
            except BaseException:
                self._database.close()
                raise
        except BaseException:
            self._file.close()
            raise
        self._ended = weakref.finalize(self, _end, self._database, self._file, self._process)

    # -- what a subclass adds ------------------------------------------------------------------

    @abstractmethod
    def _public(self) -> bytes:
        """A digest of what the file shows without its key, kept in the seal of what is private."""

    @abstractmethod
    def _private(self) -> dict[str, Any]:
        """What stands for all private tables, as JSON data; at the end of every transaction."""

    @abstractmethod
    def _read_public(self, meta: dict[str, Any]) -> None:
        """Read what can be read without the key.

        Raises:
            CheckpointError: for content that nobody wrote so.
        """

    @abstractmethod
    def _read_private(self, private: dict[str, Any]) -> None:
        """Read what is sealed, `private` being what `_private` gave.

        Raises:
            CheckpointError: for content that nobody wrote so.
        """

    @property
    @abstractmethod
    def releases_made(self) -> int:
        """Releases that the file knows of."""

    # -- opening -------------------------------------------------------------------------------

    def _open(self, identity: str, shown: dict[str, str], key: bytes | None, adopt: bool) -> None:
        run, log = self._database.run, self._database.log
        has_log = log.exists() and log.stat().st_size > 0  # before SQLite makes one
        fresh = not run("SELECT count(*) FROM sqlite_master")[0][0]
        if fresh:
            self._database.durable()
            self._create(identity, shown, key)
        meta = self._checked_meta(identity, adopt, has_log or fresh)
        self._database.durable()
        try:
            self.key = self._found_key(meta, key)
            self.salt = bytes(meta["salt"])
            self.seal = Sealer(self.key, self.salt)
            self.openings = [(int(first), bytes(salt)) for first, salt in run("SELECT * FROM openings")]
            if not fresh:
                self._read_public(meta)
            private = self._opened(meta["private"])
            if (private["openings"], private["turn"]) != (self._openings_digest(), bytes(meta["turn"]).hex()):
                raise self._two_states()
            self.commits, self._counted = int(private["commits"]), bool(private["counted"])
            self._read_private(private)
        except AnechoicError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise self._foreign(error) from error
        if self._counter is not None:
            self._counter.check(self._identity_mark(), self.commits, adopt or not self._counted)
        elif self._counted:
            raise ReplayError(
                f"state file {self.path} was run with a counter, without which an older version of it could"
                " not be told from the newest: give counter, the path of that file. If it is lost, and this"
                " is the newest version, name a new one and say adopt=True."
            )
        with self._written():
            self._begin_opening()
        self._database.fold()  # so that the file itself says that it was not closed

    def _begin_opening(self) -> None:
        """From here on noise is drawn with a salt that nobody had before."""
        first, salt = self.releases_made, openings.new_salt()
        kept = [entry for entry in self.openings if entry[0] < first]  # of rows that were released
        self.openings = [*kept, (first, salt)]
        self._database.run("DELETE FROM openings WHERE first >= ?", (first,))
        self._database.run("INSERT INTO openings VALUES (?, ?)", (first, salt))
        self._counted = self._counted or self._counter is not None
        self._set("place", self._file.place)
        self._set("closed", "0")
        self._write_private(self.commits)

    def _checked_meta(self, identity: str, adopt: bool, has_log: bool) -> dict[str, Any]:
        """What the file says of itself, if it is this run's, and all of it.

        Raises:
            CheckpointError, MismatchError, ReplayError: if it is not.
        """
        found = self._database.run("PRAGMA quick_check")[0][0]
        if found != "ok":
            raise CheckpointError(f"state file {self.path} is damaged ({found}). {self.NEW_RUN}")
        meta = dict(self._database.run("SELECT name, value FROM meta"))
        try:
            version, here, closed = int(meta["format"]), str(meta["place"]), str(meta.get("closed"))
            self.identity = str(meta["identity"])
        except (KeyError, TypeError, ValueError) as error:
            raise self._foreign(error) from error
        if version != self.FORMAT:
            raise MismatchError(
                f"state file {self.path} has format {version}, and this version reads format {self.FORMAT}"
                f" alone. Finish the {self.KIND} with the version of anechoic that began it. {self.NEW_RUN}"
            )
        if self.identity != identity:
            raise MismatchError(
                f"state file {self.path} belongs to another {self.KIND}:"
                f" {difference(self.identity, identity)}. {self.OTHERWISE}"
            )
        if here != self._file.place and not adopt:
            raise ReplayError(
                f"state file {self.path} is another file than the one that the {self.KIND} wrote: it was"
                " copied or moved. If two copies go on, each of them costs the privacy of a release of its"
                " own. If no other copy is continued and nothing was released after this one was taken, say"
                " adopt=True (--adopt on the command line)."
            )
        if closed != "1" and not has_log and not adopt:
            log = self._database.log.name
            raise CheckpointError(
                f"state file {self.path} was not closed, and its log {log} is missing or empty: the last"
                f" releases were in there. Put {log} back beside it. If another program has opened the file"
                " since then, such as the sqlite3 shell, the log is in the file: then say adopt=True."
            )
        return meta

    def _foreign(self, error: Exception) -> CheckpointError:
        what = f"it has no {error}" if isinstance(error, KeyError) else f"its head is damaged ({error})"
        return CheckpointError(f"state file {self.path} is none of a {self.KIND}: {what}. {self.NEW_RUN}")

    def _create(self, identity: str, shown: dict[str, str], key: bytes | None) -> None:
        self.key = new_key() if key is None else checked_key(key)
        self.salt, self.identity, self.openings = openings.new_salt(), identity, []
        self.seal = Sealer(self.key, self.salt)
        self.commits, self._counted = 0, False
        with self._written():
            for statement in (*_SCHEMA, *self.SCHEMA):
                self._database.run(statement)
            self._set("format", str(self.FORMAT))
            self._set("identity", identity)
            for name, text in shown.items():
                self._set(name, text)
            self._set("place", self._file.place)
            self._set("salt", self.salt)
            self._set("key_check", derive(self.key, "state file", size=16))
            if key is None:
                self._set("key", self.key)
            self._read_public(dict(self._database.run("SELECT name, value FROM meta")))
            self._write_private(0)

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

    def _identity_mark(self) -> str:
        return derive(self.key, f"counter {self.salt.hex()}", size=16).hex()

    # -- transactions --------------------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All changes inside are on disk when it ends, or none is.

        Raises:
            GuaranteeError: in a fork, after an earlier failure, or where another process has taken the file.
            CheckpointError: where SQLite could not write; nothing is changed then.
        """
        self._check_own()
        with self._written():
            if self._meta("turn") != self._turn:
                raise GuaranteeError(
                    f"state file {self.path} was changed by somebody else since this process opened it: two"
                    " writers would use the same rows of noise. End this process; only one may go on."
                )
            yield
            self._write_private(self.commits + 1)
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
        run = self._database.run
        run("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._fault = (
                f"a change of state file {self.path} failed half-way: what is in memory is ahead of the file."
                f" Open the file again, and {self.AGAIN}."
            )
            with contextlib.suppress(CheckpointError):
                run("ROLLBACK")
            raise
        try:
            run("COMMIT")
        except BaseException:  # Ctrl-C among them, which may come when all is written
            self._fault = (
                f"whether the last change of state file {self.path} was written is not known. Open the file"
                f" again, and {self.AGAIN_UNKNOWN}."
            )
            with contextlib.suppress(CheckpointError):
                run("ROLLBACK")
            raise

    def _write_private(self, commits: int) -> None:
        """Sealer what stands for all tables after so many commits."""
        # not the number of commits itself: there may be one a record
        self._turn = derive(self.key, f"turn {self.openings[-1:]}", commits, size=16)
        private = {
            "commits": commits,
            "turn": self._turn.hex(),
            "counted": self._counted,
            "openings": self._openings_digest(),
            **self._private(),
        }
        self._set("turn", self._turn)
        self._set("private", self.seal.close(self._name("private"), filled(json.dumps(private))))

    def _opened(self, sealed: Any) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self.seal.open(self._name("private"), sealed))
        except CheckpointError as error:
            raise self._two_states() from error
        return found

    def _two_states(self) -> CheckpointError:
        log = self._database.log.name
        return CheckpointError(
            f"state file {self.path} is damaged, or holds parts of two states: what it shows and what is"
            f" sealed in it differ. Put back the file and its log {log} as they were; else: {self.NEW_RUN}"
        )

    def _name(self, what: str) -> bytes:
        return digest_of_parts(what, self._public())

    def _openings_digest(self) -> str:
        return digest_of_parts(repr(self.openings)).hex()

    def _check_own(self) -> None:
        if os.getpid() != self._process:
            raise GuaranteeError(
                f"state file {self.path} was opened by process {self._process}, and process {os.getpid()} is"
                " a fork of it: open it in the process that uses it."
            )
        if self._fault:
            raise GuaranteeError(self._fault)
        self._file.check()

    def _meta(self, name: str) -> Any:
        return self._database.run("SELECT value FROM meta WHERE name = ?", (name,))[0][0]

    def _set(self, name: str, value: str | bytes) -> None:
        self._database.run("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    def close(self) -> None:
        """Give the file and its lock back, all commits in the file itself."""
        self._ended()
        self._fault = f"state file {self.path} is closed."


def shown_in(path: str | os.PathLike[str], name: str) -> str | None:
    """What the file at `path` shows under `name`, read without its key or lock; None where it shows nothing.

    Nobody has checked it: who opens the file will.
    """
    target = os.path.realpath(path)
    if not os.path.isfile(target):
        return None
    source = f"file:{quote(target)}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(source, uri=True, timeout=PATIENCE)) as database:
            found = database.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    except sqlite3.Error:  # no such file, or a damaged one: opening it says what is wrong
        return None
    return None if found is None else str(found[0])


#: The file needs no log any more.
_CLOSED = "UPDATE meta SET value = '1' WHERE name = 'closed'"


def _end(database: Database, file: HeldFile, process: int) -> None:
    """Close a file that was open, also where nobody does who could, as when a process ends."""
    if os.getpid() == process:
        try:
            database.close(_CLOSED)
        finally:
            file.close()


def digest_of_parts(head: str, *blobs: bytes) -> bytes:
    """SHA-256 of text and blobs, each of the blobs behind its length."""
    found = hashlib.sha256(head.encode())
    for blob in blobs:
        found.update(len(blob).to_bytes(8, "little"))
        found.update(blob)
    return found.digest()
