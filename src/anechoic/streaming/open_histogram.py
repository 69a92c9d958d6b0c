"""A histogram whose categories nobody lists in advance: each is released once enough units are in it."""

from __future__ import annotations

import json
import math
import os
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from scipy.special import ndtri

from anechoic._validate import fraction, positive_int
from anechoic.budget.account import WithFailureProbability
from anechoic.budget.book import BudgetBook, booked
from anechoic.errors import UnsupportedError
from anechoic.keys import derive
from anechoic.mechanism.begun import as_begun
from anechoic.participation.accounts import Accounts
from anechoic.participation.base import Participation
from anechoic.runs.fork_guard import ProcessGuard
from anechoic.runs.settings_check import MECHANISM, checked_setting
from anechoic.runs.state_file import Key, opened
from anechoic.streaming.accumulator import Accumulator, as_accumulator
from anechoic.streaming.base import StreamBase
from anechoic.streaming.categories import CategoryNoise, Pairs
from anechoic.streaming.confidence_bands import miss_of
from anechoic.streaming.ingest import Addition
from anechoic.streaming.layout import OpenLayout
from anechoic.streaming.ledger import Ledger
from anechoic.streaming.mechanisms import Deviations, Spent, mechanism_of
from anechoic.streaming.open_accumulator import OpenAccumulator
from anechoic.streaming.release import Release
from anechoic.streaming.statistic import Integers, linear_estimate, quantile
from anechoic.streaming.store import LABELS, Store
from anechoic.streaming.stream_state import InMemory, Standing
from anechoic.streaming.window import Running

#: Name of the statistic in a release.
NAME = "units"
#: Share of delta that the choice of categories may cost; the noise has the rest.
_CHOOSING = 0.5
#: Steps, from the open one on, of which accumulators are taken; a number that follows from no record.
_AHEAD = 2**10
#: Deviations are computed in float64; what BLTs' memory drifts is far below this too.
_SPARE = 2.0**-30


class OpenStore(Store):
    """A state file of an `OpenHistogram`, with all its categories."""

    KIND = "open histogram"
    SHOWN: ClassVar[tuple[str, ...]] = (LABELS, MECHANISM)


class OpenHistogram(StreamBase):
    """How many units were in each category so far, step after step; categories come from the data.

    A category is released from the step on at which its noisy count exceeds a threshold, and in all steps
    after that. Its first figure is that of all steps so far: nothing that came before is lost. One that
    nobody was in has no noise, is never released, and costs nothing.

    A unit counts in a category as often as `participation` says: `Single()` counts each unit once in each of
    its categories, at its first appearance, so that figures are numbers of distinct units.

    Guarantee: all releases together are (epsilon, delta)-DP for one unit with all its records, also where
    later records depend on earlier releases: delta is that of the noise plus the probability that a category
    of this unit alone is ever released. Theorem and proof: docs/proofs/open-categories.md.

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
        >>> diagnoses = streaming.OpenHistogram(epsilon=2.0, delta=1e-6, horizon=24)
        >>> diagnoses.update(["flu"] * 400 + ["a rare one"])
        True
        >>> list(diagnoses.release().named())
        ['flu']
    """

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
        begun = as_begun(planned, None if state is None else OpenStore.shown(state, MECHANISM))
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
        self._deviations, self._spent = Deviations(self.cost.mechanism, Running()), Spent(self.cost.mechanism)
        self._setting = checked_setting(setting)
        self.owner = ProcessGuard("stream")
        if book is not None:
            book.check(self.cost)  # before a state file is begun
        self._start(state, key=key, adopt=adopt)
        self._booked = None if book is None else booked(book, self.cost, self._state)

    def _start(self, state: str | os.PathLike[str] | None, **how: Any) -> None:
        identity = self._identity()
        shown = {LABELS: "{}", MECHANISM: self.cost.mechanism.to_json()}
        self._state = opened(OpenStore, InMemory, state, identity=identity, shown=shown, **how)
        secret = derive(self._state.key, f"categories {identity}", size=32)
        self._noise = CategoryNoise(self.cost.mechanism, secret, self._state.openings)
        self._pairs: Pairs | None = None
        if self.by_unit:
            ledger = Ledger(self.cost.mechanism.participation, 1, self._state.key, self._state.units)
            self._pairs = Pairs(ledger, self.categories_per_unit, self._state.key, self._state.units)
        self._standing = self._state.load(self._noise) or Standing.first(0)
        last = deque(self.releases(), maxlen=1)
        self._last = last[0] if last else None

    def standard_error(self, step: int) -> float:
        """Standard deviation of the noise in each figure of a step, in units; known in advance."""
        return self._deviations.at(step) * 2.0 ** (self.cost.mechanism.grid_bits or 0) / self._one

    def threshold(self, step: int) -> float:
        """What the noisy count of a category has to exceed to be released at a step; known in advance."""
        return self._limit(step) / self._one

    def _limit(self, step: int) -> int:
        """The same in units of the grid, rounded up.

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

    # -- the stream: see `StreamBase` --------------------------------------------------------------

    @property
    def horizon(self) -> int:
        """Steps that are planned; 2**40 without a horizon."""
        return self.cost.mechanism.steps

    @property
    def _ahead(self) -> int:
        return _AHEAD

    def _layout(self, stream: str, secret: bytes | None) -> OpenLayout:
        return OpenLayout.of(stream, secret, self.column, self._one)

    def _check_room(self, count: int) -> None:
        now = self._standing
        longer = replace(now, open=np.append(now.open, 0), total=np.append(now.total, 0))
        waiting = sum(counted.total() for counted in self._noise.later.values())
        longer.check_room((count + waiting) * self._one)

    def _read(self, batch: Any, unit_ids: Any, step: int) -> Addition:
        self._check_left(1)
        self._check_of(batch, step)
        made = as_accumulator(batch) or Accumulator(self.layout).add(batch, unit_ids)
        return Addition({}, made.count, None, made)

    def _add(self, addition: Addition, batch_id: str | None, step: int | None = None) -> None:
        made, at = addition.accumulator, self.step if step is None else step
        assert isinstance(made, OpenAccumulator)
        self._standing.counts += made.remarks
        counted = made.records
        if self._pairs is not None:
            units, names = made.pairs()
            kept, refused = self._pairs.admit(units, names, at)
            self._standing.counts += refused
            counted = Counter(name for name, one in zip(names, kept.tolist(), strict=True) if one)
        if batch_id is not None:
            self._state.mark(batch_id, at)
        if at == self.step:
            self._put(counted)
        else:  # a category of later records alone is not there yet: it must not be released
            self._noise.later.setdefault(at, Counter()).update(counted)

    def _put(self, counted: Counter[str]) -> None:
        """Add records to the open step."""
        standing = self._standing
        before = self._noise.add(name for name in counted if name not in self._noise.place)
        standing.open = np.append(standing.open, np.zeros_like(before))
        standing.total = np.append(standing.total, before)
        for name, count in counted.items():
            standing.open[self._noise.place[name]] += count * self._one

    def _publish(self, time: str | float | None) -> Release:
        step, shown = self._standing.step, self._shown
        self._standing.end_step(self._noise.next(), Running(), lambda _: np.zeros(0, np.int64), time)
        total, place = self._standing.total, self._noise.place
        above = np.flatnonzero(total > self._limit(step)).tolist()
        new = sorted({self._noise.names[i] for i in above} - set(shown))  # no trace of who came first
        row = np.array([total[place[name]] for name in (*shown, *new)], "<i8")
        self._state.append(step, time, json.dumps(new).encode() + b"\n" + row.tobytes())
        self._put(self._noise.later.pop(step + 1, Counter()))
        return self._made(step, time, (*shown, *new), row)

    # -- what was released -------------------------------------------------------------------------

    @property
    def _shown(self) -> tuple[str, ...]:
        """The categories that were released."""
        return () if self._last is None else self._last.labels[NAME]

    def releases(self) -> Iterator[Release]:
        """All releases so far, as published."""
        names: list[str] = []
        for step in range(self.step):
            with self.owner.reading():
                time, held = self._state.published(step)
            new, _, row = held.partition(b"\n")
            names += json.loads(new)
            yield self._made(step, time, tuple(names), np.frombuffer(row, "<i8").astype(np.int64))

    def _made(self, step: int, time: str | float | None, names: tuple[str, ...], row: Integers) -> Release:
        values = np.asarray(row / self._one)
        made = linear_estimate(values, self.standard_error(step), quantile(self.level), values)
        return Release(step, time, {NAME: made}, self._spent.after(step + 1), self.delta, {NAME: names})

    def _identity(self) -> str:
        """What must be the same whenever a state file is opened."""
        promise = {
            "kind": OpenStore.KIND,
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
