"""Which units and batches a state file knows: rows of tables, with a digest of all of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from anechoic.runs.row_sum import RowSum
from anechoic.streaming.ledger import Account

_AT_ONCE = 500  # parameters of one statement


class Members:
    """Accounts of units, and steps of batches, in the tables `units` and `batches`.

    Their digest finds damage: see `RowSum`.

    Args:
        database: open; whoever calls begins and ends transactions.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._sum = RowSum()

    def read_all(self) -> bytes:
        """The digest of what the tables hold now, from which the sum goes on."""
        self._sum = RowSum()
        for unit, *account in self._database.execute("SELECT unit, steps, last, records FROM units"):
            self._sum.add((unit, *account))
        for name, step in self._database.execute("SELECT id, step FROM batches"):
            self._sum.add((name, step))
        return self.digest

    @property
    def digest(self) -> bytes:
        """Of all rows."""
        return self._sum.digest

    def fetch(self, units: Iterable[bytes]) -> dict[bytes, Account]:
        """Accounts of those units that have one."""
        wanted, found = list(units), {}
        for start in range(0, len(wanted), _AT_ONCE):
            some = wanted[start : start + _AT_ONCE]
            query = (
                f"SELECT unit, steps, last, records FROM units WHERE unit IN ({','.join('?' * len(some))})"
            )
            for unit, *account in self._database.execute(query, some):
                found[bytes(unit)] = Account(*account)
        return found

    def keep(self, changed: dict[bytes, Account]) -> None:
        """Write accounts in the place of those that there were."""
        for unit, old in self.fetch(changed).items():
            self._sum.remove((unit, old.steps, old.last, old.records))
        rows = [(unit, a.steps, a.last, a.records) for unit, a in changed.items()]
        for row in rows:
            self._sum.add(row)
        self._database.executemany("INSERT OR REPLACE INTO units VALUES (?, ?, ?, ?)", rows)

    def step_of(self, batch_id: str) -> int | None:
        """The step that a batch is part of, or None."""
        found = self._database.execute("SELECT step FROM batches WHERE id = ?", (batch_id,)).fetchone()
        return None if found is None else int(found[0])

    def mark(self, batch_id: str, step: int) -> None:
        """Note that a batch is part of a step."""
        self._sum.add((batch_id, step))
        self._database.execute("INSERT INTO batches VALUES (?, ?)", (batch_id, step))
