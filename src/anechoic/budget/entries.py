"""Where a book is kept: an SQLite file, or a PostgreSQL database; one writer at a time.

Entries are only added. Each has a link, a digest of its text and of the link before it: whoever changes or
takes out an entry has to write all links after it anew, and cannot without the key, where there is one.
That the last entries are missing, as in an older copy of the file, is not seen.

Beside them each run has a mark: how far it is. That is written over with every release.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from anechoic.errors import AnechoicError, CheckpointError
from anechoic.runs.database import Database

_TABLE = (
    "CREATE TABLE IF NOT EXISTS budget (place INTEGER PRIMARY KEY, body TEXT NOT NULL, link TEXT NOT NULL)"
)
_MARKS = "CREATE TABLE IF NOT EXISTS marks (token TEXT PRIMARY KEY, body TEXT NOT NULL, link TEXT NOT NULL)"
_SET = (
    "INSERT INTO marks VALUES (?, ?, ?)"
    " ON CONFLICT (token) DO UPDATE SET body = excluded.body, link = excluded.link"
)
_START = "anechoic budget 1"
_DAMAGED = "Take the last whole copy of the book, and enter what was spent since"
_LOCK = 6_022_140_760  # of PostgreSQL's advisory locks: the book's

#: A statement with ? for its values, to the rows of its answer.
Run = Callable[..., list[tuple[Any, ...]]]


@dataclass(frozen=True)
class Mark:
    """How far a run with a state is.

    Attributes:
        opening: name of the opening of its state that goes on; "" for a run without one.
        step: releases made.
        done: whether the state holds them all; False from before the last one until after it.
    """

    opening: str
    step: int = 0
    done: bool = True


class Marks:
    """The marks of all runs, by token, inside of a transaction."""

    def __init__(
        self, run: Run, link: Callable[[str, str], str], edited: Callable[[str], CheckpointError]
    ) -> None:
        self._run, self._link, self._edited = run, link, edited
        run(_MARKS)

    def get(self, token: str) -> Mark:
        """Return the mark of a run, or that of a run without a state.

        Raises:
            CheckpointError: for one that was edited.
        """
        for body, link in self._run("SELECT body, link FROM marks WHERE token = ?", (token,)):
            if not hmac.compare_digest(self._link(token, body), str(link)):
                raise self._edited(f"the mark of run {token}")
            return Mark(**json.loads(body))
        return Mark("")

    def set(self, token: str, mark: Mark) -> None:
        """Write a mark in the place of the one before."""
        body = json.dumps(asdict(mark))
        self._run(_SET, (token, body, self._link(token, body)))


class Entries:
    """The entries of one book.

    Args:
        place: path of a file; or the address of a database, postgresql://…
        key: secret bytes under which links are made, or None.
    """

    def __init__(self, place: str, key: bytes | None) -> None:
        self.place, self._key = place, key
        self.end, self._last = "", ""
        self.remote = place.startswith(("postgresql://", "postgres://"))

    @contextmanager
    def open(self) -> Iterator[tuple[list[dict[str, Any]], Callable[[dict[str, Any]], None], Marks]]:
        """All entries, what adds one, and the marks; nobody else writes meanwhile. It is kept at the end.

        Raises:
            CheckpointError: for a book that was edited or made with another key, and where it cannot be used.
        """
        with self.transaction() as run:
            run(_TABLE)
            rows = run("SELECT place, body, link FROM budget ORDER BY place")
            link, entries = _START, []
            for number, (place, body, stored) in enumerate(rows):
                link = self._link(link, body)
                if place != number or not hmac.compare_digest(link, str(stored)):
                    raise self._edited(f"entry {number}")
                entries.append(json.loads(body))
            self._last = link

            def add(entry: dict[str, Any]) -> None:
                body = json.dumps(entry, sort_keys=True, allow_nan=False)
                link = self._link(self._last, body)
                run("INSERT INTO budget VALUES (?, ?, ?)", (len(entries), body, link))
                entries.append(entry)
                self._last = link

            self.end = f"{len(entries)} entries, the last is {link[:32]}"
            yield entries, add, Marks(run, self._link, self._edited)

    @contextmanager
    def marks(self) -> Iterator[Marks]:
        """The marks alone, without a look at the entries.

        Raises:
            CheckpointError: as `open`.
        """
        with self.transaction() as run:
            yield Marks(run, self._link, self._edited)

    def _edited(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{what} of the budget book {self.name} is not what was written, or the book was made with"
            f" another key: what was spent cannot be told. {_DAMAGED}."
        )

    def transaction(self) -> AbstractContextManager[Run]:
        """What runs a statement; all of them are kept at the end, or none."""
        return self._postgres() if self.remote else self._sqlite()

    @property
    def name(self) -> str:
        """For people: without what an address may hold of a password."""
        return "in PostgreSQL" if self.remote else self.place

    def _link(self, before: str, body: str) -> str:
        text = f"{before}\n{body}".encode()
        return (
            hmac.new(self._key, text, "sha256").hexdigest() if self._key else hashlib.sha256(text).hexdigest()
        )

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
            raise AnechoicError(
                "a budget book in PostgreSQL needs psycopg, which is not installed: pip install"
                " 'anechoic[postgres]'"
            ) from error
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
