"""Contribution bounds, enforced: which record of a unit still counts, and which is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import positive_int
from anechoic.errors import UnsupportedError
from anechoic.participation import FullBatch, MinSep, Participation, Single
from anechoic.streaming.statistic import entries
from anechoic.units.ids import digest_of, secret_of


@dataclass
class Account:
    """What one unit has contributed so far.

    Attributes:
        steps: steps in which it took part.
        last: the last of them.
        records: records that counted in that step.
    """

    steps: int
    last: int
    records: int


class Accounts(Protocol):
    """Where accounts are kept, by digest of the unit."""

    def fetch(self, units: Iterable[bytes]) -> dict[bytes, Account]:
        """Those of `units` that there are."""

    def keep(self, changed: dict[bytes, Account]) -> None:
        """Write these."""


class MemoryAccounts:
    """Accounts of a stream without a state file."""

    def __init__(self) -> None:
        self._all: dict[bytes, Account] = {}

    def fetch(self, units: Iterable[bytes]) -> dict[bytes, Account]:
        return {unit: self._all[unit] for unit in units if unit in self._all}

    def keep(self, changed: dict[bytes, Account]) -> None:
        self._all.update(changed)


class Ledger:
    """Admits the records of units that keep to a participation, in the order in which they come.

    Whether a record counts depends on earlier records of the same unit alone, so that one unit changes
    nothing about the contributions of another.

    Args:
        participation: Single, MinSep or FullBatch.
        per_step: records of one unit that count in one step, >= 1.
        key: of the stream; units are kept as keyed digests of it.
        accounts: where.

    Raises:
        UnsupportedError: for another schema.
    """

    def __init__(self, participation: Participation, per_step: int, key: bytes, accounts: Accounts) -> None:
        self.participation = participation
        self._separation, self._most = limits_of(participation)
        self._per_step = positive_int("per_step", per_step)
        self._secret = secret_of(key)
        self._accounts = accounts

    def digests(self, unit_ids: Any) -> list[bytes | None]:
        """See `digest`, one for each; None for what is missing, or of a kind that ids do not have.

        Raises:
            ValueError: if ids are no list.
        """
        return [self._digest_or_none(unit) for unit in _listed(unit_ids)]

    def _digest_or_none(self, unit: Any) -> bytes | None:
        try:
            return self.digest(unit)
        except Exception:  # an object of any kind may do anything when it is looked at
            return None

    def admit(
        self, units: list[bytes | None], step: int
    ) -> tuple[NDArray[np.bool_], dict[str, int], dict[bytes, Account]]:
        """Which records count in `step`; how many do not, by reason; and the accounts to be kept.

        Nothing is kept here: the caller does so in the transaction that adds the records up.
        """
        found = self._accounts.fetch({unit for unit in units if unit is not None})
        changed: dict[bytes, Account] = {}
        kept = np.ones(len(units), bool)
        refused: Counter[str] = Counter()
        for place, unit in enumerate(units):
            if unit is None:
                kept[place] = False
                refused["without an id that can be read"] += 1
                continue
            account = changed.get(unit) or found.get(unit)
            if account is None:
                changed[unit] = Account(1, step, 1)
                continue
            if account.last == step:
                if account.records < self._per_step:
                    changed[unit] = Account(account.steps, step, account.records + 1)
                    continue
                reason = "beyond those of one unit that count in a step"
            elif account.steps >= self._most:
                reason = "of units that took part as often as they may"
            elif step - account.last < self._separation:
                reason = "of units that took part too few steps ago"
            else:
                changed[unit] = Account(account.steps + 1, step, 1)
                continue
            kept[place] = False
            refused[reason] += 1
        return kept, dict(refused), changed

    def digest(self, unit: Any) -> bytes:
        """The keyed digest under which a unit is kept; 7 and "7" are two units.

        Ids that are equal in Python have one digest: those of subclasses (enumerations, NumPy's scalars)
        count by what they hold. NULs at the end of text and bytes do not count: NumPy's arrays and scalars of
        such drop them, and which unit an id is must not depend on how it is handed over.
        """
        plain = unit.item() if isinstance(unit, np.str_ | np.bytes_) else unit
        if isinstance(plain, str) and type(plain).__eq__ is str.__eq__:
            plain = str.rstrip(plain, "\0") if str.endswith(plain, "\0") else plain
        elif isinstance(plain, bytes) and type(plain).__eq__ is bytes.__eq__:
            plain = bytes.rstrip(plain, b"\0") if bytes.endswith(plain, b"\0") else plain
        return digest_of(plain, self._secret)


@singledispatch
def limits_of(participation: Participation) -> tuple[int, float]:
    """(separation, most steps) that a ledger holds units to.

    Raises:
        UnsupportedError: for a schema that it does not know.
    """
    raise UnsupportedError(
        f"participation={participation!r}: a stream enforces Single, MinSep and FullBatch. Take"
        " MinSep(separation, max_participations), which allows every pattern of that kind."
    )


@limits_of.register
def _(participation: Single) -> tuple[int, float]:
    return 1, 1


@limits_of.register
def _(participation: MinSep) -> tuple[int, float]:
    most = participation.max_participations
    return participation.separation, np.inf if most is None else most


@limits_of.register
def _(participation: FullBatch) -> tuple[int, float]:
    return 1, np.inf


def _listed(unit_ids: Any) -> list[Any]:
    """The ids one by one; a list is never made an array, which would change some of them.

    Raises:
        ValueError: for an array of something else than ids.
    """
    if isinstance(unit_ids, np.ndarray) and unit_ids.size and unit_ids.dtype.kind not in "iuUO":
        raise ValueError(
            f"unit_ids is an array of {unit_ids.dtype}: each id must be an integer, text or bytes. Name units"
            " by such."
        )
    return entries(unit_ids, "unit_ids")
