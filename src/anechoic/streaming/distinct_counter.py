"""Units that are there: each from its first record on until it has had none for so many steps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anechoic._validate import positive_int
from anechoic.errors import UnsupportedError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.participation import Single
from anechoic.participation.accounts import packed, unpacked
from anechoic.streaming.ledger import NO_ACCOUNT, NO_ID, Table


@dataclass(frozen=True)
class DistinctCounter:
    """A count of units that are there: how long each is after a record, and how often it may come.

    A visit begins with a record of a unit that is not there, and ends `within` steps after the last record
    of it. So a unit is there at step t if and only if it has a record in steps t - within + 1, …, t, and no
    more than `visits` visits. That depends on its own records alone, and on the order in which they come.

    Args:
        within: steps, >= 1.
        visits: of one unit that count, ever: its first ones; >= 1.
    """

    within: int
    visits: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "within", positive_int("within", self.within))
        object.__setattr__(self, "visits", positive_int("visits", self.visits))

    @property
    def norm(self) -> float:
        """Return what a unit changes by coming and leaving, over what a single 1 in one step would change."""
        return math.sqrt(2.0 * self.visits)

    def check(self, mechanism: Mechanism) -> None:
        """Refuse noise under which coming and leaving might add up to more.

        Raises:
            UnsupportedError: for a strategy that is not Toeplitz with falling coefficients, or another
                participation than Single().
        """
        strategy = mechanism.strategy
        if not strategy.structure.nonincreasing or mechanism.participation != Single():
            raise UnsupportedError(
                f"mechanism of {type(strategy).__name__} and {mechanism.participation!r}: units that come"
                " and leave need Single() and a Toeplitz strategy with coefficients that fall and are not"
                " negative. Give epsilon and horizon, and one is planned."
            )

    def admit(
        self, table: Table, units: Sequence[bytes | None], step: int
    ) -> tuple[Counter[int], Counter[str]]:
        """Return by how much the number of units changes at which step, and the records refused by reason.

        Accounts are written. Records of a step before the latest one of their unit change nothing.

        Args:
            table: of accounts: visits, and the latest step of a record, by digest of the unit.
            units: of the records; None for no id.
            step: of the records.
        """
        place: dict[bytes, int] = {}
        rows = np.array([place.setdefault(unit, len(place)) for unit in units if unit is not None], np.int64)
        found = table.fetch(place)
        visits, last, _ = unpacked([found.get(unit, NO_ACCOUNT) for unit in place], 3)
        there = (visits > 0) & (step <= last + self.within)
        come = ~there & (visits < self.visits)
        stay = there & (last < step)
        # always named, so that which later steps are kept says nothing of who came
        changes = Counter({step: int(come.sum()), step + self.within: -int((come | stay).sum())})
        for end, many in zip(*np.unique(last[stay] + self.within, return_counts=True), strict=True):
            changes[int(end)] += int(many)
        refused = {
            NO_ID: len(units) - len(rows),
            "of units that came as often as they may": int((~there & ~come)[rows].sum()),
            "of units that have records of later steps": int((there & (last > step))[rows].sum()),
        }
        visits += come
        last[come | stay] = step
        changed, names = np.flatnonzero(come | stay), list(place)
        held = packed(visits[changed], last[changed], 0 * changed)
        table.write({names[row]: entry for row, entry in zip(changed.tolist(), held, strict=True)})
        return changes, +Counter(refused)

    def describe(self) -> str:
        """Return what is promised of one unit, for statements."""
        often = "one visit" if self.visits == 1 else f"{self.visits} visits"
        return (
            f"it is counted in at most {often}, each until {self.within} steps have passed without a record"
        )
