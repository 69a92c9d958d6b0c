"""What a stream released, read again: as often as wanted and in several ways, for which nothing is spent."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from anechoic._validate import fraction
from anechoic.mechanism.mechanism import Mechanism
from anechoic.streaming.base import StreamBase
from anechoic.streaming.confidence_bands import Factors
from anechoic.streaming.joint_release import SharedRelease
from anechoic.streaming.past import Past, Publisher
from anechoic.streaming.release import Release
from anechoic.streaming.statistic import Integers, quantile
from anechoic.streaming.window import Over, Running, checked_over

#: Releases of an endless stream without a state file that can be read again.
KEPT = 2**14


class Published(StreamBase):
    """The part of a `Stream` that reads: noisy rows of its state, and what follows from them.

    Attributes:
        mechanism, over, shared, level: of the stream.
    """

    mechanism: Mechanism
    over: Over
    shared: SharedRelease
    level: float
    _publisher: Publisher
    _keep: int | None
    #: Where releases can be read from.
    _begin: Past

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
        factor = factors.of if simultaneous else lambda step, statistic: quantile(level)
        return list(self._again(lambda past: past.widened(factor)))

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
        if not 0 <= begin <= last:
            raise ValueError(f"begin={begin} must lie between 0 and {last}, the last step.")
        total = np.zeros(self.shared.dimension, np.int64)
        for step in range(begin, last + 1):
            total += self._row(step)
        return self._publisher.release(self.shared, last, self._kept(last)[0], total, begin)

    def releases_over(self, over: Over) -> Iterator[Release]:
        """All releases so far as if they were over other steps: a total and the last day, for one epsilon.

        Nothing is spent: the same noisy rows are added up in another way. The noise is planned for the
        stream's own `over`, and larger here than in a stream that is planned for this one.

        Raises:
            ValueError: if `over` is none, or the stream does not keep all of its rows.
        """
        publisher = Publisher(self.mechanism, checked_over(over), quantile(self.level))
        return self._going(Past(publisher, self.shared), self.step, Past.release)

    def releases(self) -> Iterator[Release]:
        """All releases so far that are kept, as published; those of a commit once it is on disk."""
        return self._again(Past.release)

    def _again(self, read: Callable[[Past], Release]) -> Iterator[Release]:
        with self.owner.reading():
            made, past = self._state.kept, copy.copy(self._begin)
        return self._going(past, made, read)

    def _going(self, past: Past, made: int, read: Callable[[Past], Release]) -> Iterator[Release]:
        while past.step < made:
            past.advance(self._kept)
            yield read(past)

    def _stored(self, wanted: Mapping[int, str | None]) -> dict[int, Release]:
        """Releases of earlier steps, by step, with the name of the batch that each is asked by."""
        for step, name in wanted.items():
            if step >= self.step:
                raise ValueError(
                    f"batch {name!r} was added to step {step}, which is open: release() ends it. Use either"
                    " update and release, or steps, for one batch."
                )
            if step < self._begin.step:
                raise ValueError(
                    f"batch {name!r} was released at step {step}, and the last {self._keep} releases are"
                    " kept: a state file keeps all."
                )
        found, past = {}, copy.copy(self._begin)
        while wanted and past.step <= max(wanted):
            past.advance(self._kept)
            if past.step - 1 in wanted:
                found[past.step - 1] = past.release()
        return found

    def _forget(self) -> None:
        """Rows that no release is read from any more."""
        while self._keep is not None and self.step - self._begin.step > self._keep:
            self._begin.advance(self._kept)
            self._state.forget(self._begin.step - self.over.reach)

    def _kept(self, step: int) -> tuple[str | float | None, Integers]:
        with self.owner.reading():
            time, row = self._state.published(step)
        return time, np.frombuffer(row, "<i8").astype(np.int64)

    def _row(self, step: int) -> Integers:
        return self._kept(step)[1]
