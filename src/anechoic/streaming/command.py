"""`anechoic stream`: records of a file, step by step, into a state file and a table."""

from __future__ import annotations

import csv
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic.budget.book import BudgetBook
from anechoic.keys import key_in_environment
from anechoic.participation import MinSep
from anechoic.participation.base import Participation
from anechoic.runs.atomic_files import check_writable, replaced
from anechoic.statement.rounding import round_up
from anechoic.streaming.clock import (
    Clock,
    Running,
    SlidingWindow,
    form_unit,
    iso,
    midnights_in,
    time_reader,
    zone_of,
)
from anechoic.streaming.distribution import Distribution, Quantiles
from anechoic.streaming.pending import LATE, OPEN, Columns, PendingSteps
from anechoic.streaming.release import SHOWN, rows_of, write_releases
from anechoic.streaming.sentences import statement, statement_data
from anechoic.streaming.sources import looks_of, numbers_of, source_of, texts_of, times_of
from anechoic.streaming.statistic import Statistic
from anechoic.streaming.stream import Stream
from anechoic.streaming.sums import Count, Histogram, Mean, Sum


def statistics_of(options: Any) -> dict[str, Statistic]:
    """Return statistics by their short forms, which `anechoic stream --help` shows."""
    found: dict[str, Statistic] = {}

    def add(name: str, text: str, statistic: Statistic) -> None:
        """Add it under a name of its own, where another form has the plain one."""
        name = f"{name} ({text})" if name in found else name
        if name in found:
            raise ValueError(f"{text!r} is given twice: once is enough.")
        found[name] = statistic

    if options.count:
        add("count", options.time, Count(options.time))
    for text in options.sum:
        column, bound = _numbers(text, "column:bound", "fare:100")
        add(f"sum of {column}", text, Sum(bound, column=column))
    for text in options.mean:
        column, low, high = _numbers(text, "column:low:high", "delay:-60:360")
        add(f"mean {column}", text, Mean(low, high, column))
    for text in options.histogram:
        column, categories = _listed(text)
        add(column, text, Histogram(categories, column))
    for kind, texts in ((Quantiles, options.quantiles), (Distribution, options.distribution)):
        for text in texts:
            column, *numbers = _numbers(text, "column:low:high:width", "delay:-60:360:5")
            add(f"{kind.name} of {column}", text, kind(_edges(text, *numbers), column=column))
    if not found:
        raise ValueError(
            "nothing to release: give --count, --sum, --mean, --histogram, --quantiles or --distribution."
        )
    return found


def _listed(text: str) -> tuple[str, list[str]]:
    """Split column:category,category,…; a category with a comma or colon stands in quotes, as in CSV."""
    field = r'(?:"(?:[^"]|"")*"|[^",:][^,:]*)'
    match = re.fullmatch(rf"(.+):({field}(?:,{field})*)", text, re.DOTALL)
    if match is None:
        raise ValueError(
            f"{text!r} must have the form column:category,category,…, one with a comma or colon in double"
            " quotes; categories taken from the data would show who is in it."
        )
    return match[1], next(csv.reader([match[2]]))


_TABLES = (".csv", ".jsonl", ".ndjson", ".parquet")
#: Options that a `Stream` has too.
_OF_STREAM = ("epsilon", "delta", "horizon", "per_step", "unit", "state", "adopt")


def stream_file(options: Any) -> None:
    """Run the command with parsed options; see `anechoic stream --help`."""
    statistics = statistics_of(options)
    if options.out is not None and options.out.suffix not in _TABLES:
        raise ValueError(f"out={options.out} must end in .csv, .jsonl or .parquet.")
    for target in (options.out, *(file for _, file in options.statement)):
        if target is not None:
            check_writable(target)  # before anything is released
    participation: Participation | None = None
    if options.unit is not None:
        participation = MinSep(options.min_sep or 1, options.max_participations or 1)
    elif options.min_sep or options.max_participations or options.per_step != 1:
        raise ValueError("--min-sep, --max-participations and --per-step need --unit, the column of ids.")
    clock = None if options.start is None else Clock.of(options.start, options.every, options.timezone)
    with Stream(
        statistics,
        by=None if options.by is None else _listed(options.by),
        over=Running() if options.over is None else SlidingWindow(options.over),
        participation=participation,
        **{name: getattr(options, name) for name in _OF_STREAM},
        setting=_setting(options, clock),
        book=book_of(options),
    ) as stream:
        try:
            _release_file(options, stream, clock)
        except KeyboardInterrupt:
            left = (
                f"{stream.step} released steps are kept in {options.state}: the same command goes on there."
            )
            if options.state is None:
                left = "without --state nothing is kept. If tables of this run were shown, its epsilon adds."
            print(f"\nInterrupted: {left}", file=sys.stderr)
            raise


def book_of(options: Any) -> BudgetBook | None:
    """Open the book of --book."""
    if (options.book is None) != (options.data is None):
        raise ValueError(
            "--book and --data belong together: the budget book, and the name that the data have in it."
        )
    if options.book is None:
        return None
    key = None if options.book_key_env is None else key_in_environment(options.book_key_env)
    return BudgetBook(options.book, options.data, key=key)


def _setting(options: Any, clock: Clock | None) -> dict[str, Any]:
    """Return what decides the step and the unit of a record: the same for all runs of a state file."""
    if options.state is None:
        return {}
    if clock is None:
        raise ValueError(
            "--state needs --start, the public begin of step 0: taken from the data it could differ the next"
            " time."
        )
    steps = {"start": clock.start, "every": clock.every, "unit of every": clock.unit}
    names = ("timezone", "time", "unit", "time_format", "encoding")
    return steps | {name: getattr(options, name) for name in names}


def _release_file(options: Any, stream: Stream, clock: Clock | None) -> None:
    """Release each step that is over by this machine's clock, and by `--until` or the records."""
    reader = BatchReader(options, stream)
    until = None if options.until is None else Clock.of(options.until, "1s", options.timezone).start
    pending = PendingSteps(stream, clock or Clock(0.0, 1.0))  # any, as long as no record has a time
    now = math.inf if options.force else time.time()
    for columns in reader.batches():
        if clock is None and len(known := columns.seconds[np.isfinite(columns.seconds)]):
            clock = pending.clock = Clock.of(float(known[0]), options.every, options.timezone)
            begin = iso(clock.start)
            print(f"start: {begin}, from the first record, whose time is treated as public (--start).")
        pending.add(columns, now)
    reader.check(clock)
    if clock is None:
        what = "it has no record" if not reader.source.read else "no record has a time that can be read"
        why = f" ({reader.summary(pending)})" if reader.source.read else ""
        raise ValueError(f"{options.input}: {what}{why}, and --start is not given.")
    reader.check_left_out(pending)
    if until is not None and until > now:
        late = f"Steps that end after now, {iso(now)}, are not released; --force does it."
        print(late, file=sys.stderr)
    released = pending.release(pending.open_after(until, now))
    _report(options, stream, pending, released, reader)


def _numbers(text: str, form: str, example: str) -> tuple[Any, ...]:
    """Split a short form into its column, which may itself hold colons, and numbers."""
    column, *parts = text.rsplit(":", form.count(":"))
    try:
        if len(parts) == form.count(":") and column:
            return column, *map(float, parts)
    except ValueError:
        pass
    raise ValueError(f"{text!r} must have the form {form}, with numbers after the column, as {example}.")


def _edges(whole: str, low: float, high: float, width: float) -> NDArray[np.float64]:
    """Return low, low + width, …, high.

    Raises:
        ValueError: where that does not end at high: the last bucket would be another than was asked for.
    """
    buckets = (high - low) / width if width > 0 else math.nan
    if not (low < high and 0 < buckets < math.inf):
        raise ValueError(f"{whole!r}: finite low < high and width > 0 are needed.")
    if abs(buckets - round(buckets)) > 1e-9 * buckets or round(buckets) < 1:
        fits = [low + width * count for count in (math.floor(buckets), math.ceil(buckets)) if count]
        raise ValueError(
            f"{whole!r}: buckets of width {width:g} do not end at {high:g}. Give high"
            f" {' or '.join(f'{edge:g}' for edge in fits)}, or another width."
        )
    return np.asarray(low + width * np.arange(round(buckets) + 1))


class LeftOutError(ValueError):
    """More records would be left out than may be: nothing is released, and the command ends with code 3."""

    exit_code = 3


class BatchReader:
    """Batches of a source as columns of numbers, categories, times and ids.

    Attributes:
        unreadable: records whose numbers cannot be read, by reason.
    """

    def __init__(self, options: Any, stream: Stream) -> None:
        self._options, self._zone = options, zone_of(options.timezone)
        time_reader(options.time_format)  # refuses one that is none
        if options.thousands == options.decimal:
            raise ValueError("--thousands and --decimal are one mark, which cannot be both.")
        self._columns = stream.shared.columns
        for name, kinds in self._columns.items():
            if {True, False} <= kinds:
                raise ValueError(f"column {name!r} is read both as numbers and as categories: copy it.")
        names = {options.time, *self._columns, *([options.unit] if options.unit else [])}
        how = {"encoding": options.encoding, "separator": options.separator}
        self.source = source_of(options.input, sorted(names), **how)
        self.unreadable: Counter[str] = Counter()
        self._looks: Counter[str] = Counter()
        self._midnights = 0

    def batches(self) -> Iterator[Columns]:
        """Yield them all."""
        options = self._options
        for batch in self.source.batches():
            times = batch[options.time]
            seconds = times_of(times, self._zone, options.time_format)
            if options.time_format is None:
                self._looks += looks_of(times.filter(np.isnan(seconds)))
            self._midnights += midnights_in(seconds, self._zone)
            odd = np.zeros(len(seconds), bool)
            values: dict[str, Any] = {}
            for name, kinds in self._columns.items():
                if True not in kinds:
                    values[name] = texts_of(batch[name]) if False in kinds else seconds
                    continue
                values[name], none = numbers_of(batch[name], options.decimal, options.thousands)
                self.unreadable[f"with no number in {name}"] += int(np.count_nonzero(none))
                odd |= none
            units = None if options.unit is None else texts_of(batch[options.unit]).to_numpy()
            yield Columns(seconds, units, values, odd)

    def check(self, clock: Clock | None) -> None:
        """Refuse a file whose times, or text, are another kind than they are read as."""
        form, name = self._options.time_format, self.source.path
        for words, times in self._looks.items():
            if self._beyond(times):
                raise ValueError(
                    f"{times:,} of {self.source.read:,} times of {name} are no ISO 8601, nor seconds since"
                    f" 1970 of nine or ten digits: they look like {words}."
                )
        length = math.inf if clock is None else clock.length
        dates = length < 86400 and self._midnights > self.source.read / 2 and self._beyond(self._midnights)
        if dates or (form_unit(form or "") or 0) > length:
            raise ValueError(
                f"the times of {name} are dates, or coarser, and would all be in the first step of each: take"
                " steps that are as long as what they tell apart, such as --every day."
            )

    def _beyond(self, count: float) -> bool:
        return bool(count > self._options.bad_share * self.source.read)

    def check_left_out(self, pending: PendingSteps) -> None:
        """Refuse to publish where more records would be left out than may be.

        Raises:
            LeftOutError: naming the reasons, and what decides how records are read.
            ValueError: for text in another encoding, in columns that are not read.
        """
        if self._beyond(self.left_out(pending)):
            raise LeftOutError(
                f"{self.summary(pending)}. At most {100 * self._options.bad_share:g} % may be (--bad-share):"
                " nothing is released. How a file is read is said by --encoding, --separator, --time-format,"
                " --decimal and --thousands."
            )
        if self._beyond(self.source.garbled):
            raise ValueError(
                f"{self.source.garbled:,} of {self.source.read:,} lines of {self.source.path} are no text in"
                f" {self._options.encoding.upper()}. Give --encoding, such as cp1252 or latin-1."
            )

    def left_out(self, pending: PendingSteps) -> int:
        """Return how many records are left out, or in part: all but those of steps before or after."""
        return self.source.faults.total() + pending.lost

    def summary(self, pending: PendingSteps) -> str:
        """Return one line of it, by reason. Private."""
        reasons = Counter(self.source.faults) + Counter(pending.left_out()) + self.unreadable
        listed = "; ".join(f"{many:,} {why}" for why, many in reasons.items() if why not in (LATE, OPEN))
        percent = 100 * self.left_out(pending) / max(1, self.source.read)
        shown = f"{percent:.1f}" if percent > 0.1 else f"{percent:.1g}"
        return f"{shown} % of {self.source.read:,} records are left out, or in part: {listed}"


def _report(options: Any, stream: Stream, pending: PendingSteps, released: int, reader: BatchReader) -> None:
    last = stream.get()
    saved = []
    if options.out is not None:  # before anything is printed: who reads that may close the pipe
        with replaced(options.out) as partial:
            write_releases(partial, stream.releases())
        saved.append(options.out)
    for format, file in options.statement:
        with replaced(file) as partial:
            statement(stream, format, out=partial)
        saved.append(file)
    mechanism = stream.mechanism
    print(
        f"{released} steps released, {stream.step} in all, of {stream.over.describe()};"
        f" epsilon {round_up(mechanism.epsilon())} at delta {mechanism.delta:g} for all of it together."
    )
    for heading, said in statement_data(stream).attack:
        print(f"{heading}: {said}.")
    if reader.left_out(pending):
        print(f"  private: {reader.summary(pending)}", file=sys.stderr)  # not among what is published
    private = {why: many for why, many in pending.left_out().items() if why in (LATE, OPEN)}
    for reason, many in {**private, **stream.diagnostics()}.items():
        way = " (--until releases those that end by it)" if reason == OPEN else ""
        print(f"  private: {many} records {reason}{way}", file=sys.stderr)
    rows = [] if last is None else [*rows_of([last])]
    for _, _, name, _, label, value, _, low, high, _ in rows[:SHOWN]:
        print(f"  {name}{label and ', '}{label}: {value:.6g} ({low:.6g} to {high:.6g})")
    if len(rows) > SHOWN:
        print(f"  … and {len(rows) - SHOWN:,} more: --out writes all.")
    for path in saved:
        print(f"Saved: {path}")
