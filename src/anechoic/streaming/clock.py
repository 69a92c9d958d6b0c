"""Steps of a stream: which one a time belongs to, how times are read, and over which steps figures add up."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
from numpy.typing import NDArray

from anechoic import workloads
from anechoic._validate import positive_int
from anechoic.streaming.columns import Integers
from anechoic.workloads.base import Workload

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
#: Steps of local time, in days or months.
_CALENDAR = {"day": (1, "D"), "week": (7, "D"), "month": (1, "M"), "quarter": (3, "M"), "year": (12, "M")}
_DAY = 86400.0
#: Times that are read: a day within the years that dates can have, whatever the zone.
YEARS = -62.1e9, 253.3e9
#: Digits that are read as seconds since 1970 without being told so: from 1973 on, but no date and hour.
_SECONDS = re.compile(r"(?!(19|20)\d\d(0[1-9]|1[0-2])([0-2]\d|3[01])([01]\d|2[0-4])$)[1-9]\d{8,9}(\.\d*)?")
#: ISO 8601 as it is meant: Python takes an offset behind a date for a time, and drops minutes behind a dot.
_ISO = re.compile(
    r"\d{4}(-\d\d-\d\d|\d{4}|-?W\d\d(-?\d)?)"
    r"([Tt ]\d\d(:?\d\d(:?\d\d([.,]\d+)?)?)? ?([Zz]|[+-]\d\d(:?\d\d(:?\d\d)?)?)?)?"
)
#: How many of these are a second.
_SCALES = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


@dataclass(frozen=True)
class Clock:
    """Steps by time, each from its begin (included) to that of the next (not included).

    Steps of seconds have one length in UTC. Those of days and months begin at one local time: on the days on
    which clocks change they have 23 or 25 hours.

    Args:
        start: begin of step 0, seconds since 1970 in UTC.
        every: length of a step, > 0.
        zone: of days and months.
        unit: of `every`: "s", "D" for days, "M" for months.

    Example:
        >>> from anechoic.streaming import Clock
        >>> months = Clock.of("2024-01-01", "month", "Europe/Zurich")
        >>> months.step_of(np.array([1706741999.0, 1706742000.0])), months.end_of(0)
        (array([0, 1]), '2024-01-31T23:00:00+00:00')
    """

    start: float
    every: float
    zone: tzinfo = UTC
    unit: str = "s"

    @classmethod
    def of(cls, start: str | float, every: str, timezone: str = "UTC") -> Clock:
        """Return the clock of such steps.

        Args:
            start: begin of step 0 in ISO 8601; or seconds since 1970 of any time in it.
            every: day, week, month, quarter or year; or a length, as 15min, 1h, 7d, 2w.
            timezone: of times without offset, and in which days begin.

        Raises:
            ValueError: for what is no time, length or zone, or months that begin on another day than the 1st.
        """
        zone = zone_of(timezone)
        more = ", or day, week, month, quarter or year"
        count, unit = _CALENDAR.get(every) or (length_of(every, "every", more), "s")
        if unit == "s" and re.fullmatch(r"\d+\s*[dw]", every.strip()):
            count, unit = count / _DAY, "D"
        if not isinstance(start, str):
            day = datetime(1970, 1, 5 if unit == "D" else 1, tzinfo=zone if unit != "s" else UTC)  # a Monday
            whole = cls(day.timestamp(), count, zone, unit)
            return cls(whole.begin_of(int(whole.at(start))), count, zone, unit)
        begin = float(seconds_of([start], zone)[0])
        if not math.isfinite(begin):
            raise ValueError(f"{start!r} is no time: give ISO 8601, as 2013-01-01T00:00.")
        if unit == "M" and datetime.fromtimestamp(begin, zone).day != 1:
            raise ValueError(f"start {start!r} is not the 1st of a month, on which steps of {every!r} begin.")
        return cls(begin, count, zone, unit)

    def step_of(self, seconds: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the step of each time; below 0 before the start, and -2**62 for what is no time."""
        known = np.isfinite(seconds)
        if self.unit == "s":
            steps = np.clip(np.floor((seconds - self.start) / self.every), -(2**61), 2**61)
            return np.where(known, steps, -(2**62)).astype(np.int64)
        found, some = np.full(len(seconds), -(2**62)), np.clip(seconds[known], *YEARS)
        first = self._first
        shifted = some - (3600 * first.hour + 60 * first.minute + first.second)
        days = np.floor(shifted / _DAY).astype(np.int64).astype("M8[D]")  # in UTC: a day off at most
        guess = (days.astype(f"M8[{self.unit}]") - self._origin).astype(np.int64)
        steps, places = np.unique(guess // int(self.every), return_inverse=True)
        begins, ends = (np.array([self.begin_of(int(k) + one) for k in steps.tolist()]) for one in (0, 1))
        found[known] = steps[places] - (some < begins[places]) + (some >= ends[places])
        return found

    def at(self, seconds: float) -> float:
        """Return the step of one time, which may be infinite."""
        return int(self.step_of(np.array([seconds]))[0]) if math.isfinite(seconds) else seconds

    @property
    def _first(self) -> datetime:
        return datetime.fromtimestamp(self.start, self.zone)

    @property
    def _origin(self) -> NDArray[np.datetime64]:
        """Return the day or the month of the start."""
        return np.array(self._first.date(), f"M8[{self.unit}]")

    def begin_of(self, step: int) -> float:
        """Return when a step begins, in seconds since 1970."""
        if self.unit == "s":
            return self.start + step * self.every
        date: Any = (self._origin + step * int(self.every)).astype("M8[D]").item()
        return datetime.combine(date, self._first.time(), self.zone).timestamp()

    def end_of(self, step: int) -> str:
        """Return when a step ends, in ISO 8601."""
        return iso(self.begin_of(step + 1))

    @property
    def length(self) -> float:
        """Return the length of a step in seconds, of months roughly."""
        return self.every * {"s": 1.0, "D": _DAY, "M": 30.4 * _DAY}[self.unit]


def by_step(steps: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield each step from 0 on, and where its records stand."""
    order = np.argsort(steps, kind="stable")
    order = order[np.searchsorted(steps[order], 0) :]
    begins = np.flatnonzero(np.diff(steps[order], prepend=-1))
    for places in np.split(order, begins)[1:]:
        yield int(steps[places[0]]), places


def iso(seconds: float) -> str:
    """Format a time in UTC as text that sorts."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)).isoformat(timespec="seconds")


def seconds_of(texts: Sequence[str], zone: tzinfo = UTC, form: str | None = None) -> NDArray[np.float64]:
    """Return seconds since 1970 in UTC of times as text, each read by itself; NaN for what is no time.

    A time without offset is one of `zone`. Of an hour that its clocks show twice it is the first (the second
    needs an offset); one that they skip is read with the offset before.

    Args:
        texts: the times.
        zone: of those without offset.
        form: see `time_reader`.
    """
    read, known = time_reader(form), dict[str, float]()
    found = np.empty(len(texts))
    for i, text in enumerate(texts):
        if text not in known:
            try:
                moment = read(text.strip())
                if isinstance(moment, datetime):
                    moment = (moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp()
            except (ValueError, OverflowError):
                moment = math.nan
            known[text] = moment if YEARS[0] < moment < YEARS[1] else math.nan
        found[i] = known[text]
    return found


def time_reader(form: str | None) -> Callable[[str], datetime | float]:
    """Return what reads a text as a time, or as seconds since 1970.

    Args:
        form: None for ISO 8601, in which digits alone are a date of eight or seconds of nine or ten; "s",
            "ms", "us" or "ns" since 1970; "excel" for days since 1899-12-30; or a format of
            `datetime.strptime`, as "%d.%m.%Y %H:%M".
    """
    if form is None:
        return _from_iso
    if form in _SCALES:
        return lambda text: float(text) / _SCALES[form]
    if form == "excel":  # whose hours have 15 digits: to the millisecond
        return lambda text: datetime(1899, 12, 30) + timedelta(seconds=round(float(text) * _DAY, 3))
    if form_unit(form) is None:
        raise ValueError(
            f"time format {form!r} must be s, ms, us, ns, excel, or one of strptime with a year, such as"
            " %d.%m.%Y %H:%M; with %I goes %p, and in the place of %Z stand the letters, or %z."
        )
    return lambda text: datetime.strptime(text, form)


def form_unit(form: str) -> float | None:
    """Return the seconds that a format of strptime tells apart (0 for hours and less); None for none."""
    if "%Z" in form or not re.search("%[YyGcx]", form):
        return None
    moment = datetime(2001, 2, 3, 16, 5, 6, tzinfo=UTC)
    try:
        read = datetime.strptime(moment.strftime(form), form)
    except ValueError:
        return None
    if read.year != moment.year or ("%I" in form and read.hour != moment.hour):
        return None
    parts = {0.0: read.hour == 16, _DAY: read.day == 3, 28 * _DAY: read.month == 2, 360 * _DAY: True}
    return next(seconds for seconds, there in parts.items() if there)


def _from_iso(text: str) -> datetime | float:
    try:
        number = float(text)
    except ValueError:
        return datetime.fromisoformat(text) if _ISO.fullmatch(text) else math.nan
    if re.fullmatch(r"\d{8}", text):
        return datetime.fromisoformat(text)
    return number if _SECONDS.fullmatch(text) else math.nan


def midnights_in(seconds: NDArray[np.float64], zone: tzinfo) -> int:
    """Count the times that are a midnight of a zone, as dates alone are."""
    known, counts = np.unique(seconds[seconds % 900 == 0], return_counts=True)
    local = (datetime.fromtimestamp(moment, zone) for moment in known.tolist())
    return int(counts[np.array([not (at.hour or at.minute) for at in local], bool)].sum())


def zone_of(name: str) -> tzinfo:
    """Return the time zone of that name."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"timezone={name!r} is unknown: give a name such as America/New_York.") from error


def length_of(text: str, name: str, more: str = "") -> float:
    """Return the seconds of a length such as 30s, 15min, 1h, 1d or 1w.

    Args:
        text: the length.
        name: of the option that it is of, for the error.
        more: what else it may be, for the error.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d|w)", text.strip())
    if match is None or float(match[1]) <= 0:
        raise ValueError(
            f"{name} {text!r} must be a length of time with its unit, such as 30s, 15min, 1h, 1d or 1w{more}."
        )
    return float(match[1]) * _UNITS[match[2]]


class Window:
    """The weights of earlier steps in what is released at a step. Subclasses are final."""

    @property
    def reach(self) -> int:
        """Return how many rows back the one lies that leaves the sum; 0 where none does."""
        return 0

    def workload(self, n: int) -> Workload:
        """Return A, for n steps."""
        return workloads.sliding_window(n, min(self.reach, n)) if self.reach else workloads.prefix_sum(n)

    def advance(
        self,
        total: Integers,
        row: Integers,
        step: int,
        row_of: Callable[[int], Integers],
    ) -> Integers:
        """Return row `step` of A Y, from the one before it.

        Args:
            total: row step - 1 of A Y, zeros at step 0; shape (m,).
            row: row `step` of Y.
            step: >= 0.
            row_of: gives earlier rows of Y.
        """
        found = total + row
        return found - row_of(step - self.reach) if 0 < self.reach <= step else found

    def describe(self) -> str:
        """Return its words for statements."""
        last = f"the last {self.reach} steps" if self.reach > 1 else "each step alone"
        return last if self.reach else "all steps so far"


@dataclass(frozen=True)
class Running(Window):
    """All steps so far: prefix sums."""


@dataclass(frozen=True)
class SlidingWindow(Window):
    """The last `width` steps, this one among them.

    Args:
        width: >= 1.

    Raises:
        ValueError: for an argument out of range.
    """

    width: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", positive_int("width", self.width))

    @property
    def reach(self) -> int:
        return self.width


def checked_window(over: Window) -> Window:
    """Return `over` if it is one."""
    if not isinstance(over, Window):
        raise ValueError(f"over={over!r} must be Running() or SlidingWindow(width).")
    return over
