"""The stream: update adds to the open step, release publishes its running statistics, once."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from logging import getLogger
from typing import Any, NamedTuple

import numpy as np

from anechoic._validate import fraction, positive_int
from anechoic.budget.book import BudgetBook, booked
from anechoic.keys import derive
from anechoic.mechanism.mechanism import Mechanism
from anechoic.mechanism.pin_to_saved import pin_to_saved
from anechoic.mechanism.rows import NoiseRows, grid_bits
from anechoic.participation.accounts import Accounts
from anechoic.participation.base import Participation
from anechoic.runs.fork_guard import ProcessGuard, single_process
from anechoic.runs.settings_check import MECHANISM, checked_setting
from anechoic.runs.state_file import Key, opened
from anechoic.streaming.accumulator import Accumulator, check_unused, mark_used
from anechoic.streaming.base import Addition, checked_batch_id
from anechoic.streaming.clock import Running, Window, checked_window
from anechoic.streaming.columns import Integers
from anechoic.streaming.groups import Grouped
from anechoic.streaming.joint_release import SharedRelease, checked_distinct_counter
from anechoic.streaming.layout import StreamLayout
from anechoic.streaming.ledger import Ledger, digests
from anechoic.streaming.mechanisms import mechanism_of
from anechoic.streaming.release import Release
from anechoic.streaming.release_reader import ReleaseDecoder, ReleaseReader
from anechoic.streaming.statistic import Statistic, checked_statistics, column_sums, quantile
from anechoic.streaming.store import LABELS, Store
from anechoic.streaming.stream_state import AHEAD, InMemory, StreamState, checked_time


class _Step(NamedTuple):
    """One of several steps that are kept in one commit; None where nothing was given."""

    batch: Any
    unit_ids: Any
    time: str | float | None
    name: str | None


class Stream(ReleaseReader):
    """Running statistics of a stream of records about people, with a privacy guarantee.

    `update` adds records to the open step and uses no noise. `release` ends the step: one row of correlated
    noise is added to the sums of the step, and what has been released of all steps is added up (`over`).

    Guarantee: all releases together are (epsilon, delta)-DP, also where later records depend on earlier
    releases, for one privacy unit whose records are there or not (adjacency "zero_out") or are others
    ("replace_one"). Without `participation` the unit is a record ("event"). With it, units are told by
    `unit_ids`, and records beyond the participation are left out, whatever the caller feeds: nothing is
    promised. Which steps there are, and when they end, is not protected. See docs/proofs/streams.md.

    Several statistics share one release, under one sensitivity: their vectors are concatenated with weights,
    so that one record has norm at most 1. Each of K statistics with equal weights then has sqrt(K) times the
    standard error that it would have alone; splitting epsilon would cost nearly K times.

    Args:
        statistics: one, such as Count(), or several by name, as {"delay": Mean(-60, 360, "dep_delay")}.
        by: (column, groups), to release each of them by groups that are given in advance, at the noise of
            one: see `Grouped`.
        epsilon, delta: of all releases together. Not with `mechanism`.
        mechanism: a finished one, with `sampling=External(participation, 1, steps=n)`.
        horizon: number of steps n, after which nothing is released; None for 2**40 of them.
        participation: which steps one unit may touch: Single, MinSep(separation, most), OncePerEpoch, Cyclic
            or FullBatch. None for records that are units themselves.
        per_step: records of one unit that count in one step, the first ones; with `participation`.
        over: Running() (default) or SlidingWindow(width).
        weights: by name, > 0: how precise a statistic is to be beside the others. The standard errors, each
            over the bound of one record, are in inverse proportion to them. All 1 by default.
        adjacency: "zero_out" or "replace_one".
        unit: what is protected, for statements; "event", or "unit" with `participation`.
        level: of the intervals, in (0, 1).
        state: path of a state file, by which the stream outlives this process; see `store.Store`.
        key: 32 secret bytes or a function that gives them, which are then not in the state file. Noise
            follows from the key and from what is drawn whenever a stream is begun or opened: no two streams
            of one key share any.
        adopt: take a state file that was moved or copied, on your word that it is the newest.
        setting: what else must be the same whenever the state is opened, as plain data: when steps begin and
            how long they are, which columns are read, in which time zone.
        book: a `BudgetBook`, which refuses the stream, or books it: once, as long as its newest state is
            opened.

    Attributes:
        mechanism: that the noise is from.
        shared: the statistics, as they share a release.
        by_unit: whether units are told by ids, and held to their participation.
        horizon: the steps that are planned; 2**40 without a horizon.

    Raises:
        ValueError: for an argument out of range or missing.
        UnsupportedError, MismatchError: where no theorem covers the combination.
        CheckpointError, GuaranteeError: as `store.Store`, for a state file that cannot be continued.

    Example:
        >>> from anechoic import streaming
        >>> visits = streaming.Stream(streaming.Count(), epsilon=1.0, delta=1e-6, horizon=24)
        >>> visits.update(["ann", "bob", "cyd"])
        True
        >>> release = visits.release()
        >>> release.step, release.standard_error < 20, release is visits.get()
        (0, True, True)
        >>> carriers = streaming.Histogram(["AA", "UA"], "carrier")
        >>> several = {"flights": streaming.Count("carrier"), "carriers": carriers}
        >>> board = streaming.Stream(several, epsilon=1.0, horizon=24)
        >>> board.update({"carrier": ["AA", "UA", "AA"]})
        True
        >>> board.release()["carriers"].value.shape
        (2,)
    """

    def __init__(
        self,
        statistics: Statistic | Mapping[str, Statistic],
        *,
        by: tuple[str, Sequence[Any]] | None = None,
        epsilon: float | None = None,
        delta: float = 1e-6,
        mechanism: Mechanism | None = None,
        horizon: int | None = None,
        participation: Participation | None = None,
        per_step: int = 1,
        over: Window | None = None,
        weights: Mapping[str, float] | None = None,
        adjacency: str = "zero_out",
        unit: str | None = None,
        level: float = 0.95,
        state: str | os.PathLike[str] | None = None,
        key: Key = None,
        adopt: bool = False,
        setting: Mapping[str, Any] | None = None,
        book: BudgetBook | None = None,
    ) -> None:
        statistics = checked_statistics(statistics)
        if by is not None:
            statistics = {name: Grouped(one, *by) for name, one in statistics.items()}
        self.level = fraction("level", level)
        self.over = Running() if over is None else checked_window(over)
        if per_step != 1 and participation is None:
            raise ValueError(
                f"per_step={per_step} without participation: every record is a unit of its own. Give"
                " participation=Single() or MinSep(…), and unit_ids to update."
            )
        distinct_counter = checked_distinct_counter(statistics, participation, over)
        if participation is not None:
            Accounts(participation)  # refuses a schema that no account can hold a unit to
        self.per_step = positive_int("per_step", per_step)
        self.dimension = sum(one.dimension for one in statistics.values())
        self.by_unit = participation is not None or distinct_counter is not None
        planned = mechanism_of(
            mechanism,
            participation,
            over=self.over,
            horizon=horizon,
            epsilon=epsilon,
            delta=delta,
            dimension=self.dimension,
            adjacency=adjacency,
            unit=unit or ("unit" if self.by_unit else None),
            buffered=distinct_counter is not None,
            kept=state is not None,
        )
        if distinct_counter is not None:
            distinct_counter.check(planned)
        self.mechanism = pin_to_saved(planned, None if state is None else Store.shown(state, MECHANISM))
        self.participation, self.horizon = self.mechanism.participation, self.mechanism.steps
        self._ahead = max(1, AHEAD // self.dimension)
        bits = grid_bits(self.mechanism, self.dimension)
        self.shared = SharedRelease(statistics, weights, self.per_step, bits)
        self._decoder = ReleaseDecoder(self.shared, self.mechanism, self.over, quantile(self.level))
        self._setting = checked_setting(setting)
        self.owner = ProcessGuard("stream")
        if book is not None:
            book.check(self.mechanism)  # before a state file is begun
        self._start(state, key=key, adopt=adopt)
        self._booked = None if book is None else booked(book, self.mechanism, self._state)

    def _start(self, state: str | os.PathLike[str] | None, **how: Any) -> None:
        identity = self._identity()
        shown = {LABELS: json.dumps(self.shared.labels), MECHANISM: self.mechanism.to_json()}
        self._state = opened(Store, InMemory, state, identity=identity, shown=shown, **how)
        secret = derive(self._state.key, f"streaming noise {identity}", size=32)
        self._noise = NoiseRows(self.mechanism, self.dimension, secret, self._state.openings)
        self._ledger: Ledger | None = None
        if self.by_unit:
            self._ledger = Ledger(self.participation, self.per_step, self._state.key, self._state.units)
        self._stream_state = self._state.load(self._noise) or StreamState.first(self.dimension)
        if self.step:
            time, total = self._time_and_row(self.step - 1)[0], self._stream_state.total
            self._last = self._decoder.decode(self.step - 1, time, total)

    def standard_deviations(self, step: int) -> dict[str, float]:
        """Return the standard deviation of the noise in each statistic's raw numbers, known in advance."""
        return self.shared.deviations(self._decoder.deviations, step)

    def steps(
        self,
        batches: Iterable[Any],
        *,
        unit_ids: Iterable[Any] | None = None,
        times: Iterable[str | float | None] | None = None,
        batch_ids: Iterable[str] | None = None,
    ) -> list[Release]:
        """Add and release each batch, all in one commit; return the releases when they are on disk.

        A batch whose id was released before gives the release that it went into, and uses no noise.

        Args:
            batches: one a step.
            unit_ids, times, batch_ids: one a batch.

        Raises:
            ValueError: as `update`, before anything is changed; also if the numbers differ.
            HorizonError, GuaranteeError: as `release`.
        """
        self.owner.check()
        listed = list(batches)
        units, whens, names = (
            [None] * len(listed) if some is None else list(some) for some in (unit_ids, times, batch_ids)
        )
        if not len(listed) == len(units) == len(whens) == len(names):
            raise ValueError(
                f"{len(listed)} batches, {len(units)} unit_ids, {len(whens)} times and {len(names)}"
                " batch_ids: one of each belongs to a step."
            )
        names = names if batch_ids is None else list(map(checked_batch_id, names))
        return self._steps(list(map(_Step, listed, units, whens, names)))

    @single_process
    def _steps(self, steps: list[_Step]) -> list[Release]:
        known = [None if one.name is None else self._state.step_of_batch(one.name) for one in steps]
        new = [one for one, step in zip(steps, known, strict=True) if step is None]
        if new or any(step is not None and step >= self.step for step in known):
            self._state.check()  # what was released before is read after a failure too
        names = [one.name for one in new if one.name is not None]
        if len(set(names)) < len(names):
            raise ValueError("batch_ids name a batch twice: each is one step.")
        places = range(self.step, self.step + len(new))
        additions = [self._read(one.batch, one.unit_ids, at) for one, at in zip(new, places, strict=True)]
        check_unused(addition.accumulator for addition in additions)
        times, before = [], self._stream_state.time
        for one in new:
            times.append(checked_time(before, one.time))
            before = before if times[-1] is None else times[-1]
        self._check_room(sum(addition.count for addition in additions))
        self._check_left(len(new))
        made: list[Release] = []
        if new:
            if self._booked is not None:
                self._booked.begin(self.step + len(new))
            with self._state.transaction():
                rows = self._noise.ahead(len(new))
                for one, addition, time, row in zip(new, additions, times, rows, strict=True):
                    self._add(addition, one.name)
                    made.append(self._publish(time, row))
                self._save()
            mark_used(addition.accumulator for addition in additions)
            self._last = made[-1]
        both = zip(steps, known, strict=True)
        stored = self._releases_at({step: one.name for one, step in both if step is not None})
        fresh = iter(made)
        return [next(fresh) if step is None else stored[step] for step in known]

    def end_steps(self, times: Iterable[str | float | None]) -> None:
        """Release the open step, and others after it that have no more records, one a time, in one commit.

        Raises:
            ValueError, HorizonError, GuaranteeError: as `steps`.
        """
        listed = list(times)
        self.steps([Accumulator(self) for _ in listed], times=listed)

    def _layout(self, stream: str, secret: bytes | None) -> StreamLayout:
        return StreamLayout(stream, secret, self.shared, self.per_step)

    def _check_room(self, count: int) -> None:
        self._stream_state.check_room(self.shared.reach(count))

    @np.errstate(all="ignore")  # a caller's setting must not make contents an error
    def _read(self, batch: Any, unit_ids: Any, step: int) -> Addition:
        self._check_left(1)
        self._check_of(batch, step)
        if isinstance(batch, Accumulator):
            if unit_ids is not None:
                raise ValueError("unit_ids were given with an accumulator, which holds units itself.")
            return Addition({}, batch.count, None, batch)
        records, count = self.shared.read(batch)
        for name, read in records.items():
            none = read.usable is not None and not read.usable.any() and "not finite" in read.remarks
            if count > 1 and none:
                getLogger(__name__).warning("%s: no record of a batch is a number: all are left out.", name)
        secret = None if self._ledger is None else self._ledger.secret
        return Addition(records, count, digests(unit_ids, count, secret))

    @np.errstate(all="ignore")
    def _add(self, addition: Addition, batch_id: str | None, step: int | None = None) -> None:
        at = self._stream_state.step if step is None else step
        sums, remarks = self._sums(addition, at)
        if batch_id is not None:
            self._state.mark(batch_id, at)
        for when, added in sums.items():
            if when < self.mechanism.steps:
                self._stream_state.add(when, added)
        self._stream_state.counts += remarks

    def _sums(self, addition: Addition, step: int) -> tuple[dict[int, Integers], Counter[str]]:
        """Charge units; return what a batch adds to which step, and what was left out, by reason."""
        made, units, ledger = addition.accumulator, addition.units, self._ledger
        remarks: Counter[str] = Counter() if made is None else made.remarks
        if self.shared.distinct_counter is not None:
            digests = units or [] if made is None else made.by_unit()[0]
            changes, refused = self.shared.distinct_counter.admit(self._state.units, digests, step)
            (one,) = self.shared.units.values()
            return {at: np.array([many * one], np.int64) for at, many in changes.items()}, remarks + refused
        if made is not None:
            if ledger is None:
                return {step: made.sums}, remarks
            digests, rows = made.by_unit()
            counts, left_out = ledger.admit([*digests], step)
            return {step: column_sums(rows[counts])}, remarks + Counter(left_out)
        kept = None
        if ledger is not None and units is not None:
            kept, left_out = ledger.admit(units, step)
            remarks.update(left_out)
        for name, read in addition.records.items():
            remarks.update({f"{name}: {why}": count for why, count in read.remarks.items() if count})
        return {step: self.shared.sums(addition.records, kept)}, remarks

    def _publish(self, time: str | float | None, noise: Integers | None = None) -> Release:
        step = self._stream_state.step
        row = self._stream_state.end_step(
            self._noise.next() if noise is None else noise, self.over, self._row, time
        )
        made = self._decoder.decode(step, time, self._stream_state.total)
        self._state.append(step, time, np.ascontiguousarray(row, "<i8").tobytes())
        return made

    def _identity(self) -> str:
        promise = {"by_unit": self.by_unit, "level": self.level, "setting": self._setting}
        promise |= self.shared.describe()
        over = [type(self.over).__name__, vars(self.over)]
        promise |= {"mechanism": self.mechanism.fingerprint, "over": over}
        return json.dumps(promise, sort_keys=True)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({', '.join(self.shared.statistics)}; step {self.step},"
            f" {self.over.describe()})"
        )
