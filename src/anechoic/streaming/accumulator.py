"""Sums of one step that are made elsewhere: by workers without a key, in any order, merged as any tree."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from anechoic._validate import positive_int
from anechoic.errors import GuaranteeError, MismatchError
from anechoic.streaming.columns import Integers, check_kind, coded, column_of, entries, warn_if_none
from anechoic.streaming.layout import (
    PartitionSelectionLayout,
    SumsLayout,
    check_same,
    layout_of,
    packed,
    unpacked,
)
from anechoic.streaming.ledger import NO_ID, TOO_MANY, count_equal_before, digests
from anechoic.streaming.stream_state import SUM_LIMIT
from anechoic.units.ids import DIGEST

#: Records of units that wait to be sorted among those before them.
_WAITING = 2**15
#: Why records are left out.
NO_CATEGORY = "without a category"


class AddedRecords:
    """A mark of the records of one accumulator, shared by all that it is merged into."""

    used = False  #: whether a stream has added them


class Accumulator:
    """Sums of records for one step of a stream: exact integers, for `Stream.add_sums`.

    The same records give the same sums to the last bit, in whatever order they are added, on however many
    workers, and merged as whatever tree. Where every record is a unit of its own it holds one row of sums.
    Where units are told by ids, it holds by keyed digest of each unit what its records add, at most
    `per_step` of them, and the ledger of the stream decides which units count. A unit whose records are on
    several workers is bounded when these are merged: of more than `per_step` those count that a hash of what
    they add puts first, which no order can change. One of a
    `PartitionSelectionHistogram` holds categories as they stand in the records.

    It is as private as its records. So is the description of a stream whose units are told by ids: with it
    one can test whose account is in a state file. Workers are trusted with records, and with their sums.

    Args:
        of: the stream, or what its `accumulator_spec()` gave: text, which needs neither key nor ledger.
        step: that the records belong to, >= 0; None for the one that is open when they arrive.

    Attributes:
        count: records that were added.
        step: see above.

    Raises:
        ValueError: for a description that cannot be read, or a step that is none.
        MismatchError: on a machine that encodes records in another way than that of the stream.

    Example:
        >>> from anechoic import streaming
        >>> visits = streaming.Stream(streaming.Count("who"), epsilon=1.0, horizon=24)
        >>> spec = visits.accumulator_spec()  # all that a worker needs
        >>> one = streaming.Accumulator(spec).add({"who": ["ann", "bob"]})
        >>> two = streaming.Accumulator(spec).add({"who": ["cyd"]})
        >>> sent = two.to_bytes()
        >>> whole = one.merge(streaming.Accumulator.from_bytes(sent, visits))
        >>> visits.add_sums(whole, batch_id="hour 0"), visits.add_sums(whole, batch_id="hour 0")
        (True, False)
    """

    def __init__(self, of: Any, step: int | None = None) -> None:
        self.layout: Any = layout_of(of)
        self.step = None if step is None else positive_int("step", step, minimum=0)
        self.count = 0
        self.remarks: Counter[str] = Counter()
        self._records: set[AddedRecords] = set()
        self._own = AddedRecords()
        self._empty()

    def __new__(cls, of: Any, step: int | None = None) -> Accumulator:
        return object.__new__(
            PartitionSelectionAccumulator
            if isinstance(layout_of(of), PartitionSelectionLayout)
            else Accumulator
        )

    def _empty(self) -> None:
        self._sums = np.zeros(self.layout.shared.dimension, np.int64)
        self._chunks: list[tuple[NDArray[np.bytes_], Any]] = []
        self._sorted = self._rows = 0

    @np.errstate(all="ignore")  # a caller's setting must not make contents an error
    def add(self, batch: Any, unit_ids: Any = None) -> Accumulator:
        """Add records, and return this.

        Args:
            batch: as `Stream.update`: an array or list, a mapping of columns, an Arrow table or batch, a
                frame of Polars or pandas.
            unit_ids: one a record, where the stream tells units by ids.

        Raises:
            ValueError: for a wrong shape, unit ids that are missing or not wanted, or more records than 64
                bits hold.
        """
        count, found = self._read(batch, unit_ids)
        self.remarks.update(+found)
        self.count += count
        if count:
            self._records.add(self._own)
        return self

    def _read(self, batch: Any, unit_ids: Any) -> tuple[int, Counter[str]]:
        """Add records; how many, and how many were changed or left out, by reason."""
        layout = self.layout
        records, count = layout.shared.read(batch)
        self._check_room(self.count + count)
        listed = digests(unit_ids, count, layout.secret)
        found: Counter[str] = Counter()
        for name, read in records.items():
            found.update({f"{name}: {why}": number for why, number in read.remarks.items() if number})
        if listed is None:
            self._sums = self._sums + layout.shared.sums(records, None)
            return count, found
        named = np.array([unit is not None for unit in listed], bool)
        units = np.array([unit for unit in listed if unit is not None], f"S{DIGEST}")
        self._append_units(units, layout.shared.each(records)[named])
        found[NO_ID] += count - len(units)
        return count, found

    def merge(self, other: Accumulator) -> Accumulator:
        """Add what another one holds, and return this; the other stays as it is.

        Raises:
            MismatchError: for one of another stream, statistic or step, or whose records are here already.
            ValueError: for more records than 64 bits hold.
        """
        self._check_of(other.layout)
        if self.step != other.step:
            raise MismatchError(f"sums of step {self.step} and of step {other.step} have no sum.")
        if self._records & other._records:
            raise MismatchError("records of this accumulator are in the other one: they would count twice.")
        self._check_room(self.count + other.count)
        self._records |= other._records
        self._absorb(other)
        self.count += other.count
        self.remarks.update(other.remarks)
        return self

    def _absorb(self, other: Any) -> None:
        """Add what the other one holds."""
        if other._chunks:
            self._append_units(*other._compact())
        self._sums = self._sums + other._sums

    def by_unit(self) -> tuple[list[bytes], Any]:
        """Return digests and what the records of each add: a sparse array of int64, a row for each digest."""
        units, rows = self._compact()
        return units.view(f"V{DIGEST}").tolist(), rows

    @property
    def sums(self) -> Integers:
        """Return what records add, shape (dimension,)."""
        return self._sums

    def _check_room(self, count: int) -> None:
        if self.layout.reach(count) >= SUM_LIMIT:
            raise ValueError(f"{count} records are more than 64 bits hold: begin another accumulator.")

    def _check_of(self, layout: SumsLayout) -> None:
        """Refuse what is of another stream."""
        check_same(layout.stream, layout.mark, self.layout)

    def _append_units(self, units: NDArray[np.bytes_], rows: Any) -> None:
        self._chunks.append((units, rows))
        self._rows += len(units)
        if self._rows > 2 * self._sorted + _WAITING:
            self._compact()

    def _compact(self) -> tuple[NDArray[np.bytes_], Any]:
        """Sort all units, those of one by their content, and leave at most `per_step` of them."""
        if not self._chunks:
            empty = sparse.csr_array((0, self.layout.shared.dimension), dtype=np.int64)
            return np.zeros(0, f"S{DIGEST}"), empty
        if len(self._chunks) > 1 or self._sorted != self._rows:
            units = np.concatenate([units for units, _ in self._chunks])
            rows = sparse.vstack([rows for _, rows in self._chunks], format="csr")
            order = np.argsort(units, kind="stable")
            same = units[order][1:] == units[order][:-1]
            several = np.zeros(len(units), bool)
            several[1:] |= same
            several[:-1] |= same
            keys = np.zeros(len(units), f"S{DIGEST}")
            keys[order[several]] = [_key(rows, place) for place in order[several].tolist()]
            order = np.lexsort((keys, units))
            kept = order[
                count_equal_before(np.cumsum(np.append(0, ~same))[: len(order)]) < self.layout.per_step
            ]
            self.remarks.update(+Counter({TOO_MANY: len(order) - len(kept)}))
            self._chunks = [(units[kept], rows[kept])]
            self._sorted = self._rows = len(kept)
        return self._chunks[0]

    def to_bytes(self) -> bytes:
        """Return all of it for another process: the same bytes for the same records. As private as these."""
        units, rows = self._compact()
        parts = {"entries": rows.data, "places": rows.indices, "ends": rows.indptr, "sums": self._sums}
        whole = {name: np.asarray(part, "<i8") for name, part in parts.items()}
        return packed(self.layout, self._head(), {"units": units, **whole})

    def _head(self) -> dict[str, Any]:
        return {"step": self.step, "count": self.count, "remarks": dict(self.remarks)}

    @classmethod
    def from_bytes(cls, data: bytes, of: Any) -> Accumulator:
        """Return the accumulator of which `to_bytes` made these bytes.

        Args:
            data: of an accumulator.
            of: as for a new one.

        Raises:
            CheckpointError: if they are damaged, or of another format.
            MismatchError: if they are of another stream or statistic.
        """
        made = cls(of)
        head, arrays = unpacked(bytes(data), made.layout)
        made.step, made.count, made.remarks = head["step"], head["count"], Counter(head["remarks"])
        made._restore(head, arrays)
        made._records = {AddedRecords()} if made.count else set()
        return made

    def _restore(self, head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        self._sums, units = arrays["sums"].astype(np.int64), arrays["units"]
        rows = arrays["entries"], arrays["places"], arrays["ends"]
        if len(units):
            made = sparse.csr_array(rows, shape=(len(units), self.layout.shared.dimension))
            self._chunks, self._sorted, self._rows = [(units, made)], len(units), len(units)

    def __reduce__(self) -> Any:
        return Accumulator.from_bytes, (self.to_bytes(), self.layout.text)

    def __repr__(self) -> str:
        return f"Accumulator({self.count} records, step {self.step})"


class PartitionSelectionAccumulator(Accumulator):
    """An accumulator of categories that nobody listed, for a `PartitionSelectionHistogram`.

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
        check_kind(column, "the batch of categories", "iU")
        values, places = coded(column) or (entries(column, "batch"), None)
        names = list(map(name_of, values))
        warn_if_none(names, "a category")
        places = np.arange(len(names)) if places is None else places
        self._check_room(self.count + len(places))
        listed = digests(unit_ids, len(places), self.layout.secret)
        each = dict(enumerate(np.bincount(places, minlength=len(names)).tolist()))
        found = Counter({NO_CATEGORY: sum(each[i] for i, name in enumerate(names) if name is None)})
        if listed is None:
            for i, name in enumerate(names):
                if name is not None and each[i]:
                    self.records[name] += each[i]
            return len(places), found
        for place, unit in zip(places.tolist(), listed, strict=True):
            name = names[place]
            if unit is None:
                found[NO_ID] += 1
            elif name is not None:
                self._units.setdefault(name, set()).add(unit)
        return len(places), found

    def _absorb(self, other: Any) -> None:
        self.records.update(other.records)
        for name, units in other._units.items():
            self._units.setdefault(name, set()).update(units)

    def pairs(self) -> tuple[list[bytes], list[str]]:
        """Return units and a category of each, in an order that follows from these alone."""
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


def name_of(entry: Any) -> str | None:
    """Return the category of a record: a text, or an integer as its digits; None for everything else.

    NULs at the end of a text do not count, as NumPy's arrays drop them.
    """
    if type(entry) is str:
        return entry.rstrip("\0")
    return str(entry) if type(entry) is int and entry.bit_length() <= 64 else None


def _key(rows: Any, place: int) -> bytes:
    """Return what orders records of one unit: a hash of what they add, so that no value is preferred."""
    part = slice(rows.indptr[place], rows.indptr[place + 1])
    held = rows.indices[part].astype("<i8").tobytes() + rows.data[part].astype("<i8").tobytes()
    return hashlib.blake2b(held, digest_size=DIGEST).digest()


def check_unused(given: Iterable[Accumulator | None]) -> None:
    """Refuse records that a stream would add twice, as far as this process can tell."""
    found: set[AddedRecords] = set()
    for one in given:
        held = set() if one is None else one._records
        if held & found or any(records.used for records in held):
            raise GuaranteeError(
                "an accumulator was added before, or is given twice, and its records or a unit could count"
                " twice: make a new one for each batch. To repeat a batch give the batch_id that it had."
            )
        found |= held


def mark_used(given: Iterable[Accumulator | None]) -> None:
    """Note that a stream has added them."""
    for one in given:
        for records in () if one is None else one._records:
            records.used = True


def merge_by_step(
    given: Accumulator | Iterable[Accumulator], layout: SumsLayout
) -> dict[int | None, Accumulator]:
    """Merge those of one step; return them in the order of steps.

    Raises:
        ValueError: for what is no accumulator, or where some have a step and others none.
        MismatchError: as `Accumulator.merge`.
    """
    found: dict[int | None, Accumulator] = {}
    for one in [given] if isinstance(given, Accumulator) else given:
        if not isinstance(one, Accumulator):
            raise ValueError(f"sums={one!r:.60} must be accumulators.")
        found.setdefault(one.step, Accumulator(layout, one.step)).merge(one)
    if None in found and len(found) > 1:
        raise ValueError("some accumulators have a step and others none: give all of a batch one, or none.")
    return {step: found[step] for step in sorted(found, key=lambda step: step or 0)}
