"""Entries of a book in an SQLite file or a PostgreSQL database; one writer at a time.

Entries are only added. Each has a link, a digest of its text and of the link before it: whoever changes or
takes out an entry has to write all links after it anew, and cannot without the key, where there is one.
That the last entries are missing, as in an older copy of the file, is not seen. Beside them stands how far
each run is, which is written over with every release.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from anechoic.errors import AnechoicError, CheckpointError
from anechoic.runs.database import Database
from anechoic.runs.state_file import StateFile

_TABLES = (
    "CREATE TABLE IF NOT EXISTS budget (place INTEGER PRIMARY KEY, body TEXT NOT NULL, link TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS progress (token TEXT PRIMARY KEY, body TEXT NOT NULL, link TEXT NOT NULL)",
)
_NOTE = (
    "INSERT INTO progress VALUES (?, ?, ?)"
    " ON CONFLICT (token) DO UPDATE SET body = excluded.body, link = excluded.link"
)
_START = "anechoic budget 1"
_DAMAGED = "Take the last whole copy of the book, and enter what was spent since"
_LOCK = 6_022_140_760  # of PostgreSQL's advisory locks: the book's

#: A statement with ? for its values, to the rows of its answer.
Run = Callable[..., list[tuple[Any, ...]]]


@dataclass(frozen=True)
class RunProgress:
    """Releases of a run that were about to be made and that its state holds, and the opening that goes on."""

    opening: str = ""  # see `StateFile.opened_by`; "" for a run without a state
    begun: int = 0
    done: int = 0

    def fault(self, state: StateFile | None) -> str:
        """Say why an open state, or none, is not the newest of this run, or "".

        A state that lacks releases that were begun and not done goes on: the process was ended in between,
        and nobody saw them. One that is adopted may be older.
        """
        if state is None:
            return "" if self == RunProgress() else "spent"
        if self.opening not in state.opened_by():
            if not self.begun:
                return ""  # nothing was released
            return "this is not its newest state: another opening of it, or of a copy, went on"
        least = self.begun if state.adopted else self.done
        if state.steps < least:
            return f"this is not its newest state: {least} releases were made, and it holds {state.steps}"
        return ""


class BookLocation:
    """Location of a book.

    Args:
        place: path of a file; or the address of a database, postgresql://…
        key: secret bytes under which links are made, or None.
    """

    def __init__(self, place: str, key: bytes | None) -> None:
        self.place, self._key = place, key or _START.encode()
        self.remote = place.startswith(("postgresql://", "postgres://"))

    @property
    def name(self) -> str:
        """Name for people: an address without its password."""
        return "in PostgreSQL" if self.remote else self.place

    @contextmanager
    def open(self) -> Iterator[BookEntries]:
        """Open the book; nobody else writes meanwhile. All that was added is kept at the end, or nothing.

        Raises:
            CheckpointError: where it cannot be used.
        """
        with self._postgres() if self.remote else self._sqlite() as run:
            yield BookEntries(run, self)

    def link(self, before: str, body: str) -> str:
        """Return the digest of a text and of what comes before it."""
        return hmac.digest(self._key, f"{before}\n{body}".encode(), "sha256").hex()

    @contextmanager
    def _sqlite(self) -> Iterator[Run]:
        # a connection for each change, so that no fork or thread meets another's
        database = Database(Path(self.place), _DAMAGED)
        try:
            database.run("PRAGMA synchronous=EXTRA")  # a power cut takes nothing back
            database.run("BEGIN IMMEDIATE")
            try:
                yield database.run
            except BaseException:
                database.run("ROLLBACK")
                raise
            database.run("COMMIT")
        finally:
            database.close()

    @contextmanager
    def _postgres(self) -> Iterator[Run]:
        try:
            import psycopg
        except ImportError as error:
            needed = "a budget book in PostgreSQL needs psycopg: pip install 'anechoic[postgres]'"
            raise AnechoicError(needed) from error
        try:
            with psycopg.connect(self.place) as connection:
                # a statement after the lock sees all that was committed before it
                connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
                connection.execute("SET LOCAL synchronous_commit = on")
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))

                def run(statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
                    found = connection.execute(statement.replace("?", "%s"), values)
                    return found.fetchall() if found.description else []

                yield run
        except psycopg.Error as error:
            raise CheckpointError(f"the budget book {self.name}: {error}") from error


class BookEntries:
    """Entries of an open book; methods raise CheckpointError for one that was edited, or of another key."""

    def __init__(self, run: Run, place: BookLocation) -> None:
        self._run, self._place, self._link, self._count = run, place, _START, 0
        for table in _TABLES:
            run(table)

    def all(self) -> list[dict[str, Any]]:
        """Return all entries; `add` is for after that."""
        found = []
        for number, body, link in self._run("SELECT place, body, link FROM budget ORDER BY place"):
            self._link = self._place.link(self._link, body)
            self._check(number == self._count and link == self._link, f"entry {self._count}")
            self._count += 1
            found.append(json.loads(body))
        return found

    def add(self, entry: dict[str, Any]) -> None:
        """Add an entry."""
        body = json.dumps(entry, sort_keys=True, allow_nan=False)
        self._link = self._place.link(self._link, body)
        self._run("INSERT INTO budget VALUES (?, ?, ?)", (self._count, body, self._link))
        self._count += 1

    @property
    def end(self) -> str:
        """Return the number of entries, and the link of the last."""
        return f"{self._count} entries, the last is {self._link[:32]}"

    def progress(self, token: str) -> RunProgress:
        """Return the progress of a run."""
        for body, link in self._run("SELECT body, link FROM progress WHERE token = ?", (token,)):
            self._check(link == self._place.link(token, body), f"the progress of run {token}")
            return RunProgress(**json.loads(body))
        return RunProgress()

    def note(self, token: str, progress: RunProgress) -> None:
        """Write the progress of a run."""
        body = json.dumps(asdict(progress))
        self._run(_NOTE, (token, body, self._place.link(token, body)))

    def _check(self, right: bool, what: str) -> None:
        if not right:
            raise CheckpointError(
                f"{what} of the budget book {self._place.name} is not what was written, or the book was made"
                f" with another key: what was spent cannot be told. {_DAMAGED}."
            )
