"""An SQLite file whose errors say what to do."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from anechoic.errors import CheckpointError

#: Seconds that one writer waits for another; readers wait for nobody, and nobody for them.
PATIENCE = 60.0

_REMEDIES = {
    sqlite3.SQLITE_BUSY: "another program is writing to it: end that one, and open the file again",
    sqlite3.SQLITE_LOCKED: "another program is writing to it: end that one, and open the file again",
    sqlite3.SQLITE_FULL: "make room on the disk, and open the file again; nothing that was released is lost",
    sqlite3.SQLITE_IOERR: (
        "the disk refuses to read or write (full, a limit on file sizes, or failing): mend that, and open the"
        " file again; nothing that was released is lost"
    ),
    sqlite3.SQLITE_READONLY: "it must be writable, and its folder too: change that, and open it again",
    sqlite3.SQLITE_CANTOPEN: "it must be there and writable, and its folder too: change that",
    sqlite3.SQLITE_PERM: "it must be writable, and its folder too: change that, and open it again",
}


class Database:
    """A connection in write-ahead mode, whose commits wait for the disk.

    Args:
        path: of the file.
        otherwise: what to do about damage.

    Raises:
        CheckpointError: from every method, where SQLite has an error, with the remedy.
    """

    def __init__(self, path: Path, otherwise: str) -> None:
        self.path, self._otherwise = path, otherwise
        with self._said():
            self._connection = sqlite3.connect(
                path, timeout=PATIENCE, isolation_level=None, check_same_thread=False
            )

    @property
    def log(self) -> Path:
        """What SQLite keeps beside the file while it is open: commits that are not in it yet."""
        return self.path.with_name(f"{self.path.name}-wal")

    def run(self, statement: str, values: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement, and all rows of its answer."""
        with self._said():
            return self._connection.execute(statement, tuple(values)).fetchall()

    def each(self, statement: str, values: Iterable[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """The rows of an answer, one by one."""
        with self._said():
            yield from self._connection.execute(statement, tuple(values))

    def many(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Run a statement for each of the rows."""
        with self._said():
            self._connection.executemany(statement, rows)

    def durable(self) -> None:
        """What is committed is on disk: one wait for it a commit. What is overwritten is gone."""
        mode = self.run("PRAGMA journal_mode=WAL")[0][0]
        if mode != "wal":
            raise CheckpointError(
                f"state file {self.path} lies where SQLite cannot keep a log beside it (journal {mode!r}):"
                " put it on a local disk."
            )
        self.run("PRAGMA synchronous=FULL")
        self.run("PRAGMA secure_delete=ON")

    def fold(self) -> bool:
        """Bring what is in the log into the file, and whether that was done: not beside a reader."""
        busy, frames, done = self.run("PRAGMA wal_checkpoint(PASSIVE)")[0]
        return not busy and frames == done

    def close(self, last: str | None = None) -> None:
        """Give the file back.

        Args:
            last: a statement that is true of the file once it holds all that was committed. It is the last
                in the log: whoever folds that into the file, another program with it open or this one, does
                so as a whole. Where it fails, as on a full disk, the log stays (from Python 3.12 on).
        """
        done = False
        if last is not None:
            with contextlib.suppress(CheckpointError):
                if self._connection.in_transaction:
                    self.run("ROLLBACK")
                self.run(last)
                done = self.fold()
        keep = getattr(sqlite3, "SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE", None)  # from Python 3.12 on
        if not done and keep is not None:
            self._connection.setconfig(keep, True)  # type: ignore[attr-defined,unused-ignore]
        with self._said():
            self._connection.close()

    @contextlib.contextmanager
    def _said(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
            remedy = _REMEDIES.get(code, f"it is damaged, or no such file. {self._otherwise}")
            raise CheckpointError(f"state file {self.path}: {error}: {remedy}") from error
