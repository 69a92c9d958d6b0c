"""Private rows of a state file by digest: sealed one by one, with a digest of all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from anechoic.keys import derive, derive_each
from anechoic.runs.database import Database
from anechoic.runs.sealing import Sealer
from anechoic.units.ids import DIGEST

_AT_ONCE = 500  # parameters of one statement
_MODULUS = 2**256
_FEWEST = 64  # rows of a table that is not empty


class SealedTable:
    """Rows (keyed digest, sealed content), among as many for nobody as make their number a power of two.

    So the file does not show how many there are, which may be the exact count that is published with noise.
    The sum of the SHA-256 of all rows, modulo 2**256, finds damage, and seals nothing: it is kept sealed.

    Args:
        database: open; whoever calls begins and ends transactions.
        name: of the table.
        size: bytes of a content.
        seal, key: of the file.
    """

    def __init__(self, database: Database, name: str, size: int, seal: Sealer, key: bytes) -> None:
        self._database, self._name, self._size, self._seal = database, name, size, seal
        self._secret, self._count = derive(key, f"nobody {name}", size=32), 0
        self._sum = _sum(database.each(f"SELECT id, sealed FROM {name}"))

    @property
    def state(self) -> list[Any]:
        """What stands for all rows; for the private part of the file."""
        return [self._count, f"{self._sum:064x}"]

    def checked(self, noted: Any) -> bool:
        """Whether the table holds what `state` noted of it, from where it goes on."""
        self._count = int(noted[0])
        return list(noted) == self.state

    def all(self) -> dict[bytes, bytes]:
        """All contents, by digest."""
        nobody = set(self._nobody(range(self._count, _rows(self._count))))
        return {
            digest: self._seal.open(self._named(digest), sealed)
            for digest, sealed in self._database.each(f"SELECT id, sealed FROM {self._name}")
            if digest not in nobody
        }

    def fetch(self, ids: Iterable[bytes]) -> dict[bytes, bytes]:
        """Contents of those of `ids` that there are."""
        return {digest: self._seal.open(self._named(digest), old) for digest, old in self._sealed(ids)}

    def write(self, contents: Mapping[bytes, bytes]) -> None:
        """Keep these in the place of those before."""
        before = dict(self._sealed(contents))
        rows = {digest: self._seal.close(self._named(digest), held) for digest, held in contents.items()}
        filled, count = _rows(self._count), self._count + len(rows) - len(before)
        gone = self._nobody(range(self._count, min(count, filled)))
        before |= dict(self._sealed(gone))
        for nobody in self._nobody(range(max(count, filled), _rows(count))):
            rows[nobody] = self._seal.close(self._named(nobody), bytes(self._size))
        self._sum = (self._sum - _sum(before.items()) + _sum(rows.items())) % _MODULUS
        self._count = count
        self._database.many(f"DELETE FROM {self._name} WHERE id = ?", ((digest,) for digest in gone))
        self._database.many(f"INSERT OR REPLACE INTO {self._name} VALUES (?, ?)", rows.items())

    def _sealed(self, ids: Iterable[bytes]) -> Iterator[tuple[Any, ...]]:
        wanted = list(ids)
        for start in range(0, len(wanted), _AT_ONCE):
            some = wanted[start : start + _AT_ONCE]
            query = f"SELECT id, sealed FROM {self._name} WHERE id IN ({','.join('?' * len(some))})"
            yield from self._database.run(query, some)

    def _nobody(self, places: range) -> list[bytes]:
        return derive_each(self._secret, "row", places, size=DIGEST)

    def _named(self, digest: bytes) -> bytes:
        return self._name.encode() + digest


def _rows(count: int) -> int:
    """Rows of a table with so many that stand for somebody."""
    return max(_FEWEST, 1 << (count - 1).bit_length()) if count else 0


def _sum(rows: Iterable[tuple[Any, ...]]) -> int:
    """Of all rows, in any order; of a change it costs no pass over the others."""
    digests = (hashlib.sha256(repr(row).encode()).digest() for row in rows)
    return sum(int.from_bytes(digest, "little") for digest in digests) % _MODULUS
