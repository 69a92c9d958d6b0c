"""Contribution bounds, enforced: which record of a unit still counts, and which is left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import positive_int
from anechoic.participation.accounts import NEVER, Accounts, packed, unpacked
from anechoic.participation.base import Participation
from anechoic.streaming.columns import check_kind, coded, entries, warn_if_none
from anechoic.units.ids import digest_of, secret_of

#: Of a unit without an account: steps in which it took part, the last of them, records that counted in that.
NO_ACCOUNT = packed(*np.array([[0], [-1], [0]]))[0]


#: Why records are left out, of which `anechoic.streaming.accumulator` counts some too.
NO_ID = "without an id that can be read"
TOO_MANY = "beyond those of one unit that count in a step"


class Table(Protocol):
    """A table of accounts, by digest of the unit."""

    def fetch(self, units: Iterable[bytes]) -> Mapping[bytes, bytes]:
        """Return those of `units` that there are; it may hold others too."""

    def write(self, changed: Mapping[bytes, bytes]) -> None:
        """Keep these in the place of those before."""


class Ledger:
    """A ledger that admits records in their order to steps which `Accounts` let their units take part in.

    Whether a record counts depends on earlier records of the same unit alone, so that one unit changes
    nothing about the contributions of another.

    Args:
        participation: what units are held to.
        per_step: records of one unit that count in one step, >= 1.
        key: of the stream; units are kept as keyed digests of it.
        table: where.
    """

    def __init__(self, participation: Participation, per_step: int, key: bytes, table: Table) -> None:
        self.participation = participation
        self._per_step = positive_int("per_step", per_step)
        self.secret = secret_of(key)
        self.table = table

    def admit(self, units: list[bytes | None], step: int) -> tuple[NDArray[np.bool_], dict[str, int]]:
        """Return which records count in `step`, and how many do not, by reason. Accounts are written."""
        place: dict[bytes, int] = {}
        kept = np.array([unit is not None for unit in units], bool)
        rows = np.array([place.setdefault(unit, len(place)) for unit in units if unit is not None], np.int64)
        found = self.table.fetch(place)
        accounts = Accounts(self.participation, len(place))
        accounts.count, accounts.last, records = unpacked([found.get(unit, NO_ACCOUNT) for unit in place], 3)
        records[accounts.last != step] = 0
        first = accounts.first(step, rows)
        counts = (first == step) & (records[rows] + count_equal_before(rows) < self._per_step)
        refused = {
            NO_ID: len(kept) - len(rows),
            TOO_MANY: ((first == step) & ~counts).sum(),
            "of units that took part as often as they may": (first >= NEVER).sum(),
            "of units that took part too few steps ago": ((first > step) & (first < NEVER)).sum(),
        }
        kept[kept] = counts
        accounts.admit(step, rows[counts])
        more = np.bincount(rows[counts], minlength=len(place))
        records += more
        changed, names = np.flatnonzero(more), list(place)
        entries = packed(accounts.count[changed], accounts.last[changed], records[changed])
        self.table.write({names[row]: entry for row, entry in zip(changed.tolist(), entries, strict=True)})
        return kept, {reason: int(number) for reason, number in refused.items() if number}


def digests(unit_ids: Any, count: int, secret: bytes | None) -> list[bytes | None] | None:
    """Return the digest of each id; None for what is missing, or of a kind that ids do not have.

    Args:
        unit_ids: one a record, or None.
        count: of the records.
        secret: of digests; None where every record is a unit of its own, and none of this is there.

    Raises:
        ValueError: for ids that are missing, not wanted or of another number; if they are no list, or a
            column whose type is that of no ids.
    """
    if secret is None and unit_ids is not None:
        raise ValueError(
            "unit_ids were given, but every record is a unit of its own here. To protect units with several"
            " records, or to leave out repeated ones, give the stream participation=Single() or MinSep(…)."
        )
    if secret is None:
        return None
    if unit_ids is None:
        raise ValueError("unit_ids=None, but units are held to a participation: give one id a record.")
    check_kind(unit_ids, "unit_ids")
    values, places = coded(unit_ids) or (entries(unit_ids, "unit_ids"), None)
    found = [_digest_or_none(unit, secret) for unit in values]
    warn_if_none(found, "an id")
    found = found if places is None else [found[place] for place in places.tolist()]
    if len(found) != count:
        raise ValueError(f"{len(found)} unit_ids for {count} records: give one id a record.")
    return found


def _digest_or_none(unit: Any, secret: bytes) -> bytes | None:
    try:
        return digest_of(unit, secret)
    except Exception:  # an object of any kind may do anything when it is looked at
        return None


def count_equal_before(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count how many entries before each are equal to it."""
    order = np.argsort(rows, kind="stable")
    same = np.bincount(rows)
    found = np.empty_like(rows)
    found[order] = np.arange(len(rows)) - (np.cumsum(same, dtype=np.int64) - same)[rows[order]]
    return found
