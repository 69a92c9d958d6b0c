"""A histogram whose categories nobody lists in advance: each is released once enough units are in it."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from anechoic._validate import fraction, positive_int
from anechoic.budget.account import WithFailureProbability
from anechoic.budget.book import BudgetBook, booked
from anechoic.errors import UnsupportedError
from anechoic.keys import derive
from anechoic.mechanism.mechanism import Mechanism
from anechoic.mechanism.pin_to_saved import pin_to_saved
from anechoic.mechanism.rows import NoiseRows
from anechoic.participation.accounts import Accounts, packed, unpacked
from anechoic.participation.base import Participation
from anechoic.runs.fork_guard import ProcessGuard
from anechoic.runs.settings_check import MECHANISM, checked_setting
from anechoic.runs.state_file import Key, opened
from anechoic.streaming.accumulator import Accumulator, PartitionSelectionAccumulator
from anechoic.streaming.base import Addition, StreamBase
from anechoic.streaming.clock import Running
from anechoic.streaming.columns import Integers
from anechoic.streaming.confidence_bands import miss_of
from anechoic.streaming.layout import PartitionSelectionLayout
from anechoic.streaming.ledger import NO_ACCOUNT, NO_ID, Ledger
from anechoic.streaming.mechanisms import Deviations, mechanism_of
from anechoic.streaming.release import Release
from anechoic.streaming.statistic import linear_estimate, quantile
from anechoic.streaming.store import LABELS, Store
from anechoic.streaming.stream_state import InMemory, StreamState
from anechoic.units.ids import DIGEST

#: Name of the statistic in a release.
NAME = "units"
#: Share of delta that the choice of categories may cost; the noise has the rest.
_CHOOSING = 0.5
#: Deviations are computed in float64; what BLTs' memory drifts is far below this too.
_SPARE = 2.0**-30
#: Rows of noise of a category that are made at once.
_ROWS_AHEAD = 64


class PartitionSelectionStore(Store):
    """A state file of a `PartitionSelectionHistogram`, with all its categories."""

    KIND = "open histogram"


class PartitionSelectionHistogram(StreamBase):
    """A histogram of categories that nobody lists in advance (partition selection): units in each so far.

    A category is released from the step on at which its noisy count exceeds a threshold, and in all steps
    after that. Its first figure is that of all steps so far: nothing that came before is lost. One that
    nobody was in has no noise, is never released, and costs nothing.

    A unit counts in a category as often as `participation` says: `Single()` counts each unit once in each of
    its categories, at its first appearance, so that figures are numbers of distinct units.

    Guarantee: all releases together are (epsilon, delta)-DP for one unit with all its records, also where
    later records depend on earlier releases: delta is that of the noise plus the probability that a category
    of this unit alone is ever released. Theorem and proof: docs/proofs/streams.md#open-categories.

    Args:
        column: of a batch, with the categories: text, or integers, which count as their digits. None for the
            batch itself.
        epsilon, delta: of all releases together. Half of delta is the noise's, half that of choosing.
        horizon: number of steps, after which nothing is released; None for 2**40 of them.
        participation: which steps of one category a unit may touch; with `unit_ids` in update. None for
            records that are units themselves.
        categories_per_unit: k, in how many categories a unit counts, ever: its first ones, and of those that
            come in one batch the ones that a hash puts first. The noise grows like sqrt(k).
        adjacency: "zero_out" or "replace_one".
        unit: what is protected, for statements.
        level: of the intervals, in (0, 1).
        state, key, adopt, setting, book: see `Stream`.

    Attributes:
        cost: what all releases spend: a mechanism of one category, for contributions of norm 1, and the
            probability besides it that the choice of categories costs. For `BudgetBook.reserve`.
        delta: of all releases, the choice of categories included.
        by_unit: whether units are told by ids, and held to their participation.

    Raises:
        ValueError: for an argument out of range or missing.
        UnsupportedError: where no theorem covers the combination, or no noise can be rounded exactly.
        CheckpointError, GuaranteeError: for a state file that cannot be continued; GuaranteeError also where
            the book does not cover it.

    References:
        Desfontaines, Voss, Gipson, Mandayam, Differentially private partition selection, PoPETs 2022;
        Zhang et al., Differentially private stream processing at scale, VLDB 2024 (continual selection).

    Example:
        >>> from anechoic import streaming
        >>> diagnoses = streaming.PartitionSelectionHistogram(epsilon=2.0, delta=1e-6, horizon=24)
        >>> diagnoses.update(["flu"] * 400 + ["a rare one"])
        True
        >>> list(diagnoses.release().named())
        ['flu']
    """

    _ahead = 2**10  # a number that follows from no record

    def __init__(
        self,
        column: str | None = None,
        *,
        epsilon: float,
        delta: float = 1e-6,
        horizon: int | None = None,
        participation: Participation | None = None,
        categories_per_unit: int = 1,
        adjacency: str = "zero_out",
        unit: str | None = None,
        level: float = 0.95,
        state: str | os.PathLike[str] | None = None,
        key: Key = None,
        adopt: bool = False,
        setting: Any = None,
        book: BudgetBook | None = None,
    ) -> None:
        self.column, self.level = column, fraction("level", level)
        self.categories_per_unit = positive_int("categories_per_unit", categories_per_unit)
        self.by_unit = participation is not None
        if participation is not None:
            Accounts(participation)  # refuses a schema that no account can hold a pair to
        elif categories_per_unit != 1:
            raise ValueError(
                f"categories_per_unit={categories_per_unit} without participation: every record is a unit of"
                " its own, in one category. Give participation=Single() and unit_ids to update."
            )
        self.delta = fraction("delta", delta)
        planned = mechanism_of(
            None,
            participation,
            over=Running(),
            horizon=horizon,
            epsilon=epsilon,
            delta=(1 - _CHOOSING) * self.delta,
            dimension=1,
            adjacency=adjacency,
            unit=unit,
            buffered=True,
        )
        begun = pin_to_saved(
            planned, None if state is None else PartitionSelectionStore.shown(state, MECHANISM)
        )
        self.cost = WithFailureProbability(begun, _CHOOSING * self.delta)
        if self.cost.mechanism.grid_bits is None:
            raise UnsupportedError(
                f"horizon={horizon}: no noise of this length can be rounded exactly, on which the threshold"
                " rests. Give a shorter horizon."
            )
        # k categories of one unit have norm 1 together
        self._one = math.isqrt(4**self.cost.mechanism.grid_bits // self.categories_per_unit)
        if self._one < 2**8:
            raise ValueError(
                f"categories_per_unit={categories_per_unit} is more than the grid of noise holds."
            )
        self.horizon = self.cost.mechanism.steps
        self._deviations, self._epsilon = Deviations(self.cost.mechanism, Running()), self.cost.epsilon()
        self._setting = checked_setting(setting)
        self.owner = ProcessGuard("stream")
        if book is not None:
            book.check(self.cost)  # before a state file is begun
        self._start(state, key=key, adopt=adopt)
        self._booked = None if book is None else booked(book, self.cost, self._state)

    def _start(self, state: str | os.PathLike[str] | None, **how: Any) -> None:
        identity = self._identity()
        shown = {LABELS: "{}", MECHANISM: self.cost.mechanism.to_json()}
        self._state = opened(PartitionSelectionStore, InMemory, state, identity=identity, shown=shown, **how)
        secret = derive(self._state.key, f"categories {identity}", size=32)
        self._noise = CategoryNoise(self.cost.mechanism, secret, self._state.openings)
        self._ledger: CategoryLedger | None = None
        if self.by_unit:
            ledger = Ledger(self.cost.mechanism.participation, 1, self._state.key, self._state.units)
            self._ledger = CategoryLedger(ledger, self.categories_per_unit, self._state.key)
        self._stream_state = self._state.load(self._noise) or StreamState.first(0)
        last = deque(self.releases(), maxlen=1)
        self._last = last[0] if last else None

    def standard_error(self, step: int) -> float:
        """Return the standard deviation of the noise in each figure of a step, in units."""
        return self._deviations.at(step) * 2.0 ** (self.cost.mechanism.grid_bits or 0) / self._one

    def threshold(self, step: int) -> float:
        """Return what a category's noisy count has to exceed to be released at a step; known in advance."""
        return self._limit(step) / self._one

    def _limit(self, step: int) -> int:
        """Return the same in units of the grid, rounded up.

        A unit alone in a category adds at most c_t to it. Over all steps, and over all categories that are
        one unit's alone, the probabilities that the noise exceeds threshold less c_t add up to at most half
        of delta; the rounding of rows is bounded by the worst that it can be.
        """
        own = self.cost.mechanism.participation.max_participations_in(step + 1)
        pairs = self.categories_per_unit * (2 if self.cost.mechanism.adjacency == "replace_one" else 1)
        z = -float(ndtri(miss_of(_CHOOSING * self.delta / pairs, step, self.cost.mechanism.steps)))
        noise = self._deviations.at(step) * 2.0 ** (self.cost.mechanism.grid_bits or 0)
        std = self.cost.mechanism.noise_std
        # rows are rounded after what was rounded is fed back, or each by itself: at most 1/2 a row
        fed_back = math.sqrt(step + 1) * self._deviations.at(step) / std * self._deviations.at(0) / std
        rounding = (step + 1 + fed_back) / 2
        return own * self._one + math.ceil(z * noise * (1 + _SPARE) + rounding)

    def _layout(self, stream: str, secret: bytes | None) -> PartitionSelectionLayout:
        return PartitionSelectionLayout(stream, secret, self.column, self._one)

    def _check_room(self, count: int) -> None:
        now = self._stream_state
        longer = replace(now, open=np.append(now.open, 0), total=np.append(now.total, 0))
        waiting = sum(counted.total() for counted in self._noise.later.values())
        longer.check_room((count + waiting) * self._one)

    def _read(self, batch: Any, unit_ids: Any, step: int) -> Addition:
        self._check_left(1)
        self._check_of(batch, step)
        new = not isinstance(batch, Accumulator)
        made = Accumulator(self.layout).add(batch, unit_ids) if new else batch
        return Addition({}, made.count, None, made)

    def _add(self, addition: Addition, batch_id: str | None, step: int | None = None) -> None:
        made = cast(PartitionSelectionAccumulator, addition.accumulator)  # `_read` lets no other through
        at = self.step if step is None else step
        self._stream_state.counts += made.remarks
        counted = made.records
        if self._ledger is not None:
            units, names = made.pairs()
            kept, refused = self._ledger.admit(units, names, at)
            self._stream_state.counts += refused
            counted = Counter(name for name, one in zip(names, kept.tolist(), strict=True) if one)
        if batch_id is not None:
            self._state.mark(batch_id, at)
        if at == self.step:
            self._absorb(counted)
        else:  # a category of later records alone is not there yet: it must not be released
            self._noise.later.setdefault(at, Counter()).update(counted)

    def _absorb(self, counted: Counter[str]) -> None:
        """Add records to the open step."""
        standing = self._stream_state
        before = self._noise.add(name for name in counted if name not in self._noise.place)
        standing.open = np.append(standing.open, np.zeros_like(before))
        standing.total = np.append(standing.total, before)
        for name, count in counted.items():
            standing.open[self._noise.place[name]] += count * self._one

    def _publish(self, time: str | float | None) -> Release:
        step, shown = self._stream_state.step, self._shown
        self._stream_state.end_step(self._noise.next(), Running(), lambda _: np.zeros(0, np.int64), time)
        total, place = self._stream_state.total, self._noise.place
        above = np.flatnonzero(total > self._limit(step)).tolist()
        new = sorted({self._noise.names[i] for i in above} - set(shown))  # no trace of who came first
        row = np.array([total[place[name]] for name in (*shown, *new)], "<i8")
        self._state.append(step, time, json.dumps(new).encode() + b"\n" + row.tobytes())
        self._absorb(self._noise.later.pop(step + 1, Counter()))
        return self._decode(step, time, (*shown, *new), row)

    @property
    def _shown(self) -> tuple[str, ...]:
        """Return the categories that were released."""
        return () if self._last is None else self._last.labels[NAME]

    def releases(self) -> Iterator[Release]:
        """Return all releases so far, as published."""
        names: list[str] = []
        for step in range(self.step):
            with self.owner.reading():
                time, held = self._state.published(step)
            new, _, row = held.partition(b"\n")
            names += json.loads(new)
            yield self._decode(step, time, tuple(names), np.frombuffer(row, "<i8").astype(np.int64))

    def _decode(self, step: int, time: str | float | None, names: tuple[str, ...], row: Integers) -> Release:
        values = np.asarray(row / self._one)
        made = linear_estimate(values, self.standard_error(step), quantile(self.level), values)
        return Release(step, time, {NAME: made}, self._epsilon, self.delta, {NAME: names})

    def _identity(self) -> str:
        promise = {
            "kind": PartitionSelectionStore.KIND,
            "column": self.column,
            "by_unit": self.by_unit,
            "categories_per_unit": self.categories_per_unit,
            "delta": self.delta,
            "level": self.level,
            "setting": self._setting,
            "mechanism": self.cost.mechanism.fingerprint,
        }
        return json.dumps(promise, sort_keys=True)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(step {self.step}, {len(self._shown)} categories released)"


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
        """Begin the noise of these too, for `next`; return the sum of their numbers before."""
        found = []
        for name in names:
            self.place[name] = len(self.names)
            self.names.append(name)
            self._rows[name] = self._noise_rows(name)
            found.append(sum(int(row[0]) for row in self._rows[name].ahead(self.step)))
        return np.array(found, np.int64)

    def next(self) -> Integers:
        """Return the numbers of the open step, which ends; shape (categories,)."""
        found = np.array([self._one(name) for name in self.names], np.int64)
        self.step += 1
        return found

    def _one(self, name: str) -> int:
        if not self._ahead.get(name):
            left = min(_ROWS_AHEAD, self._mechanism.steps - self.step)
            self._ahead[name] = [int(row[0]) for row in self._rows[name].ahead(left)][::-1]
        return self._ahead[name].pop()

    def _noise_rows(self, name: str) -> NoiseRows:
        person = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()
        return NoiseRows(self._mechanism, 1, derive(self._key, f"category {person}", size=32), self._openings)

    # as `Store` keeps it: no row of noise, for all follow from the key

    def saved(self) -> tuple[int, str, tuple[int, ...], bytes]:
        return self.step, "", (), json.dumps([self.names, self.later]).encode()

    def restore(self, step: int, dtype: str, shape: tuple[int, ...], data: bytes) -> None:
        self.step, (names, later) = step, json.loads(data)
        self.later = {int(at): Counter(counted) for at, counted in later.items()}
        self.add(names)  # all rows before are made again


class CategoryLedger:
    """A ledger of categories: in each a unit takes part as often as its participation allows.

    Whether a record counts depends on earlier records of the same unit alone.

    Args:
        ledger: of pairs of a unit and a category, one record in a step.
        most: categories of a unit that count, ever: its first ones.
        key: of the stream.
    """

    def __init__(self, ledger: Ledger, most: int, key: bytes) -> None:
        self._ledger, self._most, self._table = ledger, most, ledger.table
        self._secret = derive(key, "units and categories", size=64)

    def admit(
        self, units: list[bytes], names: list[str], step: int
    ) -> tuple[NDArray[np.bool_], Counter[str]]:
        """Return which records count in `step`, and how many do not, by reason. Accounts are written."""
        keys = list(map(self._pair, units, names))
        pairs: list[bytes | None] = [*keys]
        found = self._table.fetch({*keys, *units})
        known = {pair for pair in keys if pair in found}
        held = unpacked([found.get(unit, NO_ACCOUNT) for unit in units], 3)[0]  # in how many, of an account
        before = dict(zip(units, held.tolist(), strict=True))
        counts = dict(before)
        for i, (unit, pair) in enumerate(zip(units, keys, strict=True)):
            if pair not in known and counts[unit] < self._most:
                counts[unit] += 1
                known.add(pair)
            elif pair not in known:
                pairs[i] = None
        kept, refused = self._ledger.admit(pairs, step)
        changed = [unit for unit, count in counts.items() if count != before[unit]]
        now = np.array([counts[unit] for unit in changed], np.int64)
        self._table.write(dict(zip(changed, packed(now, 0 * now, 0 * now), strict=True)))
        beyond = {"of units in as many categories as they may": refused.pop(NO_ID, 0)}
        return kept, +Counter({**refused, **beyond})

    def _pair(self, unit: bytes, name: str) -> bytes:
        held = unit + name.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(held, digest_size=DIGEST, key=self._secret).digest()
