"""What was released, added up in another way: arithmetic on published rows, for which nothing is spent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic.mechanism import Mechanism
from anechoic.streaming.mechanisms import Deviations
from anechoic.streaming.over import Over, Running, totals_of
from anechoic.streaming.release import Release
from anechoic.streaming.shared import SharedRelease

Rows = Callable[[int], NDArray[np.int64]]


def between(
    mechanism: Mechanism, shared: SharedRelease, row_of: Rows, last: Release, begin: int, z: float
) -> Release:
    """Steps begin, …, last.step alone: the difference of two running totals.

    The noise in it has the covariance of the difference, which is known: the standard error is that of
    `Deviations.since`, less than that of two independent totals.

    Raises:
        ValueError: if there is no such step, or a statistic encodes records by earlier releases.
    """
    if not 0 <= begin <= last.step:
        raise ValueError(f"begin={begin} must lie between 0 and {last.step}, the last step.")
    _refuse_adaptive(shared)
    total: NDArray[Any] = np.zeros(shared.dimension, np.int64)
    for step in range(begin, last.step + 1):
        total = total + row_of(step)
    noise = Deviations(mechanism, Running())
    estimates = shared.decode(total, noise, last.step, lambda _: z, begin)
    return Release(last.step, last.time, estimates, last.epsilon, last.delta, shared.labels)


def over_again(
    mechanism: Mechanism,
    shared: SharedRelease,
    over: Over,
    row_of: Rows,
    releases: Iterator[Release],
    count: int,
    z: float,
) -> Iterator[Release]:
    """The same releases, over other steps.

    Raises:
        ValueError: if a statistic encodes records by earlier releases.
    """
    _refuse_adaptive(shared)
    noise = Deviations(mechanism, over)
    for made, (step, total) in zip(releases, totals_of(over, row_of, count), strict=True):
        estimates = shared.decode(total, noise, step, lambda _: z)
        yield Release(step, made.time, estimates, made.epsilon, made.delta, shared.labels)


def _refuse_adaptive(shared: SharedRelease) -> None:
    if shared.adaptive:
        raise ValueError(
            f"{shared.adaptive[0]!r} encodes records by earlier releases: its sums fit no others."
        )
