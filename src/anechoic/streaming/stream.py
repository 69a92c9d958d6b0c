"""The stream: update adds to the open step, release publishes its running statistics, once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from anechoic._validate import fraction, positive_int
from anechoic.budget.book import BudgetBook, booked
from anechoic.keys import derive
from anechoic.mechanism.begun import as_begun
from anechoic.mechanism.mechanism import Mechanism
from anechoic.mechanism.rows import NoiseRows, grid_bits
from anechoic.participation.accounts import Accounts
from anechoic.participation.base import Participation
from anechoic.runs.fork_guard import ProcessGuard, single_process
from anechoic.runs.settings_check import MECHANISM, checked_setting
from anechoic.runs.state_file import Key, opened
from anechoic.streaming.accumulator import Accumulator, check_once, take
from anechoic.streaming.attendance import Attendance
from anechoic.streaming.groups import Grouped
from anechoic.streaming.ingest import Addition, Intake, Step, steps_of
from anechoic.streaming.joint_release import SharedRelease, checked_presence, dimension_of
from anechoic.streaming.layout import StreamLayout
from anechoic.streaming.ledger import Ledger
from anechoic.streaming.mechanisms import FOR_EVER, LossOfStream, mechanism_of
from anechoic.streaming.past import Past, Publisher
from anechoic.streaming.published import KEPT, Published
from anechoic.streaming.release import Release
from anechoic.streaming.statistic import Integers, Statistic, checked_statistics, quantile
from anechoic.streaming.store import LABELS, Store
from anechoic.streaming.stream_state import AHEAD, InMemory, Standing, check_time
from anechoic.streaming.window import Over, Running, checked_over


class Stream(Published):
    """Running statistics of a stream of records about people, with a privacy guarantee.

    `update` adds records to the open step and uses no noise. `release` ends the step: one row of correlated
    noise is added to the sums of the step, and what has been released of all steps is added up (`over`).

    Guarantee: all releases together are (epsilon, delta)-DP, also where later records depend on earlier
    releases, for one privacy unit whose records are there or not (adjacency "zero_out") or are others
    ("replace_one"). Without `participation` the unit is a record ("event"). With it, units are told by
    `unit_ids`, and records beyond the participation are left out, whatever the caller feeds: nothing is
    promised. Which steps there are, and when they end, is not protected. See docs/proofs/streaming.md.

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
        over: Running() (default), SlidingWindow(width) or Decayed(factor).
        weights: by name, > 0: how precise a statistic is to be beside the others. The standard errors, each
            over the bound of one record, are in inverse proportion to them. All 1 by default.
        adjacency: "zero_out" or "replace_one".
        unit: what is protected, for statements; "event", or "unit" with `participation`.
        level: of the intervals, in (0, 1).
        loss: with a horizon, what the noise is planned for: see `planned_mechanism`.
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
        over: Over | None = None,
        weights: Mapping[str, float] | None = None,
        adjacency: str = "zero_out",
        unit: str | None = None,
        level: float = 0.95,
        loss: LossOfStream = "max",
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
        self.over = Running() if over is None else checked_over(over)
        if per_step != 1 and participation is None:
            raise ValueError(
                f"per_step={per_step} without participation: every record is a unit of its own. Give"
                " participation=Single() or MinSep(…), and unit_ids to update."
            )
        presence = checked_presence(statistics, participation, over)
        if participation is not None:
            Accounts(participation)  # refuses a schema that no account can hold a unit to
        self.per_step = positive_int("per_step", per_step)
        self.dimension = dimension_of(statistics)
        self.by_unit = participation is not None or presence is not None
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
            loss=loss,
            buffered=presence is not None,
            kept=state is not None,
        )
        if presence is not None:
            presence.check(planned)
        self.mechanism = as_begun(planned, None if state is None else Store.shown(state, MECHANISM))
        self.participation = self.mechanism.participation
        bits = grid_bits(self.mechanism, self.dimension)
        self.shared = SharedRelease(statistics, weights, self.per_step, bits)
        self._publisher = Publisher(self.mechanism, self.over, quantile(self.level))
        self._setting = checked_setting(setting)
        self._keep = KEPT if state is None and self.mechanism.steps >= FOR_EVER else None
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
        ledger = Ledger(self.participation, self.per_step, self._state.key, self._state.units)
        rule = self.shared.presence
        attendance = None if rule is None else Attendance(rule, self._state.units)
        self._intake = Intake(self.shared, ledger if self.by_unit else None, attendance)
        self._begin = Past(self._publisher, self.shared)
        self._standing = self._state.load(self._noise) or Standing.first(self.dimension)
        if self.step:
            time, total = self._kept(self.step - 1)[0], self._standing.total
            self._last = self._publisher.release(self.shared, self.step - 1, time, total)

    # -- what it is ------------------------------------------------------------------------------

    @property
    def contribution(self) -> float:
        """Largest 2-norm of what one unit adds to one step, in clip norms; at most 1."""
        return self.shared.contribution

    def standard_deviations(self, step: int) -> dict[str, float]:
        """Standard deviation of the noise in each raw number of each statistic, known in advance."""
        return self.shared.deviations(self._publisher.deviations, step)

    # -- the stream ------------------------------------------------------------------------------

    def steps(
        self,
        batches: Iterable[Any],
        *,
        unit_ids: Iterable[Any] | None = None,
        times: Iterable[str | float | None] | None = None,
        batch_ids: Iterable[str] | None = None,
    ) -> list[Release]:
        """One update and one release for each batch, kept in one commit; returned when all are on disk.

        A batch whose id was released before gives the release that it went into, and uses no noise.

        Args:
            batches: one a step.
            unit_ids, times, batch_ids: one a batch.

        Raises:
            ValueError: as `update`, before anything is changed; also if the numbers differ.
            HorizonError, GuaranteeError: as `release`.
        """
        self.owner.check()
        return self._steps(steps_of(batches, unit_ids, times, batch_ids))  # iterators may use the stream

    @single_process
    def _steps(self, steps: list[Step]) -> list[Release]:
        known = [None if one.name is None else self._state.seen(one.name) for one in steps]
        new = [one for one, step in zip(steps, known, strict=True) if step is None]
        if new or any(step is not None and step >= self.step for step in known):
            self._state.check()  # what was released before is read after a failure too
        names = [one.name for one in new if one.name is not None]
        if len(set(names)) < len(names):
            raise ValueError("batch_ids name a batch twice: each is one step.")
        places = range(self.step, self.step + len(new))
        additions = [self._read(one.batch, one.unit_ids, at) for one, at in zip(new, places, strict=True)]
        check_once(addition.accumulator for addition in additions)
        before = self._standing.time
        for one in new:
            check_time(before, one.time)
            before = before if one.time is None else one.time
        self._check_room(sum(addition.count for addition in additions))
        self._check_left(len(new))
        made: list[Release] = []
        if new:
            if self._booked is not None:
                self._booked.begin(self.step + len(new))
            with self._state.transaction():
                for one, addition, row in zip(new, additions, self._noise.ahead(len(new)), strict=True):
                    self._add(addition, one.name)
                    made.append(self._publish(one.time, row))
                self._save()
            take(addition.accumulator for addition in additions)
            self._last = made[-1]
            self._forget()
        both = zip(steps, known, strict=True)
        stored = self._stored({step: one.name for one, step in both if step is not None})
        fresh = iter(made)
        return [next(fresh) if step is None else stored[step] for step in known]

    def end_steps(self, times: Iterable[str | float | None]) -> None:
        """Release the open step, and others after it that have no more records, one a time, in one commit.

        Raises:
            ValueError, HorizonError, GuaranteeError: as `steps`.
        """
        listed = list(times)
        self.steps([Accumulator(self) for _ in listed], times=listed)

    # -- inside ----------------------------------------------------------------------------------

    @property
    def horizon(self) -> int:
        """Steps that are planned; 2**40 without a horizon."""
        return self.mechanism.steps

    @property
    def _ahead(self) -> int:
        return max(1, AHEAD // self.dimension)

    def _layout(self, stream: str, secret: bytes | None) -> StreamLayout:
        return StreamLayout.of(self.shared, stream, self.per_step, secret)

    def _check_room(self, count: int) -> None:
        self._standing.check_room(self.shared.reach(count))

    def _read(self, batch: Any, unit_ids: Any, step: int) -> Addition:
        self._check_left(1)
        self._check_of(batch, step)
        return self._intake.read(batch, unit_ids)

    def _add(self, addition: Addition, batch_id: str | None, step: int | None = None) -> None:
        at = self._standing.step if step is None else step
        sums, remarks = self._intake.sums(addition, at)
        if batch_id is not None:
            self._state.mark(batch_id, at)
        for when, added in sums.items():
            if when < self.mechanism.steps:
                self._standing.put(when, added)
        self._standing.counts += remarks

    def _publish(self, time: str | float | None, noise: Integers | None = None) -> Release:
        step = self._standing.step
        row = self._standing.end_step(
            self._noise.next() if noise is None else noise, self.over, self._row, time
        )
        made = self._publisher.release(self.shared, step, time, self._standing.total)
        self._state.append(step, time, np.ascontiguousarray(row, "<i8").tobytes())
        return made

    def _identity(self) -> str:
        """What must be the same whenever a state file is opened."""
        promise = {"by_unit": self.by_unit, "level": self.level, "setting": self._setting}
        promise |= self.shared.describe()
        over = [type(self.over).__name__, vars(self.over)]
        return json.dumps({**promise, "mechanism": self.mechanism.fingerprint, "over": over}, sort_keys=True)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({', '.join(self.shared.statistics)}; step {self.step},"
            f" {self.over.describe()})"
        )
