"""Where a stream stands between two instructions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic.errors import HorizonError
from anechoic.streaming.statistic import Integers
from anechoic.streaming.window import Over

#: Sums stay below this, so that with a row of noise they stay below 2**63.
MOST = 2**62


@dataclass
class Standing:
    """All that the next instruction of a stream depends on, besides its key, its noise and its releases.

    Attributes:
        step: releases made.
        open: sums of the open step, int64, shape (m,).
        total: row step - 1 of A Y, int64, or float64 where earlier steps fade; shape (m,).
        counts: of records that were left out or changed, by reason; private.
        time: of the last release that had one.
    """

    step: int
    open: Integers
    total: NDArray[Any]
    counts: Counter[str]
    time: str | float | None = None

    @classmethod
    def first(cls, dimension: int) -> Standing:
        """Before anything."""
        return cls(0, np.zeros(dimension, np.int64), np.zeros(dimension, np.int64), Counter())

    def end_step(
        self, noise: Integers, over: Over, row_of: Callable[[int], Integers], time: str | float | None
    ) -> Integers:
        """Row `step` of Y, which is the open step with its noise; the next step begins."""
        row = self.open + noise
        self.total = over.advance(self.total, row, self.step, row_of)
        self.open = np.zeros(len(row), np.int64)
        self.step += 1
        self.time = self.time if time is None else time
        return row

    def check_room(self, reach: int) -> None:
        """Refuse what could take a sum of the open step, or one over all steps, to `MOST` or beyond.

        Args:
            reach: what is to be added to an entry, at most in size.

        Raises:
            HorizonError: before anything was added; nothing that was added is lost.
        """
        earlier = np.abs(self.total) if self.total.dtype.kind == "i" else np.zeros_like(self.open)
        if int((earlier + np.abs(self.open)).max()) + reach >= MOST:
            raise HorizonError(
                "this batch could take a sum beyond the integers of 64 bits in which it is kept, so that it"
                " is refused as a whole. What was added before stays, and can be released. Begin another"
                " stream, whose privacy cost adds to this one's; a mechanism with fewer grid_bits holds more."
            )


def beyond(planned: int, made: int, what: str) -> HorizonError:
    """The error of a stream that is asked for more steps than are planned."""
    return HorizonError(
        f"all {planned} steps of this stream are planned for, {made} are released, and {what} would not be"
        " covered by its guarantee. Begin another stream, whose privacy cost adds to this one's; without"
        " horizon there is no last step."
    )


def plain_time(time: Any) -> str | float | None:
    """A time as built-in text or number, which can be kept.

    Raises:
        ValueError: for something else than text, a finite number or None.
    """
    plain = time.item() if isinstance(time, np.generic) else time
    if plain is None:
        return None
    if isinstance(plain, str):
        return str.__str__(plain)
    if isinstance(plain, int | float) and not isinstance(plain, bool):
        with suppress(OverflowError):
            if math.isfinite(plain):
                return int.__index__(plain) if isinstance(plain, int) else float.__float__(plain)
    raise ValueError(
        f"time={time!r:.60} must be text that sorts, as ISO 8601 in UTC (isoformat() of a datetime), a finite"
        " number, or None."
    )


def check_time(before: str | float | None, time: str | float | None) -> None:
    """Refuse a time that lies before the one of the last release, or cannot be compared with it.

    Raises:
        ValueError: for such a time.
    """
    if time is None or before is None:
        return
    if isinstance(time, str) != isinstance(before, str):
        raise ValueError(f"time={time!r} after {before!r}: give all times as text, or all as numbers.")
    if not time >= before:  # type: ignore[operator]
        raise ValueError(f"time={time!r} lies before {before!r}, that of the last release: time went back.")
