"""Who is there, step by step: what records change now, and when the units that they are of leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from anechoic.participation.accounts import packed, unpacked
from anechoic.streaming.ledger import NAMELESS, NOBODY, Table
from anechoic.streaming.presence import Presence


class Attendance:
    """Who is there: what the records of a step change, in this step and in those in which units leave.

    Whether a unit is there depends on its own records alone, and on the order in which they come.

    Args:
        presence: the rule.
        table: of accounts: visits, and the latest step of a record, by digest of the unit.
    """

    def __init__(self, presence: Presence, table: Table) -> None:
        self._rule, self._table = presence, table

    def admit(self, units: Sequence[bytes | None], step: int) -> tuple[Counter[int], Counter[str]]:
        """By how much the number of units changes at which step, and how many records do not count, why.

        Accounts are written. Records of a step before the latest one of their unit change nothing.
        """
        place: dict[bytes, int] = {}
        rows = np.array([place.setdefault(unit, len(place)) for unit in units if unit is not None], np.int64)
        found = self._table.fetch(place)
        visits, last, _ = unpacked([found.get(unit, NOBODY) for unit in place], 3)
        there = (visits > 0) & (step <= last + self._rule.within)
        come = ~there & (visits < self._rule.visits)
        stay = there & (last < step)
        leave = step + self._rule.within
        # always named, so that which later steps are kept says nothing of who came
        changes = Counter({step: int(come.sum()), leave: -int((come | stay).sum())})
        for end, many in zip(*np.unique(last[stay] + self._rule.within, return_counts=True), strict=True):
            changes[int(end)] += int(many)
        refused = {
            NAMELESS: len(units) - len(rows),
            "of units that came as often as they may": int((~there & ~come)[rows].sum()),
            "of units that have records of later steps": int((there & (last > step))[rows].sum()),
        }
        visits += come
        last[come | stay] = step
        changed, names = np.flatnonzero(come | stay), list(place)
        held = packed(visits[changed], last[changed], 0 * changed)
        self._table.write({names[row]: entry for row, entry in zip(changed.tolist(), held, strict=True)})
        return changes, +Counter(refused)
