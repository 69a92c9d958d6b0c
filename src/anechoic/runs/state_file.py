"""State of a run as one SQLite file: every change is there as a whole, once, or not at all.

A process that is killed leaves the file before a transaction or after it. What a transaction says is on disk
when it ends; so whatever is shown to anybody after it can be found again, and what was lost before it was
seen by nobody.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from anechoic._validate import flag
from anechoic.errors import AnechoicError, CheckpointError, GuaranteeError, MismatchError
from anechoic.keys import checked_key, derive, new_key
from anechoic.runs import digests
from anechoic.runs.database import Database
from anechoic.runs.file_lock import LockedFile
from anechoic.runs.private_table import PrivateTable
from anechoic.runs.release_chain import ROWS, ReleaseChain, digest_of_parts, reading
from anechoic.runs.settings_check import FORMAT, MECHANISM, check_meta, check_newest

#: 32 secret bytes, or a function that gives them when they are needed; None for fresh ones.
Key = bytes | Callable[[], bytes] | None

_MINUTE = 60
_SCHEMA = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE openings (number INTEGER PRIMARY KEY, first INTEGER NOT NULL, salt BLOB NOT NULL)",
    "CREATE TABLE releases (step INTEGER PRIMARY KEY, time TEXT NOT NULL, row BLOB NOT NULL)",
    "CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), content BLOB NOT NULL)",
)
_TABLE = "CREATE TABLE {} (id BLOB PRIMARY KEY, content BLOB NOT NULL) WITHOUT ROWID"
#: Openings under which nothing was released, before a step that is over.
_IDLE = (
    "DELETE FROM openings WHERE first < ? AND number NOT IN (SELECT max(number) FROM openings GROUP BY first)"
)
_CLOSED = "UPDATE meta SET value = iif(name = 'closed', '1', ?) WHERE name IN ('closed', 'written')"


class StateFile:
    """State file, open in this process alone: releases, private state, and tables of a subclass.

    Guarantee: as long as all processes use this one file, each row of noise belongs to one release. A second
    process, a fork, a copy, a file that was moved while it is open, one of another identity or key, one that
    was changed two minutes or more after its last commit, and damaged content are refused. Every opening
    commits a salt of its own before a row of noise is drawn, and rows from there on follow from it (but those
    of torch, which follow from the key alone): where an older version of the file is put back within that
    time, or a copy goes on, rows that were released before are not drawn again, and what that costs is one
    more release with independent noise. A budget book sees it.

    While the file is open, and after a process that was killed, commits may be in SQLite's log beside it
    (`NAME-wal`). A file that was not closed is refused without it.

    The file holds noise and sums: it is as secret as the data, and so is the log. Both are readable by their
    owner alone.

    Args:
        path: file name; its folder exists. It is begun where there is none.
        identity: JSON of what the run is, which must be the same whenever it is opened.
        shown: what the file says of the run besides, by name.
        key: 32 bytes that are then not written to the file; None for a fresh key inside it.
        adopt: take a file that was moved, copied or put back, or is without its log, on the caller's word
            that it is the newest and that no other copy is continued.

    Attributes:
        path: without symbolic links.
        key, salt: of the file.
        openings: from which row of noise on which salt holds.
        chain: of the releases.
        tables: private rows by digest, by name of the table.
        kept: releases that are there for good: on disk, and counted.
        counter: whose `done` is told of every step that is on disk, before anybody sees what was released;
            see `budget.book.Reservation`. None for none.
        adopted: whether `adopt` was said.

    Raises:
        CheckpointError: if the file is damaged, or SQLite cannot use it.
        GuaranteeError: if another process has it open.
        MismatchError: if it belongs to another run, or was made with another key.
        ReplayError: if it was copied, or an older version was put back.
    """

    #: What such a file is of, what it shows besides its identity, and its private tables.
    KIND: ClassVar[str]
    SHOWN: ClassVar[tuple[str, ...]] = (MECHANISM,)
    TABLES: ClassVar[tuple[str, ...]] = ()
    #: What to do: where a run cannot go on; after a change that may have failed or not; and with a file of
    #: another identity.
    NEW_RUN: ClassVar[str]
    AGAIN: ClassVar[str]
    OTHERWISE: ClassVar[str]
    #: Whether every opening draws noise of its own.
    FRESH_NOISE: ClassVar[bool] = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        identity: str,
        shown: Mapping[str, str] | None = None,
        key: bytes | None = None,
        adopt: bool = False,
    ) -> None:
        self.path = Path(os.path.realpath(path))
        self._process = os.getpid()
        self._fault = ""
        self.counter: Any = None
        self.adopted = adopt
        self._reopen = f"open the file again, and {self.AGAIN}."
        self._file = LockedFile(self.path)
        try:
            self._database = Database(self.path, self.NEW_RUN)
            try:
                self._open(identity, dict(shown or {}), key)
            except BaseException:
                self._database.close(folds=False)
                raise
        except BaseException:
            self._file.close()
            raise
        self.kept = self.made
        self._ended = weakref.finalize(self, _end, self._database, self._file, self._process)

    @classmethod
    def shown(cls, path: str | os.PathLike[str], name: str) -> str | None:
        """Read the public entry `name` of the file at `path`, without its lock; None where there is none.

        Who opens the file checks it. Its log is left alone: SQLite, as root, changes when that was changed.
        """
        with contextlib.suppress(CheckpointError), reading(path, cls, still=True) as (said, *_):
            return str(said[name])
        return None

    @property
    def made(self) -> int:
        """Releases in the file."""
        return self.chain.made

    @property
    def steps(self) -> int:
        """Count steps whose release is in the file, or was lost before anybody saw it."""
        return self.made

    @property
    def name(self) -> str:
        """Name of the run elsewhere."""
        return derive(self.key, f"run {self.salt.hex()}", size=16).hex()

    def opened_by(self) -> list[str]:
        """Return a name for each opening of the file, by which a counter knows it; this one is the last."""
        return [derive(self.key, f"opening {salt.hex()}", size=16).hex() for _, salt in self._openings]

    def _admitted(self) -> int:
        """Return the first row of noise that the next release needs, of a file that may go on."""
        return self.made

    def _open(self, identity: str, shown: dict[str, str], key: bytes | None) -> None:
        changed = self._last_change()  # before SQLite touches the log
        fresh = not self._database.run("SELECT count(*) FROM sqlite_master")[0][0]
        if fresh:
            self._database.durable()
            self._create(identity, shown, key)
        try:
            found = self._database.run("PRAGMA quick_check")[0][0]
            if found != "ok":
                raise CheckpointError(f"state file {self.path} is damaged ({found}). {self.NEW_RUN}")
            said = dict(self._database.run("SELECT name, value FROM meta"))
            check_meta(type(self), self.path, said, {"identity": identity, **shown})
            if not (fresh or self.adopted):
                check_newest(type(self), self.path, said, self._file.place, changed)
            self._database.durable()
            self.identity = identity
            if not fresh:
                self._read(said, key)
            if not hmac.compare_digest(self._tag(), said["tag"]):
                raise CheckpointError(
                    f"state file {self.path} is damaged, or holds parts of two states. Put back the file and"
                    f" its log {self._database.log.name} as they were; else: {self.NEW_RUN}"
                )
        except AnechoicError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            what = f"it has no {error}" if isinstance(error, KeyError) else f"its head is damaged ({error})"
            raise CheckpointError(
                f"state file {self.path} is none of a {self.KIND}: {what}. {self.NEW_RUN}"
            ) from error
        first = self._admitted()
        with self._written():
            self._begin_opening(first)
        self._version = self._database.version
        self._database.fold()  # so that the file itself says that it was not closed

    def _last_change(self) -> float:
        """Return when file or log were changed last, negative where there is no log."""
        log, changed = self._database.log, self.path.stat().st_ctime
        has_log = log.exists() and log.stat().st_size > 0
        return max(changed, log.stat().st_ctime) if has_log else -changed

    def _begin_opening(self, first: int) -> None:
        """Begin an opening: from row `first` on noise is drawn with a new salt."""
        self._database.run(_IDLE, (first,))
        self._database.run("INSERT INTO openings (first, salt) VALUES (?, ?)", (first, digests.new_salt()))
        self._read_openings()
        self._set("place", self._file.place)
        self._set("closed", "0")
        self._seal()

    def _read_openings(self) -> None:
        self._openings = self._database.run("SELECT first, salt FROM openings ORDER BY number")
        # of several that begin at one row, the last one released it
        self.openings = list({int(first): bytes(salt) for first, salt in self._openings}.items())

    def _read(self, said: Mapping[str, Any], key: bytes | None) -> None:
        if key is None and "key" not in said:
            raise MismatchError(
                f"state file {self.path} does not hold its key: give the key that the {self.KIND} was begun"
                " with."
            )
        self.key = bytes(said["key"]) if key is None else checked_key(key)
        if derive(self.key, "state file", size=16) != said["key_check"]:
            raise MismatchError(f"state file {self.path} was begun with another key: give that one.")
        self.salt = bytes(said["salt"])
        self._read_openings()
        self.chain = ReleaseChain(type(self), self.path, said)
        for _ in self.chain.read(self._database.each(ROWS)):
            pass
        held = self.held()
        self._saved = b"" if held is None else digest_of_parts("state", held)
        self.tables = {name: PrivateTable(self._database, name) for name in self.TABLES}

    def _create(self, identity: str, shown: dict[str, str], key: bytes | None) -> None:
        secret = new_key() if key is None else checked_key(key)
        said = {
            "format": str(FORMAT),
            "identity": identity,
            **shown,
            "place": self._file.place,
            "closed": "0",
            "salt": digests.new_salt(),
            "key_check": derive(secret, "state file", size=16),
            **({"key": secret} if key is None else {}),
        }
        with self._written():
            for statement in (*_SCHEMA, *map(_TABLE.format, self.TABLES)):
                self._database.run(statement)
            self._database.many("INSERT INTO meta VALUES (?, ?)", said.items())
            self._read(said, key)
            self._seal()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all changes inside, or none.

        Raises:
            GuaranteeError: in a fork, after an earlier failure, or where another process has taken the file.
            CheckpointError: where SQLite could not write; nothing is changed then.
        """
        self.check()
        before = self.steps
        with self._written():
            if self._database.version != self._version:
                raise GuaranteeError(
                    f"state file {self.path} was changed by somebody else since this process opened it: two"
                    " writers would use the same rows of noise. End this process; only one may go on."
                )
            yield
            self._seal()
            # from here on, should it be interrupted: Ctrl-C may come when all is written
            self._fault = f"state file {self.path} was written, what goes with it may not be: {self._reopen}"
        if self.counter is not None and self.steps > before:
            self._count()
        self.kept, self._fault = self.made, ""

    def _count(self) -> None:
        if self.counter is not None:
            self.counter.done(self.steps)

    @contextlib.contextmanager
    def _written(self) -> Iterator[None]:
        run, what = self._database.run, ""
        half_way = f"a change of state file {self.path} failed half-way, and memory is ahead of it"
        try:
            run("BEGIN IMMEDIATE")
            what = half_way
            yield
            what = f"whether the last change of state file {self.path} was written is not known"
            run("COMMIT")
        except BaseException as error:
            if what or not isinstance(error, CheckpointError):  # Ctrl-C may come when it has just begun
                self._fault = f"{what or half_way}: {self._reopen}"
                with contextlib.suppress(CheckpointError):
                    run("ROLLBACK")
            raise

    def _seal(self) -> None:
        for name, value in (("link", self.chain.link), ("tag", self._tag()), ("written", str(_now()))):
            self._set(name, value)

    def _tag(self) -> bytes:
        """Authenticate all that stands in tables: without the key nobody can."""
        secret = derive(self.key, f"state file {self.salt.hex()}", size=32)
        digests = (table.digest for table in self.tables.values())
        parts = (self.chain.link, repr(self._openings).encode(), self._saved, *digests)
        return hmac.digest(secret, digest_of_parts("all", *parts), "sha256")

    def append(self, step: int, time: str | float | None, row: bytes) -> None:
        """Append the next release, or a digest of it."""
        written = json.dumps(time)
        self._database.run("INSERT INTO releases VALUES (?, ?, ?)", (step, written, row))
        self.chain.add(written, row)

    def keep(self, state: bytes) -> None:
        """Save private content, in the place of what was saved before."""
        self._saved = digest_of_parts("state", state)
        self._database.run("INSERT OR REPLACE INTO state VALUES (1, ?)", (state,))

    def held(self) -> bytes | None:
        """Return the private content that was saved last, or None."""
        found = self._database.run("SELECT content FROM state")
        return bytes(found[0][0]) if found else None

    def check(self) -> None:
        """Refuse to go on in a fork, after a failure, or where the file was moved."""
        if os.getpid() != self._process:
            raise GuaranteeError(
                f"state file {self.path} was opened by process {self._process}, and process {os.getpid()} is"
                " a fork of it: open it in the process that uses it."
            )
        if self._fault:
            raise GuaranteeError(self._fault)
        self._file.check()

    def _set(self, name: str, value: str | bytes) -> None:
        self._database.run("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    @property
    def usable(self) -> bool:
        """Whether it is open in this process."""
        return self._ended.alive and os.getpid() == self._process

    def close(self) -> None:
        """Close the file and release its lock, all commits in the file itself."""
        self._fault = f"state file {self.path} is closed."
        self._ended()


def _end(database: Database, file: LockedFile, process: int) -> None:
    """Close a file that was open, also where nobody does who could, as when a process ends."""
    if os.getpid() != process:
        return
    folds = False
    try:
        with contextlib.suppress(CheckpointError):
            database.run("ROLLBACK")
        with contextlib.suppress(CheckpointError):
            # the last commit in the log: whoever folds that into the file does so as a whole
            database.run(_CLOSED, (str(_now()),))
            folds = True
        database.close(folds)
    finally:
        file.close()


def _now() -> int:
    """Seconds since 1970, to the minute: how long a step took may depend on what was in it."""
    return int(time.time()) // _MINUTE * _MINUTE


def opened(
    file: Callable[..., Any],
    memory: Callable[[bytes | None], Any],
    state: str | os.PathLike[str] | None,
    *,
    key: Key,
    adopt: bool,
    **of_run: Any,
) -> Any:
    """Open the state of a run: a `StateFile` at `state`, or its like in memory where no path is given.

    Raises:
        ValueError: for a key that is none, or `adopt` that is no bool.
        CheckpointError, GuaranteeError: as `StateFile`.
    """
    secret, adopt = key() if callable(key) else key, flag("adopt", adopt)
    return memory(secret) if state is None else file(state, key=secret, adopt=adopt, **of_run)
