"""Which units and batches a state file knows: sealed rows of tables, with a digest of all of them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from anechoic.keys import derive, derive_each
from anechoic.runs.database import Database
from anechoic.runs.multiset_hash import RowSum
from anechoic.runs.sealing import Sealer
from anechoic.units.ids import DIGEST

_AT_ONCE = 500  # parameters of one statement
_FEWEST = 64  # rows of a table that is not empty
_ACCOUNT, _STEP = 24, struct.Struct("<Q")  # bytes of an account: see `Ledger`


class Members:
    """Accounts of units, and steps of batches, in the tables `units` and `batches`.

    Attributes:
        units: accounts, by digest of the unit.

    Args:
        database: open; whoever calls begins and ends transactions.
        seal, key: of the file.
    """

    def __init__(self, database: Database, seal: Sealer, key: bytes) -> None:
        self.units = _Table(database, "units", _ACCOUNT, seal, key)
        self._batches = _Table(database, "batches", _STEP.size, seal, key)
        self._secret = derive(key, "batches", size=32)

    def checked(self, noted: Any) -> bool:
        """Whether the tables hold what `state` noted of them, from where they go on."""
        return self.units.checked(noted["units"]) and self._batches.checked(noted["batches"])

    @property
    def state(self) -> dict[str, Any]:
        """What stands for all rows; for the private part of the file."""
        return {"units": self.units.state, "batches": self._batches.state}

    def step_of(self, batch_id: str) -> int | None:
        """The step that a batch is part of, or None."""
        for held in self._batches.fetch([self._batch(batch_id)]).values():
            return int(_STEP.unpack(held)[0])
        return None

    def mark(self, batch_id: str, step: int) -> None:
        """Note that a batch is part of a step."""
        self._batches.write({self._batch(batch_id): _STEP.pack(step)})

    def _batch(self, batch_id: str) -> bytes:
        return derive(self._secret, batch_id, size=DIGEST)


class _Table:
    """Rows (keyed digest, sealed content), among as many for nobody as make their number a power of two.

    So the file does not show how many units there are, which may be the exact count that the stream publishes
    with noise. The sum of all rows finds damage: see `RowSum`.
    """

    def __init__(self, database: Database, name: str, size: int, seal: Sealer, key: bytes) -> None:
        self._database, self._name, self._size, self._seal = database, name, size, seal
        self._secret, self._count = derive(key, f"nobody {name}", size=32), 0
        self._sum = RowSum(database.each(f"SELECT id, sealed FROM {name}"))

    @property
    def state(self) -> list[Any]:
        return [self._count, self._sum.digest.hex()]

    def checked(self, noted: Any) -> bool:
        self._count = int(noted[0])
        return list(noted) == self.state

    def fetch(self, ids: Iterable[bytes]) -> dict[bytes, bytes]:
        return {digest: self._seal.open(self._named(digest), old) for digest, old in self._sealed(ids)}

    def write(self, contents: Mapping[bytes, bytes]) -> None:
        before = dict(self._sealed(contents))
        rows = {digest: self._seal.close(self._named(digest), held) for digest, held in contents.items()}
        filled, count = _rows(self._count), self._count + len(rows) - len(before)
        gone = self._nobody(range(self._count, min(count, filled)))
        before |= dict(self._sealed(gone))
        for nobody in self._nobody(range(max(count, filled), _rows(count))):
            rows[nobody] = self._seal.close(self._named(nobody), bytes(self._size))
        for row in before.items():
            self._sum.remove(row)
        for row in rows.items():
            self._sum.add(row)
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
