"""The estimator: update adds to the open step, release publishes its running statistics, once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from anechoic._validate import fraction, positive_int
from anechoic.keys import derive
from anechoic.mechanism import Mechanism
from anechoic.mechanism.rows import NoiseRows, grid_bits
from anechoic.participation import Participation
from anechoic.runs.own_process import OwnProcess, alone
from anechoic.streaming.again import between, over_again
from anechoic.streaming.bands import Factors, widened
from anechoic.streaming.group import Group
from anechoic.streaming.intake import Addition, Intake, Partial, checked_id
from anechoic.streaming.ledger import Ledger
from anechoic.streaming.mechanisms import ACCURATE_TO, Deviations, Spent, mechanism_of
from anechoic.streaming.opening import Key, opened
from anechoic.streaming.over import Over, Running, checked_over, totals_of
from anechoic.streaming.release import Release
from anechoic.streaming.shared import SharedRelease, dimension_of
from anechoic.streaming.standing import Standing, beyond, check_time, plain_time
from anechoic.streaming.statistic import Integers, Statistic, checked_statistics, quantile

#: Releases that are read under the lock at once.
READ_AT_ONCE = 1024


class Estimator:
    """Running statistics of a stream of records about people, with a privacy guarantee.

    `update` adds records to the open step and uses no noise. `release` ends the step: one row of correlated
    noise is added to the sums of the step, and what has been released of all steps is added up (`over`).

    Guarantee: all releases together are (epsilon, delta)-DP, also where later records depend on earlier
    releases, for one privacy unit whose records are there or not (adjacency "zero_out") or are others
    ("replace_one"). Without `participation` the unit is a record ("event"). With it, units are told by
    `unit_ids`, and records beyond the participation are left out, whatever the caller feeds: nothing is
    promised. Which steps there are, and when they end, is not protected. See docs/proofs/streaming.md.

    Args:
        statistics: by name; they share one release (see `weights`).
        epsilon, delta: of all releases together. Not with `mechanism`.
        mechanism: a finished one, with `sampling=External(participation, 1, steps=n)`.
        horizon: number of steps n, after which nothing is released; None for 2**40 of them.
        participation: which steps one unit may touch: Single, MinSep(separation, most) or FullBatch. None for
            records that are units themselves.
        per_step: records of one unit that count in one step, the first ones; with `participation`.
        over: Running() (default), SlidingWindow(width) or Decayed(factor).
        weights: by name, > 0: how precise a statistic is to be beside the others. The standard errors, each
            over the bound of one record, are in inverse proportion to them. All 1 by default.
        adjacency: "zero_out" or "replace_one".
        unit: what is protected, for statements; "event", or "unit" with `participation`.
        level: of the intervals, in (0, 1).
        accurate_to: without horizon, the releases for which running sums are near the best possible.
        loss: with a horizon, what the noise is planned for: see `planned_mechanism`.
        state: path of a state file, by which the stream outlives this process; see `store.Store`.
        key: 32 secret bytes or a function that gives them, which are then not in the state file. Without a
            state file, use a key for one stream only: another one with the same mechanism and statistics
            would have the same noise.
        counter: path of a file, kept elsewhere, by which an older state file is recognised.
        adopt: take a state file that was moved or copied.

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
        >>> visits = streaming.Count(epsilon=1.0, delta=1e-6, horizon=24)
        >>> visits.update(["ann", "bob", "cyd"])
        True
        >>> release = visits.release()
        >>> release.step, release.standard_error < 20, release is visits.get()
        (0, True, True)
    """

    def __init__(
        self,
        statistics: Mapping[str, Statistic],
        *,
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
        accurate_to: int = ACCURATE_TO,
        loss: str = "max",
        state: str | os.PathLike[str] | None = None,
        key: Key = None,
        counter: str | os.PathLike[str] | None = None,
        adopt: bool = False,
    ) -> None:
        checked_statistics(statistics)
        self.level = fraction("level", level)
        self._z = quantile(self.level)
        self.over = Running() if over is None else checked_over(over)
        if per_step != 1 and participation is None:
            raise ValueError(
                f"per_step={per_step} without participation: every record is a unit of its own. Give"
                " participation=Single() or MinSep(…), and unit_ids to update."
            )
        self.per_step = positive_int("per_step", per_step)
        self.dimension = dimension_of(statistics)
        self.by_unit = participation is not None
        self.mechanism = mechanism_of(
            mechanism,
            participation,
            over=self.over,
            horizon=horizon,
            epsilon=epsilon,
            delta=delta,
            dimension=self.dimension,
            adjacency=adjacency,
            unit=unit,
            accurate_to=accurate_to,
            loss=loss,
        )
        self.participation = self.mechanism.participation
        bits = grid_bits(self.mechanism, self.dimension)
        self.shared = SharedRelease(statistics, weights, self.per_step, bits)
        if self.shared.adaptive and self.over != Running():
            raise ValueError(
                f"{self.shared.adaptive[0]!r} needs sums over all steps, not over={self.over!r}."
            )
        self._deviations, self._spent = Deviations(self.mechanism, self.over), Spent(self.mechanism)
        self._start(state, key, counter, adopt)

    def _start(
        self,
        state: str | os.PathLike[str] | None,
        key: Key,
        counter: str | os.PathLike[str] | None,
        adopt: bool,
    ) -> None:
        self._state, secret, salt = opened(
            state, self._identity(), self.shared.labels, key=key, counter=counter, adopt=adopt
        )
        self.owner = OwnProcess("stream")
        # one key may serve several streams: their noise differs by the salt, and by what they release
        address = f"streaming noise {salt.hex()} {self._identity()}"
        self._noise = NoiseRows(self.mechanism, self.dimension, derive(secret, address, size=32))
        ledger = Ledger(self.participation, self.per_step, secret, self._state.accounts)
        self._intake = Intake(self.shared, ledger if self.by_unit else None)
        self._standing = Standing.first(self.dimension)
        self._last: Release | None = None
        saved = self._state.load()
        if saved is not None:
            self._standing = Standing.of(saved)
            self._learn_again()
            self._noise.restore(saved.step, saved.noise_dtype, saved.noise_shape, saved.noise)
            if self.step:
                self._last = self._state.release(self.step - 1)

    # -- what it is ------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Releases made, which is the index of the open step."""
        return self._state.kept

    @property
    def contribution(self) -> float:
        """Largest 2-norm of what one unit adds to one step, in clip norms; at most 1."""
        return self.shared.contribution

    def standard_deviations(self, step: int) -> dict[str, float]:
        """Standard deviation of the noise in each raw number of each statistic, known in advance."""
        return self.shared.deviations(self._deviations, step)

    def diagnostics(self) -> dict[str, int]:
        """Records so far that were left out or changed, by reason. Private: for the operator alone."""
        return dict(self._standing.counts)

    # -- the stream ------------------------------------------------------------------------------

    @alone
    def update(self, batch: Any, unit_ids: Any = None, *, batch_id: str | None = None) -> bool:
        """Add records to the open step. No noise is used, and nothing is published.

        Args:
            batch: records, as the statistics read them; a mapping of columns where they name columns.
            unit_ids: one a record, with `participation`: integers, text or bytes.
            batch_id: a name for the batch. One that was added before is not added again.

        Returns:
            Whether it was added: False for a batch id that is known.

        Raises:
            ValueError: for records of the wrong shape, or unit ids that are missing or not wanted.
            HorizonError: if all steps were released, or a sum could leave the range of its integers.
            GuaranteeError: in a fork, or after a failure that left the state file behind.
        """
        addition = self._read(batch, unit_ids)
        if batch_id is not None and self._state.seen(checked_id(batch_id)) is not None:
            return False
        self._standing.check_room(self.shared.reach(addition.count))
        with self._state.transaction():
            self._add(addition, batch_id)
            self._save()
        return True

    def partial(self, batch: Any) -> Partial:
        """A batch as what it adds to a step, to be added up with others and handed to `update` or `steps`.

        It is as private as the batch. Nothing changes, and nothing is published.

        Raises:
            ValueError: as `update`; with `participation`, where who counts is told by the ledger; and for
                statistics that encode records by earlier releases.
        """
        return self._intake.partial(batch)

    @alone
    def release(self, time: str | float | None = None) -> Release:
        """End the open step and publish: one row of noise, used here and never again.

        Args:
            time: of the step's end, kept with the release: text that sorts (as ISO 8601 in UTC) or a number,
                not below that of the release before.

        Raises:
            HorizonError: if all steps were released.
            ValueError: if time goes backwards, or is something else.
            GuaranteeError: as `update`.
        """
        time = plain_time(time)
        check_time(self._standing.time, time)
        if self.step >= self.mechanism.steps:
            raise beyond(self.mechanism.steps, self.step, "another step")
        with self._state.transaction():
            made = self._publish(time, self._noise.next())
            self._save()
        self._last = made
        return made

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
        return self._steps(Group.of(batches, unit_ids, times, batch_ids))  # iterators may use the stream

    @alone
    def _steps(self, group: Group) -> list[Release]:
        places = group.known(self._state.seen)
        new = [place for place, known in enumerate(places) if known is None]
        additions = {place: self._read(group.batches[place], group.unit_ids[place]) for place in new}
        group.check_times(new, self._standing.time)
        self._standing.check_room(self.shared.reach(sum(one.count for one in additions.values())))
        if self.step + len(new) > self.mechanism.steps:
            raise beyond(self.mechanism.steps, self.step, f"{len(new)} more steps")
        made: dict[int, Release] = {}
        if new:
            with self._state.transaction():
                rows = self._noise.ahead(len(new))
                for place in new:
                    self._add(additions[place], group.names[place])
                    made[place] = self._publish(group.times[place], next(rows))
                self._save()
            self._last = made[new[-1]]
        return [
            made[place] if known is None else self._stored(known, group.names[place])
            for place, known in enumerate(places)
        ]

    def _stored(self, step: int, name: str | None) -> Release:
        if step >= self.step:
            raise ValueError(
                f"batch {name!r} was added to step {step}, which is open: release() ends it. Use either"
                " update and release, or steps, for one batch."
            )
        return self._state.release(step)

    def band(self, level: float | None = None, *, simultaneous: bool = True) -> list[Release]:
        """All releases so far with intervals that hold together, for every step and every raw number.

        With a horizon that is for all steps of the stream, those to come among them. Without, for all steps
        for ever, at the price of intervals that widen slowly. Nothing is spent: it is arithmetic on what was
        published, and on the noise's known covariance.

        Args:
            level: probability that all intervals hold, in (0, 1); None for the stream's own.
            simultaneous: False for pointwise intervals of that level.

        Returns:
            Releases with new `low` and `high`; nothing else differs from `releases()`.
        """
        level = self.level if level is None else fraction("level", level)
        factors = Factors(self.mechanism, self.over, level, self.shared.contrasts)
        made = list(self.releases())
        return widened(
            zip(made, totals_of(self.over, self._row, len(made)), strict=True),
            self.shared.fresh(),
            self._deviations,
            factors.of if simultaneous else lambda step, statistic: quantile(level),
        )

    def between(self, begin: int, last: int | None = None) -> Release:
        """What steps begin, …, last alone add up to: the difference of two running totals, with its errors.

        Yesterday's count, from totals of today and of the day before. Nothing is spent: it is arithmetic on
        what was published, and on the covariance of its noise.

        Args:
            begin: first step.
            last: None for the last that was released.

        Raises:
            ValueError: if there is no such release, or not over all steps.
        """
        last = self.step - 1 if last is None else last
        if self.over != Running() or not 0 <= last < self.step:
            raise ValueError(
                f"last={last}: between needs running totals, and {self.step} of {self.over!r} are released."
            )
        [end] = self._some(last, last + 1)
        return between(self.mechanism, self.shared, self._row, end, begin, self._z)

    def releases_over(self, over: Over) -> Iterator[Release]:
        """All releases so far as if they were over other steps: a total and the last day, for one epsilon.

        Nothing is spent: the same noisy rows are added up in another way. The noise is planned for the
        stream's own `over`, and larger here than in a stream that is planned for this one.

        Raises:
            ValueError: if `over` is none, or a statistic encodes records by earlier releases.
        """
        made = self.step
        return over_again(
            self.mechanism, self.shared, checked_over(over), self._row, self.releases(), made, self._z
        )

    def get(self) -> Release | None:
        """The last release, or None before the first. Free: what is published can be read at will."""
        return self._last

    def releases(self) -> Iterator[Release]:
        """All releases so far, as they were published; those of a commit when it is on disk, none before."""
        with self.owner.reading():
            made = self._state.kept
        firsts = range(0, made, READ_AT_ONCE)
        return chain.from_iterable(self._some(first, min(first + READ_AT_ONCE, made)) for first in firsts)

    def _some(self, first: int, last: int) -> list[Release]:
        with self.owner.reading():
            return self._state.releases(first, last)

    def close(self) -> None:
        """Give the state file back; it can be opened again."""
        self._state.close()
        self.owner.leave()

    def __enter__(self) -> Estimator:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # -- inside ----------------------------------------------------------------------------------

    def _read(self, batch: Any, unit_ids: Any) -> Addition:
        if self.step >= self.mechanism.steps:
            raise beyond(self.mechanism.steps, self.step, "another step")
        return self._intake.read(batch, unit_ids)

    def _add(self, addition: Addition, batch_id: str | None) -> None:
        step = self._standing.step
        sums, remarks, changed = self._intake.sums(addition, step)
        if changed:
            self._state.accounts.keep(changed)
        if batch_id is not None:
            self._state.mark(batch_id, step)
        self._standing.open = self._standing.open + sums
        self._standing.counts += remarks

    def _publish(self, time: str | float | None, noise: Integers) -> Release:
        step = self._standing.step
        row = self._standing.end_step(noise, self.over, self._row, time)
        estimates = self.shared.decode(self._standing.total, self._deviations, step, lambda _: self._z)
        epsilon = self._spent.after(step + 1)
        made = Release(step, time, estimates, epsilon, self.mechanism.delta, self.shared.labels)
        self._state.append(made, np.ascontiguousarray(row, "<i8").tobytes())
        self.shared.learn(self._standing.total, self._deviations, step)
        return made

    def _learn_again(self) -> None:
        for step, total in totals_of(self.over, self._row, self.step if self.shared.adaptive else 0):
            self.shared.learn(total, self._deviations, step)

    def _save(self) -> None:
        self._state.save(partial(self._standing.snapshot, self._noise))

    def _row(self, step: int) -> Integers:
        with self.owner.reading():
            return np.frombuffer(self._state.row(step), "<i8").astype(np.int64)

    def _identity(self) -> str:
        """What must be the same whenever a state file is opened."""
        promise = {"by_unit": self.by_unit, "level": self.level, **self.shared.describe()}
        over = [type(self.over).__name__, vars(self.over)]
        return json.dumps({**promise, "mechanism": self.mechanism.fingerprint, "over": over}, sort_keys=True)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a stream cannot be copied or pickled: its noise would be used twice. Give it a state."
        )

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({', '.join(self.shared.statistics)}; step {self.step},"
            f" {self.over.describe()})"
        )
