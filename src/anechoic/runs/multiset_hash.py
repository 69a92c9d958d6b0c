"""A digest of all rows of a table that costs no pass over the others when one of them changes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

_MODULUS = 2**256


class RowSum:
    """The sum of the rows' SHA-256, modulo 2**256: it finds damage, and seals nothing.

    Args:
        rows: those that there are.
    """

    def __init__(self, rows: Iterable[tuple[bytes | str | int, ...]] = ()) -> None:
        self._sum = 0
        for row in rows:
            self.add(row)

    @property
    def digest(self) -> bytes:
        """Of all rows, 32 bytes."""
        return self._sum.to_bytes(32, "little")

    def add(self, row: tuple[bytes | str | int, ...]) -> None:
        """A row that was not there."""
        self._change(row, 1)

    def remove(self, row: tuple[bytes | str | int, ...]) -> None:
        """A row that was there."""
        self._change(row, -1)

    def _change(self, row: tuple[bytes | str | int, ...], sign: int) -> None:
        found = int.from_bytes(hashlib.sha256(repr(row).encode()).digest(), "little")
        self._sum = (self._sum + sign * found) % _MODULUS
