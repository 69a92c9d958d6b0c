"""SQLite file whose errors name a remedy."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from anechoic.errors import CheckpointError

#: Seconds that one writer waits for another; readers wait for nobody, and nobody for them.
PATIENCE = 60.0

_REMEDIES = {
    **dict.fromkeys(
        (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED),
        "another program is writing to it: end that one, and open the file again (on a network file system:"
        " put it on a local disk)",
    ),
    sqlite3.SQLITE_FULL: "make room on the disk, and open the file again; nothing that was released is lost",
    sqlite3.SQLITE_IOERR: (
        "the disk refuses to read or write (full, a limit on file sizes, or failing): mend that, and open the"
        " file again; nothing that was released is lost"
    ),
    sqlite3.SQLITE_READONLY: "it must be writable, and its folder too: change that, and open it again",
    sqlite3.SQLITE_CANTOPEN: "it must be there and writable, and its folder too: change that",
    sqlite3.SQLITE_PERM: "it must be writable, and its folder too: change that, and open it again",
}


def source_of(path: Path, still: bool = False) -> str:
    """The URI under which SQLite reads a file, and changes nothing; without its log if it is `still`."""
    # a closed file where nobody can write: SQLite would not find a place for what it keeps beside it
    still = still or (not log_of(path).exists() and not os.access(path.parent, os.W_OK))
    return f"file:{quote(str(path))}?mode=ro{'&immutable=1' if still else ''}"


def log_of(path: Path) -> Path:
    """Return SQLite's log beside an open file: commits that are not in it yet."""
    return path.with_name(f"{path.name}-wal")


class Database:
    """A connection in write-ahead mode, whose commits wait for the disk.

    Args:
        path: of the file.
        otherwise: what to do about damage.

    Attributes:
        log: see `log_of`.
        waits: see `wait`.

    Raises:
        CheckpointError: from every method, where SQLite has an error, with the remedy.
    """

    def __init__(self, path: Path, otherwise: str) -> None:
        self.path, self.log, self._otherwise = path, log_of(path), otherwise
        self.waits: bool | None = None
        with self._said():
            self._connection = sqlite3.connect(
                path, timeout=PATIENCE, isolation_level=None, check_same_thread=False
            )

    def run(self, statement: str, values: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement, and all rows of its answer."""
        with self._said():
            return self._connection.execute(statement, tuple(values)).fetchall()

    def each(self, statement: str, values: Iterable[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of an answer."""
        with self._said():
            # a loop of its own: an answer that nobody reads to its end is left, and not closed after its file
            for row in self._connection.execute(statement, tuple(values)):  # noqa: UP028
                yield row

    def many(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Run a statement for each of the rows."""
        with self._said():
            self._connection.executemany(statement, rows)

    @property
    def version(self) -> int:
        """Version of the data: it changes with every commit of somebody else."""
        return int(self.run("PRAGMA data_version")[0][0])

    def durable(self) -> None:
        """Wait for the disk once a commit."""
        mode = self.run("PRAGMA journal_mode=WAL")[0][0]
        if mode != "wal":
            raise CheckpointError(
                f"state file {self.path} lies where SQLite cannot keep a log beside it (journal {mode!r}):"
                " put it on a local disk."
            )
        self.wait(True)

    def wait(self, waits: bool) -> None:
        """Whether commits wait for the disk, with all before them, or are safe from kills alone."""
        if waits != self.waits:
            self.run(f"PRAGMA synchronous={'FULL' if waits else 'NORMAL'}")
            self.waits = waits

    def fold(self) -> None:
        """Move the log into the file, as far as no reader needs it."""
        self.run("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self, folds: bool = True) -> None:
        """Close the file; `folds` moves the log into it, else it stays beside it.

        Who closes a file last does so, but for one who may only read.
        """
        with contextlib.ExitStack() as stack:
            if not folds:
                with contextlib.suppress(sqlite3.Error):
                    reader = sqlite3.connect(source_of(self.path), uri=True)
                    stack.callback(reader.close)
                    reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
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
