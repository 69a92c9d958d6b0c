"""Records of steps that are not over: added up as they come where each is a unit, else kept as they are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic.streaming.accumulator import Accumulator
from anechoic.streaming.clock import Clock, by_step
from anechoic.streaming.stream import Stream

#: Why records are in no release so far that may be in one, or were in one before.
LATE, OPEN = "of steps that were released before", "of steps that are not over"
#: Steps that are kept in one commit.
GROUP = 64
#: Steps without records that a record may end at once, where the records say how many steps there are.
GAP = 1000


@dataclass
class Columns:
    """Records as columns: times in seconds, units, what the statistics read, and which are no numbers."""

    seconds: NDArray[np.float64]
    units: NDArray[Any] | None
    values: Mapping[str, Any]
    odd: NDArray[np.bool_] | None = None


class PendingSteps:
    """Records on their way into a stream.

    A record belongs to the step of its own time, whatever the order in which records come, so that no record
    moves another.

    Args:
        stream: it goes on with its open step.
        clock: of its steps.

    Attributes:
        lost: records that count in no step, now or ever, or have something else in the place of a number.
    """

    def __init__(self, stream: Stream, clock: Clock) -> None:
        self._stream, self.clock, self.lost = stream, clock, 0
        self._sums: dict[int, Accumulator] = {}
        self._waiting: dict[int, list[Columns]] = {}
        self._left_out: Counter[str] = Counter()

    def add(self, columns: Columns, now: float = math.inf) -> None:
        """Take records. Those of steps that were released are left out, and those ahead of the clock.

        Args:
            columns: of records of any steps. Where units are told by ids, those without are left out.
            now: seconds since 1970 by the clock of this machine.
        """
        steps = self.clock.step_of(columns.seconds)
        nameless = np.zeros(len(steps), bool)
        if columns.units is not None:
            nameless[[not str(unit).strip() for unit in columns.units]] = True
        reasons = {
            "without an id": nameless,
            "without a time that can be read": ~nameless & (steps == -(2**62)),
            "before the start": ~nameless & (steps < 0) & (steps > -(2**62)),
            "ahead of the clock": ~nameless & (steps > self.clock.at(now) + 1),
        }
        out = np.zeros(len(steps), bool)
        for reason, mask in reasons.items():
            self._left_out[reason] += int(np.count_nonzero(mask))
            out |= mask
        self.lost += int(np.count_nonzero(out if columns.odd is None else out | columns.odd))
        late = ~out & (steps < self._stream.step)
        self._left_out[LATE] += int(np.count_nonzero(late))
        out |= late
        for step, places in by_step(np.where(out, -1, steps)):
            self._collect(step, columns, places)

    def _collect(self, step: int, columns: Columns, places: NDArray[np.int64]) -> None:
        values = {name: column[places] for name, column in columns.values.items()}
        if columns.units is not None:
            some = Columns(columns.seconds[places], columns.units[places], values)
            self._waiting.setdefault(step, []).append(some)
            return
        if step not in self._sums:
            self._sums[step] = Accumulator(self._stream)
        self._sums[step].add(values)

    def open_after(self, until: float | None, now: float) -> int:
        """Return the step that stays open: none is over that ends after `now`, or after `until`.

        Without `until` steps are over up to the last one that has a record, but for records beyond a gap that
        is longer than all before it.

        Raises:
            ValueError: if `until` lies beyond the horizon of the stream.
        """
        planned, last = self._stream.mechanism.steps, float(self._stream.step)
        if until is None:
            for step in sorted(self._sums.keys() | self._waiting.keys()):
                if step - last > max(GAP, last - self._stream.step):
                    break
                last = step
            return int(min(last, self.clock.at(now), planned))
        last = self.clock.at(until)
        if planned < last:
            raise ValueError(
                f"--until asks for {last:.0f} steps and the stream is planned for {planned}: give an earlier"
                " time, or begin with a longer horizon or none."
            )
        return int(min(last, self.clock.at(now)))

    def release(self, last: int) -> int:
        """Release all steps below `last`, which stays open, and return how many these are.

        Raises:
            ValueError: if the open step does not end after the one before it, by a clock that is another.
        """
        first, made = self._stream.step, self._stream.get()
        end = self.clock.end_of(first)
        if made is not None and made.time is not None and not end > str(made.time):
            raise ValueError(
                f"step {first} would end at {end}, and step {made.step} ended at {made.time}: records would"
                " count in both. Give the start and the length of steps that the stream has."
            )
        for begin in range(first, last, GROUP):
            group = range(begin, min(begin + GROUP, last))
            batches = [self._batch(step) for step in group]
            self._stream.steps(
                [batch for batch, _ in batches],
                unit_ids=[units for _, units in batches] if self._stream.by_unit else None,
                times=[self.clock.end_of(step) for step in group],
            )
            for step in group:
                self._sums.pop(step, None)
                self._waiting.pop(step, None)
        return max(0, last - first)

    def _batch(self, step: int) -> tuple[Any, Any]:
        if not self._stream.by_unit:
            return self._sums.get(step) or Accumulator(self._stream), None
        some = self._waiting.get(step, [])
        names = some[0].values if some else self._stream.shared.columns
        values = {name: _concatenated([one.values[name] for one in some]) for name in names}
        return values, _concatenated([one.units for one in some])

    def left_out(self) -> dict[str, int]:
        """Return how many records are in no release so far, by reason. Private."""
        waiting = sum(made.count for made in self._sums.values())
        waiting += sum(len(one.seconds) for some in self._waiting.values() for one in some)
        found = {**self._left_out, OPEN: waiting}
        return {reason: count for reason, count in found.items() if count}


def _concatenated(parts: list[Any]) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0, object)
