"""What records add to an `OpenHistogram`, made elsewhere: categories that nobody listed, as they stand."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from anechoic._validate import positive_int
from anechoic.streaming.accumulator import Accumulator, class_for
from anechoic.streaming.categories import UNNAMED, name_of
from anechoic.streaming.coded import coded, column_of
from anechoic.streaming.layout import OpenLayout
from anechoic.streaming.ledger import NAMELESS
from anechoic.streaming.sent_sums import enveloped, number_of, opened, wrong
from anechoic.streaming.statistic import entries
from anechoic.streaming.stream_state import MOST
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
        body = json.dumps([self.records, units], sort_keys=True).encode()
        head = {"step": self.step, "count": self.count, "remarks": dict(sorted(self.remarks.items()))}
        return enveloped(head, body, self.layout)

    def _restore(self, data: bytes) -> None:
        opened(data, self.layout, self._take_sent)

    def _take_sent(self, head: Mapping[str, Any], body: bytes) -> None:
        """Take what was sent, if so many records can be that."""
        records, units = json.loads(body)
        records = {name: positive_int("records of a category", number) for name, number in records.items()}
        units = {name: bytes.fromhex(held) for name, held in units.items()}
        count = number_of(head, "count")
        listed = {
            name: [held[i : i + DIGEST] for i in range(0, len(held), DIGEST)] for name, held in units.items()
        }
        if any(name_of(name) != name for name in (*records, *units)):
            raise wrong("a category is none")
        if units if self.layout.secret is None else records:
            raise wrong("records where the histogram tells units by ids, or units where it does not")
        if any(not held or held != sorted(set(held)) or len(held[-1]) != DIGEST for held in listed.values()):
            raise wrong("units of a category are none, twice or out of order")
        if sum(records.values()) + sum(map(len, listed.values())) > count or self.layout.reach(count) >= MOST:
            raise wrong(f"{count} records are too many, or too few for what is in it")
        self.step = None if head["step"] is None else number_of(head, "step")
        self.count, self.remarks = count, Counter({n: number_of(head["remarks"], n) for n in head["remarks"]})
        self.records, self._units = Counter(records), {name: set(held) for name, held in listed.items()}


@class_for.register
def _(layout: OpenLayout) -> type[Accumulator]:
    return OpenAccumulator
