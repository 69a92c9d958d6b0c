"""What a stream released, made again from the noisy rows, which alone are kept; nothing is spent."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import fraction
from anechoic.mechanism.mechanism import Mechanism
from anechoic.mechanism.rows import grid_bits
from anechoic.runs.release_chain import reading
from anechoic.runs.settings_check import MECHANISM
from anechoic.streaming.base import StreamBase
from anechoic.streaming.clock import Running, SlidingWindow, Window, checked_window
from anechoic.streaming.columns import Integers
from anechoic.streaming.confidence_bands import factors
from anechoic.streaming.joint_release import SharedRelease
from anechoic.streaming.layout import statistic_of
from anechoic.streaming.mechanisms import Deviations
from anechoic.streaming.release import Release
from anechoic.streaming.statistic import Statistic, quantile
from anechoic.streaming.store import LABELS, Store

#: (time, noisy row) of a step.
RowOf = Callable[[int], tuple[str | float | None, Integers]]
#: (step, time, row of A Y) of a release.
Past = tuple[int, str | float | None, Integers]


class ReleaseDecoder:
    """Releases from noisy totals: they follow from these and from what is public, bit for bit.

    Args:
        shared, mechanism, over: of the stream.
        z: intervals are that many standard deviations of the noise to either side.
    """

    def __init__(self, shared: SharedRelease, mechanism: Mechanism, over: Window, z: float) -> None:
        self.shared, self.over, self.deviations = shared, over, Deviations(mechanism, over)
        self._spent, self._z = (mechanism.epsilon(), mechanism.delta), z

    def decode(
        self,
        step: int,
        time: str | float | None,
        total: NDArray[Any],
        begin: int = 0,
        factor: Callable[[Statistic], float] | None = None,
    ) -> Release:
        """Return the release of a step.

        Args:
            step, time: of it.
            total: row `step` of A Y; with `begin` what steps begin, …, step alone add up to.
            factor: standard deviations of an interval, by statistic, in the place of z.
        """
        z = factor or (lambda _: self._z)
        estimates = self.shared.decode(total, self.deviations, step, z, begin)
        return Release(step, time, estimates, *self._spent, self.shared.labels)

    def totals(self, steps: Iterable[int], row_of: RowOf) -> Iterator[Past]:
        """Yield (step, time, row of A Y) of steps 0, 1, …, from their noisy rows."""
        total = np.zeros(self.shared.dimension, np.int64)
        for step in steps:
            time, row = row_of(step)
            total = self.over.advance(total, row, step, lambda at: row_of(at)[1])
            yield step, time, total


class ReleaseReader(StreamBase):
    """The part of a `Stream` that reads: noisy rows of its state, and what follows from them.

    Attributes:
        mechanism, over, shared, level: of the stream.
    """

    mechanism: Mechanism
    over: Window
    shared: SharedRelease
    level: float
    _decoder: ReleaseDecoder

    def band(self, level: float | None = None) -> list[Release]:
        """Return all releases so far with intervals that hold together, for every step and every raw number.

        With a horizon that is for all steps of the stream, those to come among them. Without, for all steps
        for ever, at the price of intervals that widen slowly. Nothing is spent: it is arithmetic on what was
        published, and on the noise's known covariance.

        Args:
            level: probability that all intervals hold, in (0, 1); None for the stream's own.

        Returns:
            Releases with new `low` and `high`; nothing else differs from `releases()`.
        """
        level = self.level if level is None else fraction("level", level)
        z = factors(self.mechanism, self.over, level, self.shared.contrasts)

        def decoded(past: Past) -> Release:
            return self._decoder.decode(*past, factor=lambda one: z(past[0]) * one.spread)

        return [decoded(past) for past in self._totals(self._decoder)]

    def between(self, begin: int, last: int | None = None) -> Release:
        """Return what steps begin, …, last alone add up to: the difference of two running totals.

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
        if not 0 <= begin <= last:
            raise ValueError(f"begin={begin} must lie between 0 and {last}, the last step.")
        total = np.zeros(self.shared.dimension, np.int64)
        for step in range(begin, last + 1):
            total += self._row(step)
        return self._decoder.decode(last, self._time_and_row(last)[0], total, begin)

    def releases_over(self, over: Window) -> Iterator[Release]:
        """Return all releases so far as if over other steps: a total and the last day, for one epsilon.

        Nothing is spent: the same noisy rows are added up in another way. The noise is planned for the
        stream's own `over`, and larger here than in a stream that is planned for this one.

        Raises:
            ValueError: if `over` is none.
        """
        decoder = ReleaseDecoder(self.shared, self.mechanism, checked_window(over), quantile(self.level))
        return (decoder.decode(*past) for past in self._totals(decoder))

    def releases(self) -> Iterator[Release]:
        """Return all releases so far, as published; those of a commit once it is on disk."""
        return (self._decoder.decode(*past) for past in self._totals(self._decoder))

    def _totals(self, decoder: ReleaseDecoder) -> Iterator[Past]:
        with self.owner.reading():
            made = self._state.kept
        return decoder.totals(range(made), self._time_and_row)

    def _releases_at(self, wanted: Mapping[int, str | None]) -> dict[int, Release]:
        """Return releases of earlier steps, by step, for the names of the batches that they are asked by."""
        for step, name in wanted.items():
            if step >= self.step:
                raise ValueError(
                    f"batch {name!r} was added to step {step}, which is open: release() ends it. Use either"
                    " update and release, or steps, for one batch."
                )
        steps = range(max(wanted, default=-1) + 1)
        made = self._decoder.totals(steps, self._time_and_row)
        return {past[0]: self._decoder.decode(*past) for past in made if past[0] in wanted}

    def _time_and_row(self, step: int) -> tuple[str | float | None, Integers]:
        with self.owner.reading():
            time, row = self._state.published(step)
        return time, np.frombuffer(row, "<i8").astype(np.int64)

    def _row(self, step: int) -> Integers:
        return self._time_and_row(step)[1]


def read_releases(path: str | os.PathLike[str], *, since: int = 0) -> list[Release]:
    """Return what was released at step `since` and later, decoded from the noisy rows of the file.

    It needs no key. Nothing is changed; a stream that writes the file does not wait, nor does the reader.

    Args:
        path: of a state file, whether or not a stream has it open.
        since: first step.

    Raises:
        CheckpointError: if it is missing, damaged, or no such file, or has a statistic that is not known.
    """
    with reading(path, Store) as (meta, _, rows):
        return list(_releases(meta, rows, since))


def _releases(meta: Mapping[str, Any], rows: Iterator[tuple[str, bytes]], since: int) -> Iterator[Release]:
    identity = json.loads(meta["identity"])
    mechanism, (_, settings) = Mechanism.from_json(meta[MECHANISM]), identity["over"]
    over = SlidingWindow(**settings) if settings else Running()
    described = identity["statistics"]
    try:
        known = {name: statistic_of(described[name]) for name in identity["order"]}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"its statistics are not all of this library ({error})") from error
    dimension = sum(one.dimension for one in known.values())
    shared = SharedRelease(known, identity["weights"], identity["per_step"], grid_bits(mechanism, dimension))
    shared.labels = {name: tuple(labels) for name, labels in json.loads(meta[LABELS]).items()}
    decoder, kept = ReleaseDecoder(shared, mechanism, over, quantile(identity["level"])), {}

    def steps() -> Iterator[int]:
        for step, (time, row) in enumerate(rows):
            kept[step] = json.loads(time), np.frombuffer(row, "<i8").astype(np.int64)
            yield step
            kept.pop(step - over.reach, None)

    for past in decoder.totals(steps(), kept.__getitem__):
        if past[0] >= since:
            yield decoder.decode(*past)
