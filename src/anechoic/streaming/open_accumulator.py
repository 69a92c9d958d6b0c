"""What records add to an `OpenHistogram`, made elsewhere: categories that nobody listed, as they stand."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic.streaming.accumulator import Accumulator, class_for
from anechoic.streaming.categories import UNNAMED, name_of
from anechoic.streaming.coded import coded, column_of
from anechoic.streaming.layout import OpenLayout
from anechoic.streaming.ledger import NAMELESS
from anechoic.streaming.sent_sums import packed
from anechoic.streaming.statistic import entries
from anechoic.units.ids import DIGEST


class OpenAccumulator(Accumulator):
    """What `Accumulator` makes for an `OpenHistogram`.

    It holds **categories as they stand in the records**, rare ones too: how many records each has, or, where
    units are told by ids, the keyed digests of those in it, each once. All of that leaves the worker with
    `to_bytes`, and goes to the process of the histogram alone. There categories are chosen: what is released,
    and what a state file shows without its key, has no category that was not chosen.

    Of a unit that is in more categories than may count, those count that a hash puts first, as no order of
    arrival can change.
    """

    def _empty(self) -> None:
        self.records: Counter[str] = Counter()
        self._units: dict[str, set[bytes]] = {}

    def _read(self, batch: Any, unit_ids: Any) -> tuple[int, Counter[str]]:
        column = column_of(batch, "categories", self.layout.column)
        values, places = coded(column) or (entries(column, "batch"), None)
        names = list(map(name_of, values))
        places = np.arange(len(names)) if places is None else places
        self._check_room(self.count + len(places))
        each = dict(enumerate(np.bincount(places, minlength=len(names)).tolist()))
        found = Counter({UNNAMED: sum(each[i] for i, name in enumerate(names) if name is None)})
        if self.layout.secret is None:
            for i, name in enumerate(names):
                if name is not None and each[i]:
                    self.records[name] += each[i]
            return len(places), found
        for place, unit in zip(places.tolist(), self._digests(unit_ids, len(places)), strict=True):
            name = names[place]
            if unit is None:
                found[NAMELESS] += 1
            elif name is not None:
                self._units.setdefault(name, set()).add(unit)
        return len(places), found

    def _join(self, other: Any) -> None:
        self.records.update(other.records)
        for name, units in other._units.items():
            self._units.setdefault(name, set()).update(units)

    def pairs(self) -> tuple[list[bytes], list[str]]:
        """Units and a category of each, in an order that follows from these alone."""
        listed = [(unit, name) for name, units in self._units.items() for unit in units]
        listed.sort(
            key=lambda pair: hashlib.blake2b(pair[0] + pair[1].encode("utf-8", "surrogatepass")).digest()
        )
        return [unit for unit, _ in listed], [name for _, name in listed]

    def to_bytes(self) -> bytes:
        units = {name: b"".join(sorted(units)).hex() for name, units in self._units.items()}
        return packed(self.layout, {**self._head(), "records": self.records, "units": units}, {})

    def _restore(self, head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        self.records = Counter(head["records"])
        for name, held in head["units"].items():
            units = bytes.fromhex(held)
            self._units[name] = {units[i : i + DIGEST] for i in range(0, len(units), DIGEST)}


@class_for.register
def _(layout: OpenLayout) -> type[Accumulator]:
    return OpenAccumulator
