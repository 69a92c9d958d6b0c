"""What was released, made again from the noisy rows: they alone are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic.mechanism.mechanism import Mechanism
from anechoic.streaming.joint_release import SharedRelease
from anechoic.streaming.mechanisms import Deviations, Spent
from anechoic.streaming.release import Release
from anechoic.streaming.statistic import Integers, Statistic
from anechoic.streaming.window import Over

#: (time, noisy row) of a step.
RowOf = Callable[[int], tuple[str | float | None, Integers]]


class Publisher:
    """Releases from noisy totals: they follow from these and from what is public, bit for bit.

    Args:
        mechanism, over: of the stream.
        z: intervals are that many standard deviations of the noise to either side.
    """

    def __init__(self, mechanism: Mechanism, over: Over, z: float) -> None:
        self.over, self.deviations = over, Deviations(mechanism, over)
        self._delta, self._spent, self._z = mechanism.delta, Spent(mechanism), z

    def release(
        self, shared: SharedRelease, step: int, time: str | float | None, total: NDArray[Any], begin: int = 0
    ) -> Release:
        """The release of a step.

        Args:
            shared: its statistics.
            step, time: of it.
            total: row `step` of A Y; with `begin` what steps begin, …, step alone add up to.
        """
        estimates = shared.decode(total, self.deviations, step, lambda _: self._z, begin)
        return Release(step, time, estimates, self._spent.after(step + 1), self._delta, shared.labels)


class Past:
    """A place among the steps that were released, which goes forward.

    Args:
        publisher: of the stream.
        shared: its statistics.

    Attributes:
        step: the next one.
        total: row step - 1 of A Y.
    """

    def __init__(self, publisher: Publisher, shared: SharedRelease) -> None:
        self._publisher, self._shared = publisher, shared
        self.step, self.total = 0, np.zeros(shared.dimension, np.int64)
        self._time: str | float | None = None

    def advance(self, row_of: RowOf) -> None:
        """Go over the next step."""
        self._time, row = row_of(self.step)
        over = self._publisher.over
        self.total = over.advance(self.total, row, self.step, lambda step: row_of(step)[1])
        self.step += 1

    def release(self) -> Release:
        """What was released at the step gone over last."""
        return self._publisher.release(self._shared, self.step - 1, self._time, self.total)

    def widened(self, factor: Callable[[int, Statistic], float]) -> Release:
        """The same with intervals of factor(step, statistic) standard deviations; nothing else differs."""
        made = self.release()
        z = partial(factor, made.step)
        wide = self._shared.decode(self.total, self._publisher.deviations, made.step, z)
        estimates = {
            name: replace(wide[name], standard_error=published.standard_error)
            for name, published in made.estimates.items()
        }
        return replace(made, estimates=estimates)
