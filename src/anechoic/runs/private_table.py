"""Private rows of a state file by digest, with a digest of all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from anechoic.runs.database import Database

_AT_ONCE = 500  # parameters of one statement
_MODULUS = 2**256


class PrivateTable:
    """Rows (keyed digest, content) of one table.

    The sum of the SHA-256 of all rows, modulo 2**256, finds damage, and a change costs no pass over the
    others.

    Args:
        database: open; whoever calls begins and ends transactions.
        name: of the table.
    """

    def __init__(self, database: Database, name: str) -> None:
        self._database, self._name = database, name
        self._sum = _sum(database.each(f"SELECT id, content FROM {name}"))

    @property
    def digest(self) -> bytes:
        """Return the digest of all rows."""
        return self._sum.to_bytes(32, "little")

    def all(self) -> dict[bytes, bytes]:
        """Return all contents, by digest."""
        return dict(self._database.run(f"SELECT id, content FROM {self._name}"))

    def fetch(self, ids: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the contents of those of `ids` that there are."""
        return dict(self._rows(ids))

    def write(self, contents: Mapping[bytes, bytes]) -> None:
        """Write rows in the place of those before."""
        contents = {bytes(digest): bytes(content) for digest, content in contents.items()}
        self._sum = (self._sum - _sum(self._rows(contents)) + _sum(contents.items())) % _MODULUS
        self._database.many(f"INSERT OR REPLACE INTO {self._name} VALUES (?, ?)", contents.items())

    def _rows(self, ids: Iterable[bytes]) -> Iterator[tuple[Any, ...]]:
        wanted = list(ids)
        for start in range(0, len(wanted), _AT_ONCE):
            some = wanted[start : start + _AT_ONCE]
            marks = ",".join("?" * len(some))
            yield from self._database.run(f"SELECT id, content FROM {self._name} WHERE id IN ({marks})", some)


def _sum(rows: Iterable[tuple[Any, ...]]) -> int:
    digests = (hashlib.sha256(repr(row).encode()).digest() for row in rows)
    return sum(int.from_bytes(digest, "little") for digest in digests) % _MODULUS
