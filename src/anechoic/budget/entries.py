"""Where the entries of a book are kept: an SQLite file, or a PostgreSQL database; one writer at a time.

Entries are only added. Each has a link, a digest of its text and of the link before it: whoever changes or
takes out an entry has to write all links after it anew, and cannot without the key, where there is one.
That the last entries are missing, as in an older copy of the file, is not seen.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anechoic.errors import AnechoicError, CheckpointError
from anechoic.runs.database import Database

_TABLE = (
    "CREATE TABLE IF NOT EXISTS budget (place INTEGER PRIMARY KEY, body TEXT NOT NULL, link TEXT NOT NULL)"
)
_START = "anechoic budget 1"
_DAMAGED = "Take the last whole copy of the book, and enter what was spent since"
_LOCK = 6_022_140_760  # of PostgreSQL's advisory locks: the book's

#: A statement with ? for its values, to the rows of its answer.
Run = Callable[..., list[tuple[Any, ...]]]


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
    def open(self) -> Iterator[tuple[list[dict[str, Any]], Callable[[dict[str, Any]], None]]]:
        """All entries, and what adds one; nobody else writes meanwhile. What was added is kept at the end.

        Raises:
            CheckpointError: for a book that was edited or made with another key, and where it cannot be used.
        """
        with self._postgres() if self.remote else self._sqlite() as run:
            run(_TABLE)
            rows = run("SELECT place, body, link FROM budget ORDER BY place")
            link, entries = _START, []
            for number, (place, body, stored) in enumerate(rows):
                link = self._link(link, body)
                if place != number or not hmac.compare_digest(link, str(stored)):
                    raise CheckpointError(
                        f"entry {number} of the budget book {self.name} is not what was written, or the book"
                        f" was made with another key: what was spent cannot be told. {_DAMAGED}."
                    )
                entries.append(json.loads(body))
            self._last = link

            def add(entry: dict[str, Any]) -> None:
                body = json.dumps(entry, sort_keys=True, allow_nan=False)
                link = self._link(self._last, body)
                run("INSERT INTO budget VALUES (?, ?, ?)", (len(entries), body, link))
                entries.append(entry)
                self._last = link

            self.end = f"{len(entries)} entries, the last is {link[:32]}"
            yield entries, add

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
