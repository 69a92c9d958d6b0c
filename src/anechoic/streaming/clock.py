"""Which step a time belongs to: steps of equal length in UTC, from a public start on."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
from numpy.typing import NDArray

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@dataclass(frozen=True)
class Clock:
    """Steps by time: t goes from start + t * every (included) to start + (t + 1) * every (not included).

    Steps have one length in UTC. Where clocks are set back in autumn, the hour that they show twice is two
    steps; in spring no step is missing, as an hour that clocks skip is none.

    Args:
        start: seconds since 1970, UTC.
        every: seconds, > 0.
    """

    start: float
    every: float

    def step_of(self, seconds: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the step of each time; below 0 before the start, and -2**62 for what is no time."""
        steps = np.floor((seconds - self.start) / self.every)
        return np.where(np.isfinite(steps), np.clip(steps, -(2**61), 2**61), -(2**62)).astype(np.int64)

    def at(self, seconds: float) -> float:
        """Return the step of one time, which may be infinite."""
        return math.floor((seconds - self.start) / self.every) if math.isfinite(seconds) else seconds

    def end_of(self, step: int) -> str:
        """Return when a step ends, in ISO 8601."""
        return iso(self.start + (step + 1) * self.every)


def iso(seconds: float) -> str:
    """Format a time in UTC as text that sorts."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)).isoformat(timespec="seconds")


def seconds_of(texts: Sequence[str], zone: tzinfo = UTC) -> NDArray[np.float64]:
    """Return seconds since 1970 in UTC of times as text: ISO 8601, or numbers, which are such seconds.

    A time without offset is one of `zone`. Of an hour that its clocks show twice it is the first (the second
    needs an offset); one that they skip is read with the offset before. NaN stands for what is no time.
    """
    found = np.empty(len(texts))
    known: dict[str, float] = {}
    for i, text in enumerate(texts):
        if text not in known:
            known[text] = _seconds(text, zone)
        found[i] = known[text]
    return found


def _seconds(text: str, zone: tzinfo) -> float:
    try:
        moment = datetime.fromisoformat(text.strip())
        return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp()
    except (ValueError, OverflowError):
        try:
            return float(text)
        except ValueError:
            return math.nan


def zone_of(name: str) -> tzinfo:
    """Return the time zone of that name.

    Raises:
        ValueError: if there is none.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"timezone={name!r} is unknown: give a name such as America/New_York.") from error


def length_of(text: str, name: str) -> float:
    """Return the seconds of a length such as 30s, 15min, 1h, 1d or 1w.

    Args:
        text: the length.
        name: of the option that it is of, for the error.

    Raises:
        ValueError: for anything else.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d|w)", text.strip())
    if match is None or float(match[1]) <= 0:
        raise ValueError(
            f"{name} {text!r} must be a length of time with its unit, such as 30s, 15min, 1h, 1d or 1w."
        )
    return float(match[1]) * _UNITS[match[2]]
