"""Categories that nobody listed: their names, their noise, and how often one unit counts in them."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic.keys import derive
from anechoic.mechanism.mechanism import Mechanism
from anechoic.mechanism.rows import NoiseRows
from anechoic.streaming.ledger import NAMELESS, Ledger
from anechoic.streaming.statistic import Integers
from anechoic.units.ids import DIGEST

#: Rows of noise of a category that are made at once.
_AHEAD = 64
#: Why records are left out.
UNNAMED = "without a category"
#: How often a unit was in its categories, in a table of accounts: how many, and two numbers of no use here.
_COUNT = np.dtype("<i8")


def name_of(entry: Any) -> str | None:
    """Return the category of a record: a text, or an integer as its digits; None for everything else.

    NULs at the end of a text do not count, as NumPy's arrays drop them.
    """
    if type(entry) is str:
        return entry.rstrip("\0")
    return str(entry) if type(entry) is int and entry.bit_length() <= 64 else None


class CategoryNoise:
    """Rows of noise of the categories that were seen, one number a step, each category from row 0 on.

    They are functions of the key, the salts of the openings and the category alone: neither the order in
    which categories appear nor what others there are changes a bit, and one that is never seen costs nothing.

    Args:
        mechanism: whose noise it is, in one dimension.
        key: 32 secret bytes.
        openings: (step, salt) of every opening; see `NoiseRows`.

    Attributes:
        names: the categories, in the order in which they were seen. Private.
        place: of each name.
        later: records that count in steps after the open one, by step and category. Private.
    """

    def __init__(self, mechanism: Mechanism, key: bytes, openings: Iterable[tuple[int, bytes]]) -> None:
        self._mechanism, self._key, self._openings = mechanism, key, list(openings)
        self.step = 0
        self.names: list[str] = []
        self.place: dict[str, int] = {}
        self.later: dict[int, Counter[str]] = {}
        self._rows: dict[str, NoiseRows] = {}
        self._ahead: dict[str, list[int]] = {}

    def add(self, names: Iterable[str]) -> Integers:
        """From now on `next` has a number for each of these too. Returns the sum of their numbers before."""
        found = []
        for name in names:
            self.place[name] = len(self.names)
            self.names.append(name)
            self._rows[name] = self._made(name)
            found.append(sum(self._several(self._rows[name], self.step)))
        return np.array(found, np.int64)

    def next(self) -> Integers:
        """The numbers of the open step, which ends; shape (categories,)."""
        found = np.array([self._one(name) for name in self.names], np.int64)
        self.step += 1
        return found

    def _one(self, name: str) -> int:
        if not self._ahead.get(name):
            left = min(_AHEAD, self._mechanism.steps - self.step)
            self._ahead[name] = self._several(self._rows[name], left)[::-1]
        return self._ahead[name].pop()

    def _made(self, name: str) -> NoiseRows:
        person = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()
        return NoiseRows(self._mechanism, 1, derive(self._key, f"category {person}", size=32), self._openings)

    @staticmethod
    def _several(rows: NoiseRows, count: int) -> list[int]:
        return [int(row[0]) for row in rows.ahead(count)]

    # as `Store` keeps it: no row of noise, for all follow from the key

    def saved(self) -> tuple[int, str, tuple[int, ...], bytes]:
        held = [self.names, self.later] if self.later else self.names
        return self.step, "", (), json.dumps(held).encode()

    def restore(self, step: int, dtype: str, shape: tuple[int, ...], data: bytes) -> None:
        self.step, held = step, json.loads(data)
        if held and not isinstance(held[0], str):
            held, later = held
            self.later = {int(at): Counter(counted) for at, counted in later.items()}
        self.add(held)  # all rows before are made again


class Pairs:
    """Admits records: in each category a unit takes part as often as its participation allows.

    Whether a record counts depends on earlier records of the same unit alone.

    Args:
        ledger: of pairs of a unit and a category, one record in a step.
        most: categories of a unit that count, ever: its first ones.
        key: of the stream.
        table: where accounts are.
    """

    def __init__(self, ledger: Ledger, most: int, key: bytes, table: Any) -> None:
        self._ledger, self._most, self._table = ledger, most, table
        self._secret = derive(key, "units and categories", size=64)

    def admit(
        self, units: list[bytes], names: list[str], step: int
    ) -> tuple[NDArray[np.bool_], Counter[str]]:
        """Which records count in `step`, and how many do not, by reason. Accounts are written."""
        pairs: list[bytes | None] = list(map(self._pair, units, names))
        found = self._table.fetch({*pairs, *units})
        known = {pair for pair in pairs if pair in found}
        before = {unit: self._count(found.get(unit)) for unit in units}
        counts = dict(before)
        for i, (unit, pair) in enumerate(zip(units, pairs, strict=True)):
            if pair not in known and counts[unit] < self._most:
                counts[unit] += 1
                known.add(pair)
            elif pair not in known:
                pairs[i] = None
        kept, refused = self._ledger.admit(pairs, step)
        changed = {unit: count for unit, count in counts.items() if count != before[unit]}
        self._table.write({unit: np.array([c, 0, 0], _COUNT).tobytes() for unit, c in changed.items()})
        beyond = {"of units in as many categories as they may": refused.pop(NAMELESS, 0)}
        return kept, +Counter({**refused, **beyond})

    def _pair(self, unit: bytes, name: str) -> bytes:
        held = unit + name.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(held, digest_size=DIGEST, key=self._secret).digest()

    @staticmethod
    def _count(held: bytes | None) -> int:
        return 0 if held is None else int(np.frombuffer(held, _COUNT)[0])
