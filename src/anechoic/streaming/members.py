"""Which units and batches a state file knows: sealed rows of tables, with a digest of all of them."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from anechoic.keys import derive
from anechoic.runs.database import Database
from anechoic.runs.row_sum import RowSum
from anechoic.runs.sealing import Sealer
from anechoic.streaming.ledger import Account
from anechoic.units.ids import DIGEST

_AT_ONCE = 500  # parameters of one statement
_ACCOUNT, _STEP = struct.Struct("<QQQ"), struct.Struct("<Q")


class Members:
    """Accounts of units, and steps of batches, in the tables `units` and `batches`.

    Units and batches are known by keyed digests, and what is noted of them is sealed. The digest of all rows
    finds damage: see `RowSum`.

    Args:
        database: open; whoever calls begins and ends transactions.
        seal, key: of the file.
    """

    def __init__(self, database: Database, seal: Sealer, key: bytes) -> None:
        self._database, self._seal = database, seal
        self._secret = derive(key, "batches", size=32)
        self._sum = RowSum()
        for table in ("units", "batches"):
            for digest, sealed in database.each(f"SELECT id, sealed FROM {table}"):
                self._sum.add((table, digest, sealed))

    @property
    def digest(self) -> str:
        """Of all rows."""
        return self._sum.digest.hex()

    def fetch(self, units: Iterable[bytes]) -> dict[bytes, Account]:
        """Accounts of those units that have one."""
        return {unit: self._account(unit, sealed) for unit, sealed in self._sealed(units).items()}

    def keep(self, changed: dict[bytes, Account]) -> None:
        """Write accounts in the place of those that there were."""
        for unit, sealed in self._sealed(changed).items():
            self._sum.remove(("units", unit, sealed))
        rows = [
            (unit, self._seal.close(b"unit" + unit, _ACCOUNT.pack(a.steps, a.last, a.records)))
            for unit, a in changed.items()
        ]
        for row in rows:
            self._sum.add(("units", *row))
        self._database.many("INSERT OR REPLACE INTO units VALUES (?, ?)", rows)

    def step_of(self, batch_id: str) -> int | None:
        """The step that a batch is part of, or None."""
        batch = self._batch(batch_id)
        found = self._database.run("SELECT sealed FROM batches WHERE id = ?", (batch,))
        return int(_STEP.unpack(self._seal.open(b"batch" + batch, found[0][0]))[0]) if found else None

    def mark(self, batch_id: str, step: int) -> None:
        """Note that a batch is part of a step."""
        batch = self._batch(batch_id)
        sealed = self._seal.close(b"batch" + batch, _STEP.pack(step))
        self._sum.add(("batches", batch, sealed))
        self._database.run("INSERT INTO batches VALUES (?, ?)", (batch, sealed))

    def _batch(self, batch_id: str) -> bytes:
        return derive(self._secret, batch_id, size=DIGEST)

    def _account(self, unit: bytes, sealed: bytes) -> Account:
        return Account(*_ACCOUNT.unpack(self._seal.open(b"unit" + unit, sealed)))

    def _sealed(self, units: Iterable[bytes]) -> dict[bytes, bytes]:
        wanted: list[bytes] = list(units)
        found: dict[bytes, bytes] = {}
        for start in range(0, len(wanted), _AT_ONCE):
            some = wanted[start : start + _AT_ONCE]
            query = f"SELECT id, sealed FROM units WHERE id IN ({','.join('?' * len(some))})"
            found.update((digest, sealed) for digest, sealed in self._database.run(query, some))
        return found
