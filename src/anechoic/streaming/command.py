"""`anechoic stream`: records of a file, step by step, into a state file and a table."""

from __future__ import annotations

import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic.budget.book import BudgetBook
from anechoic.participation import MinSep
from anechoic.participation.base import Participation
from anechoic.runs.atomic_files import check_writable, replaced
from anechoic.streaming.clock import Clock, iso, length_of, seconds_of, zone_of
from anechoic.streaming.distribution import Distribution, Quantiles
from anechoic.streaming.pending import Columns, PendingSteps
from anechoic.streaming.release import checked_target, write_releases
from anechoic.streaming.sentences import best_guess, statement
from anechoic.streaming.sources import numbers_of, source_of, texts_of, times_of
from anechoic.streaming.statistic import Statistic
from anechoic.streaming.stream import Stream
from anechoic.streaming.sums import Count, Histogram, Mean, Sum


def statistics_of(
    *,
    count: str | None = None,
    sums: Sequence[str] = (),
    means: Sequence[str] = (),
    histograms: Sequence[str] = (),
    quantiles: Sequence[str] = (),
    distributions: Sequence[str] = (),
) -> dict[str, Statistic]:
    """Return statistics by their short forms.

    Args:
        count: any column, whose records are counted.
        sums: "column:bound".
        means: "column:low:high".
        histograms: "column:category,category,…".
        quantiles, distributions: "column:low:high:width".

    Raises:
        ValueError: for a form that cannot be read, and histograms without categories.
    """
    found: dict[str, Statistic] = {}

    def add(name: str, text: str, statistic: Statistic) -> None:
        """Add it under a name of its own, where another form has the plain one."""
        name = f"{name} ({text})" if name in found else name
        if name in found:
            raise ValueError(f"{text!r} is given twice: once is enough.")
        found[name] = statistic

    if count is not None:
        add("count", count, Count(count))
    for text in sums:
        column, bound = _fields(text, 2, "column:bound, as fare:100")
        add(f"sum of {column}", text, Sum(_number(bound, text), column=column))
    for text in means:
        column, low, high = _fields(text, 3, "column:low:high, as delay:-60:360")
        add(f"mean {column}", text, Mean(_number(low, text), _number(high, text), column))
    for text in histograms:
        column, categories = _fields(
            text, 2, "column:category,category,…; categories taken from the data would show who is in it"
        )
        add(column, text, Histogram(categories.split(","), column))
    for kind, texts in ((Quantiles, quantiles), (Distribution, distributions)):
        for text in texts:
            column, low, high, width = _fields(text, 4, "column:low:high:width, as delay:-60:360:5")
            edges = _edges(text, _number(low, text), _number(high, text), _number(width, text))
            name = "quantiles" if kind is Quantiles else "distribution"
            add(f"{name} of {column}", text, kind(edges, column=column))
    if not found:
        raise ValueError(
            "nothing to release: give --count, --sum, --mean, --histogram, --quantiles or --distribution."
        )
    return found


def groups_of(text: str | None) -> tuple[str, list[str]] | None:
    """Return column and groups of "column:group,group,…"."""
    if text is None:
        return None
    column, groups = _fields(
        text, 2, "column:group,group,…; groups taken from the data would show who is in it"
    )
    return column, groups.split(",")


def stream_file(options: Any) -> None:
    """Run the command with parsed options; see `anechoic stream --help`."""
    statistics = statistics_of(
        count=options.time if options.count else None,
        sums=options.sum,
        means=options.mean,
        histograms=options.histogram,
        quantiles=options.quantiles,
        distributions=options.distribution,
    )
    if options.out is not None:
        checked_target(options.out)
    for target in (options.out, *(file for _, file in options.statement)):
        if target is not None:
            check_writable(target)  # before anything is released
    participation: Participation | None = None
    if options.unit is not None:
        participation = MinSep(options.min_sep or 1, options.max_participations or 1)
    elif options.min_sep or options.max_participations or options.per_step != 1:
        raise ValueError("--min-sep, --max-participations and --per-step need --unit, the column of ids.")
    with Stream(
        statistics,
        by=groups_of(options.by),
        epsilon=options.epsilon,
        delta=options.delta,
        horizon=options.horizon,
        participation=participation,
        per_step=options.per_step,
        unit=options.unit,
        state=options.state,
        adopt=options.adopt,
        setting=_setting(options),
        book=book_of(options),
    ) as stream:
        try:
            _release_file(options, stream)
        except KeyboardInterrupt:
            left = (
                "without --state nothing is kept, and another run begins anew. If tables of this one were"
                " written and shown, its epsilon adds."
            )
            if options.state is not None:
                left = (
                    f"{stream.step} released steps are kept in {options.state}, and the same command goes on"
                    " from there. Tables are written at its end."
                )
            print(f"\nInterrupted: {left}", file=sys.stderr)
            raise


def book_of(options: Any) -> BudgetBook | None:
    """Open the book of --book.

    Raises:
        ValueError: for a book without a name of the data, or the other way round.
    """
    if (options.book is None) != (options.data is None):
        raise ValueError(
            "--book and --data belong together: the budget book, and the name that the data have in it."
        )
    if options.book is None:
        return None
    key = None if options.book_key_env is None else key_in_environment(options.book_key_env)
    return BudgetBook(options.book, options.data, key=key)


def _setting(options: Any) -> dict[str, Any]:
    """Return what decides the step and the unit of a record: the same for all runs of a state file.

    Raises:
        ValueError: for a state file without a public start.
    """
    if options.state is None:
        return {}
    if options.start is None:
        raise ValueError(
            "--state needs --start, the public begin of step 0: taken from the data it could differ the next"
            " time."
        )
    return {
        "start": _moment(options.start, options.timezone),
        "every": length_of(options.every, "--every"),
        "timezone": options.timezone,
        "time": options.time,
        "unit": options.unit,
    }


def _release_file(options: Any, stream: Stream) -> None:
    """Release each step that is over by this machine's clock, and by `--until` or the records."""
    reader, every = BatchReader(options, stream), length_of(options.every, "--every")
    until = None if options.until is None else _moment(options.until, options.timezone)
    pending: PendingSteps | None = None
    now = math.inf if options.force else time.time()
    for columns in reader.batches():
        pending = pending or PendingSteps(stream, Clock(_start(options, columns), every))
        pending.add(columns, now)
    pending = pending or PendingSteps(stream, Clock(_start(options, None), every))
    if until is not None and until > now:
        late = f"Steps that end after now, {iso(now)}, are not released; --force does it."
        print(late, file=sys.stderr)
    released = pending.release(pending.open_after(until, now), tell=_progress)
    _report(options, stream, pending, released, reader)


def key_in_environment(name: str) -> bytes:
    """Return the key in an environment variable, as 64 hexadecimal digits.

    Raises:
        ValueError: if it is missing or something else; the message does not show it.
    """
    text = os.environ.get(name)
    if text is None:
        raise ValueError(f"the environment has no {name}: put 64 hexadecimal digits of a secret key into it.")
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != 32:
        raise ValueError(f"{name} in the environment must hold 64 hexadecimal digits.")
    return key


def _fields(text: str, count: int, form: str) -> list[str]:
    """Split a short form; a column may itself hold colons."""
    parts = text.rsplit(":", count - 1)
    if len(parts) != count or not all(parts):
        raise ValueError(f"{text!r} must have the form {form}.")
    return parts


def _number(text: str, whole: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(f"{text!r} in {whole!r} is no number.") from error


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


class BatchReader:
    """Batches of a source as columns of numbers, categories, times and ids.

    Attributes:
        unreadable: records whose time or numbers cannot be read.
    """

    def __init__(self, options: Any, stream: Stream) -> None:
        self._time, self._unit, self._zone = options.time, options.unit, zone_of(options.timezone)
        self._share = options.bad_share
        self._columns = stream.shared.columns
        for name, kinds in self._columns.items():
            if {True, False} <= kinds:
                raise ValueError(f"column {name!r} is read both as numbers and as categories: copy it.")
        names = {options.time, *self._columns, *([options.unit] if options.unit else [])}
        self.source = source_of(options.input, sorted(names))
        self.unreadable: Counter[str] = Counter()
        self._odd = 0

    def batches(self) -> Iterator[Columns]:
        """Yield them all.

        Raises:
            ValueError: if more than the stated share of records cannot be read.
        """
        for batch in self.source.batches():
            seconds = times_of(batch[self._time], self._zone)
            odd = np.isnan(seconds)
            values: dict[str, Any] = {}
            for name, kinds in self._columns.items():
                if True not in kinds:
                    values[name] = texts_of(batch[name]) if False in kinds else seconds
                    continue
                values[name], none = numbers_of(batch[name])
                self.unreadable[f"{name}: no number"] += int(np.count_nonzero(none))
                odd |= none
            self._odd += int(np.count_nonzero(odd))
            units = None if self._unit is None else texts_of(batch[self._unit]).to_numpy()
            yield Columns(seconds, units, values)
        self._check_share()

    def _check_share(self) -> None:
        """Refuse a file most of which is something else than it is said to be."""
        read, odd = self.source.read, self._odd + self.source.faults.total()
        if odd > self._share * read:
            raise ValueError(
                f"{odd} of {read} records of {self.source.path} cannot be read, and a share of"
                f" {self._share:g} may be left out ({self._reasons()}). Is it the right file, and do columns"
                " hold what they are read as? Else raise --bad-share."
            )

    def _reasons(self) -> str:
        found = {**self.source.faults, **self.unreadable}
        listed = [f"{count} {reason}" for reason, count in found.items() if count]
        return "; ".join([*listed, f"{self._odd} in all without a time or number"])


def _start(options: Any, first: Columns | None) -> float:
    """Return the begin of step 0, in seconds."""
    every = length_of(options.every, "--every")
    if options.start is not None:
        return _moment(options.start, options.timezone)
    times = first.seconds[np.isfinite(first.seconds)] if first is not None else np.zeros(0)
    if not len(times):
        raise ValueError("no record has a time that can be read, and --start is not given.")
    start = float(times[0]) // every * every
    print(f"start: {iso(start)}, from the first record, whose time is treated as public (--start).")
    return start


def _moment(text: str, zone: str) -> float:
    found = float(seconds_of([text], zone_of(zone))[0])
    if not math.isfinite(found):
        raise ValueError(f"{text!r} is no time: give ISO 8601, as 2013-01-01T00:00.")
    return found


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
    shared = "" if last is None or len(last.estimates) < 2 else ", for all statistics together"
    print(
        f"{released} steps released, {stream.step} in all;"
        f" epsilon so far {0 if last is None else last.epsilon:.4g} at delta"
        f" {stream.mechanism.delta:g}{shared}."
    )
    print(best_guess(stream.mechanism))
    private = {**reader.source.faults, **pending.left_out(), **stream.diagnostics()}
    for reason, count in private.items():  # not among what is published
        print(f"  private: {count} records {reason}", file=sys.stderr)
    if last is not None:
        for name, estimate in last.estimates.items():
            if estimate.value.ndim == 0:
                print(f"  {name}: {estimate.value:.6g} ({estimate.low:.6g} to {estimate.high:.6g})")
    for path in saved:
        print(f"Saved: {path}")


def _progress(done: int, steps: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if done == steps else ""
        print(f"\r{done} of {steps} steps", end=end, file=sys.stderr, flush=True)
