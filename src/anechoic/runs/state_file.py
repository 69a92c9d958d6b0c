"""The state of a run as one SQLite file: every change is there as a whole, once, or not at all.

A process that is killed leaves the file before a transaction or after it. What a transaction says is on disk
when it ends; so whatever is shown to anybody after it can be found again, and what was lost before it was
seen by nobody.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from anechoic._validate import flag
from anechoic.errors import AnechoicError, CheckpointError, GuaranteeError, ReplayError
from anechoic.keys import derive
from anechoic.runs import sealing
from anechoic.runs.database import Database
from anechoic.runs.exclusive_file import HeldFile
from anechoic.runs.file_head import MECHANISM, FileHead, closed
from anechoic.runs.releases import ROWS, ReleaseChain, digest_of_parts, reading
from anechoic.runs.rollback_counter import Counter
from anechoic.runs.sealed_table import SealedTable
from anechoic.runs.sealing import Sealer, filled

#: 32 secret bytes, or a function that gives them when they are needed; None for fresh ones.
Key = bytes | Callable[[], bytes] | None

_SCHEMA = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE openings (first INTEGER PRIMARY KEY, salt BLOB NOT NULL)",
    "CREATE TABLE releases (step INTEGER PRIMARY KEY, time TEXT NOT NULL, row BLOB NOT NULL)",
    "CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), sealed BLOB NOT NULL)",
)
_OPENINGS = "SELECT first, salt FROM openings"
_TABLE = "CREATE TABLE {} (id BLOB PRIMARY KEY, sealed BLOB NOT NULL) WITHOUT ROWID"


class StateFile:
    """A state file, open for this process alone, for releases, private state, and tables of a subclass.

    Guarantee: as long as all processes use this one file, each row of noise belongs to one release. A second
    process under whatever name of the file, a fork, a copy, a file with a second name (hard link), one moved
    while it is open, one of another identity or key, one that was changed a minute or more after its last
    commit, and damaged content are refused. Every opening commits a salt of its own before a row of noise is
    drawn, and rows from there on follow from it (but those of torch, which follow from the key alone): where
    an older version of the file is put back within that minute, or a copy goes on, rows that were released
    before are not drawn again, and what that costs is one more release with independent noise. It is seen
    where a `counter` is given, a path outside of what is backed up together with it; once given, the file
    cannot be opened without it.

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
        adopt: take a file that was moved, copied or put back, or is without its log or its counter, on the
            caller's word that it is the newest and that no other copy is continued.

    Attributes:
        path: without symbolic links.
        key, salt: of the file.
        seal: for what is private.
        openings: from which row of noise on which salt holds.
        chain: of the releases.
        tables: private rows by digest, by name of the table.
        commits: transactions so far.
        kept: releases that are there for good: on disk, and counted.

    Raises:
        CheckpointError: if the file is damaged, or SQLite cannot use it.
        GuaranteeError: if another process has it open.
        MismatchError: if it belongs to another run, or was made with another key.
        ReplayError: if it was copied, or an older version was put back.
    """

    #: What such a file is of, the version of its tables, what it shows besides its identity, and bytes of a
    #: row of its private tables, by name.
    KIND: ClassVar[str]
    FORMAT: ClassVar[int]
    SHOWN: ClassVar[tuple[str, ...]] = (MECHANISM,)
    TABLES: ClassVar[dict[str, int]] = {}
    #: What to do: where a run cannot go on; after a change that may have failed or not; and with a file of
    #: another identity.
    NEW_RUN: ClassVar[str]
    AGAIN: ClassVar[str]
    OTHERWISE: ClassVar[str]

    openings: list[tuple[int, bytes]]
    tables: dict[str, SealedTable]

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
        self.path = Path(os.path.realpath(path))
        self._process = os.getpid()
        self._fault = ""
        self._counter = None if counter is None else Counter(Path(counter))
        if counter is not None and Path(os.path.realpath(counter)) == self.path:
            raise ValueError(f"counter={counter} is the state file itself: put it elsewhere.")
        self._reopen = f"open the file again, and {self.AGAIN}."
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
        self.kept = self.made
        self._ended = weakref.finalize(self, _end, self._database, self._file, self.seal, self._process)

    @classmethod
    def shown(cls, path: str | os.PathLike[str], name: str) -> str | None:
        """What the file at `path` shows under `name`, without its key or lock; None where it shows nothing.

        Who opens the file checks it. Its log is left alone: SQLite, as root, changes when that was changed.
        """
        with contextlib.suppress(CheckpointError), reading(path, cls, still=True) as (said, *_):
            return str(said[name])
        return None

    @property
    def made(self) -> int:
        """Releases in the file."""
        return self.chain.made

    def _admitted(self) -> int:
        """The first row of noise that the next release needs, of a file that may go on."""
        return self.made

    # -- opening -------------------------------------------------------------------------------

    def _open(self, identity: str, shown: dict[str, str], key: bytes | None, adopt: bool) -> None:
        head = FileHead(type(self), self._database)
        if head.fresh:
            self._database.durable()
            self._create(head, identity, shown, key)
        head.check(identity, shown, self._file.place, adopt=adopt)
        self._database.durable()
        self.identity = identity
        try:
            if not head.fresh:
                self._read(head, key)
            private = self._opened(head.said["private"])
            if private["openings"] != self._openings_digest:
                raise self._two_states()
            self.commits, self._counted = int(private["commits"]), bool(private["counted"])
            self._saved = str(private["state"])
            for name, table in self.tables.items():
                if not table.checked(private["members"][name]):
                    raise CheckpointError(
                        f"the accounts of {name} in state file {self.path} are damaged, so who took part"
                        f" cannot be told. {self.NEW_RUN}"
                    )
            if not adopt:
                head.check_changed(private.get("time"), self.seal)
        except AnechoicError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise head.foreign(error) from error
        if self._counter is not None:
            self._counter.check(self._identity_mark(), self.commits, adopt or not self._counted)
        elif self._counted:
            raise ReplayError(
                f"state file {self.path} was run with a counter, without which an older version of it could"
                " not be told from the newest: give counter, the path of that file. If it is lost, and this"
                " is the newest version, name a new one and say adopt=True."
            )
        first = self._admitted()
        with self._written():
            self._begin_opening(first)
        self._version = self._database.version
        self._database.fold()  # so that the file itself says that it was not closed

    def _begin_opening(self, first: int) -> None:
        """From row `first` on noise is drawn with a salt that nobody had before."""
        salt = sealing.new_salt()
        kept = [entry for entry in self.openings if entry[0] < first]  # of rows that were released
        self._set_openings([*kept, (first, salt)])
        self._database.run("DELETE FROM openings WHERE first >= ?", (first,))
        self._database.run("INSERT INTO openings VALUES (?, ?)", (first, salt))
        self._counted |= self._counter is not None
        self._set("place", self._file.place)
        self._set("closed", "0")
        self._write_private(self.commits)

    def _read(self, head: FileHead, key: bytes | None) -> None:
        """The key, and all that stands in tables."""
        self.key, self.salt = head.key(key), bytes(head.said["salt"])
        self.seal = Sealer(self.key, self.salt)
        self._set_openings([(int(first), bytes(salt)) for first, salt in self._database.run(_OPENINGS)])
        self.chain = ReleaseChain(type(self), self.path, head.said)
        for _ in self.chain.read(self._database.each(ROWS)):
            pass
        self.tables: dict[str, SealedTable] = {
            name: SealedTable(self._database, name, size, self.seal, self.key)
            for name, size in self.TABLES.items()
        }

    def _create(self, head: FileHead, identity: str, shown: dict[str, str], key: bytes | None) -> None:
        self.commits, self._counted, self._saved = 0, False, ""
        with self._written():
            for statement in (*_SCHEMA, *map(_TABLE.format, self.TABLES)):
                self._database.run(statement)
            head.begin(identity, shown, self._file.place, key)
            self._read(head, key)
            self._write_private(0)

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
        self.check()
        with self._written():
            if self._database.version != self._version:
                raise GuaranteeError(
                    f"state file {self.path} was changed by somebody else since this process opened it: two"
                    " writers would use the same rows of noise. End this process; only one may go on."
                )
            yield
            self._write_private(self.commits + 1)
            # from here on, should it be interrupted: Ctrl-C may come when all is written
            self._fault = f"state file {self.path} was written, what goes with it may not be: {self._reopen}"
        self.commits += 1
        if self._counter is not None:
            self._counter.write(self._identity_mark(), self.commits)
        self.kept, self._fault = self.made, ""

    @contextlib.contextmanager
    def _written(self) -> Iterator[None]:
        run = self._database.run
        begun = False
        try:
            run("BEGIN IMMEDIATE")
            begun = True
            yield
        except BaseException as error:
            if begun or not isinstance(error, CheckpointError):  # Ctrl-C may come when it has just begun
                what = f"a change of state file {self.path} failed half-way, and memory is ahead of it"
                self._fault = f"{what}: {self._reopen}"
                with contextlib.suppress(CheckpointError):
                    run("ROLLBACK")
            raise
        try:
            run("COMMIT")
        except BaseException:
            what = f"whether the last change of state file {self.path} was written is not known"
            self._fault = f"{what}: {self._reopen}"
            with contextlib.suppress(CheckpointError):
                run("ROLLBACK")
            raise

    def _write_private(self, commits: int) -> None:
        """Seal what stands for all tables after so many commits."""
        private = {
            "commits": commits,
            "counted": self._counted,
            "openings": self._openings_digest,
            "members": {name: table.state for name, table in self.tables.items()},
            "state": self._saved,
            "time": time.time_ns(),
        }
        self._set("link", self.chain.link)
        self._set("private", self.seal.close(self._name(), filled(json.dumps(private))))

    def _opened(self, sealed: Any) -> dict[str, Any]:
        try:
            return dict(json.loads(self.seal.open(self._name(), sealed)))
        except CheckpointError as error:
            raise self._two_states() from error

    def _two_states(self) -> CheckpointError:
        log = self._database.log.name
        return CheckpointError(
            f"state file {self.path} is damaged, or holds parts of two states: what it shows and what is"
            f" sealed in it differ. Put back the file and its log {log} as they were; else: {self.NEW_RUN}"
        )

    def _name(self) -> bytes:
        return digest_of_parts("private", self.chain.link)

    def _set_openings(self, openings: list[tuple[int, bytes]]) -> None:
        self.openings, self._openings_digest = openings, digest_of_parts(repr(openings)).hex()

    # -- content -------------------------------------------------------------------------------

    def append(self, step: int, time: str | float | None, row: bytes) -> None:
        """What was released, or a digest of it, as the next release."""
        written = json.dumps(time)
        self._database.run("INSERT INTO releases VALUES (?, ?, ?)", (step, written, row))
        self.chain.add(written, row)

    def keep(self, state: bytes) -> None:
        """Private content, in the place of what was kept before."""
        sealed = self.seal.close(b"state", state)
        self._saved = digest_of_parts("state", sealed).hex()
        self._database.run("INSERT OR REPLACE INTO state VALUES (1, ?)", (sealed,))

    def held(self) -> bytes | None:
        """What was kept last, or None.

        Raises:
            CheckpointError: if that is damaged.
        """
        found = self._database.run("SELECT sealed FROM state")
        if not found and not self._saved:
            return None
        sealed = bytes(found[0][0]) if found else b""
        if digest_of_parts("state", sealed).hex() != self._saved:
            raise CheckpointError(
                f"the open step in state file {self.path} is damaged or of another time. {self.NEW_RUN}"
            )
        return self.seal.open(b"state", sealed)

    def check(self) -> None:
        """Refuse to go on in a fork, after a failure, or where the file was moved.

        Raises:
            GuaranteeError: with the remedy.
        """
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
        """Give the file and its lock back, all commits in the file itself."""
        self._fault = f"state file {self.path} is closed."
        self._ended()


def _end(database: Database, file: HeldFile, seal: Sealer, process: int) -> None:
    """Close a file that was open, also where nobody does who could, as when a process ends."""
    if os.getpid() == process:
        try:
            database.close(partial(closed, seal))
        finally:
            file.close()


def opened(
    file: Callable[..., Any],
    memory: Callable[[bytes | None], Any],
    state: str | os.PathLike[str] | None,
    *,
    key: Key,
    counter: str | os.PathLike[str] | None,
    adopt: bool,
    **of_run: Any,
) -> Any:
    """The state of a run: in the file at `state`, or in memory where no path is given.

    Args:
        file: a `StateFile`, which is given key, counter, adopt and `of_run` too.
        memory: its like without a file, which is given the key.

    Raises:
        ValueError: for a counter without a state, a key that is none, or `adopt` that is no bool.
        CheckpointError, GuaranteeError: as `StateFile`.
    """
    secret, adopt = key() if callable(key) else key, flag("adopt", adopt)
    if state is not None:
        return file(state, key=secret, counter=counter, adopt=adopt, **of_run)
    if counter is not None:
        raise ValueError(f"counter={counter} without state: give state, the path of what it counts for.")
    return memory(secret)
