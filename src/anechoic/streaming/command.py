"""`anechoic stream`: records of a file, step by step, into a state file, a table and a page."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic.participation import MinSep, Participation
from anechoic.streaming.clock import Clock, iso, length_of, seconds_of, zone_of
from anechoic.streaming.distribution import DistributionOf, QuantilesOf
from anechoic.streaming.estimator import Estimator
from anechoic.streaming.estimators import Dashboard
from anechoic.streaming.page import write_page
from anechoic.streaming.statistic import Statistic
from anechoic.streaming.sums import CountOf, HistogramOf, MeanOf, SumOf
from anechoic.streaming.tables import checked_target, read_columns, write_releases

#: Steps that are kept in one commit.
GROUP = 64
#: In the place of the step of a record without the id of a unit; below that of one without time.
_NAMELESS = -(2**62) - 1


@dataclass
class Columns:
    """Records as columns: times in seconds, units, and what the statistics read."""

    seconds: NDArray[np.float64]
    units: NDArray[Any] | None
    values: Mapping[str, NDArray[Any]]


@dataclass
class Tally:
    """What a run did: steps released, and records that are in none of them."""

    released: int = 0
    left_out: dict[str, int] = field(default_factory=dict)


def statistics_of(
    *,
    count: str | None = None,
    sums: Sequence[str] = (),
    means: Sequence[str] = (),
    histograms: Sequence[str] = (),
    quantiles: Sequence[str] = (),
    distributions: Sequence[str] = (),
) -> dict[str, Statistic]:
    """Statistics by their short forms.

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
    if count is not None:
        found["count"] = CountOf(count)
    for text in sums:
        column, bound = _fields(text, 2, "column:bound, as fare:100")
        found[f"sum of {column}"] = SumOf(_number(bound, text), column=column)
    for text in means:
        column, low, high = _fields(text, 3, "column:low:high, as delay:-60:360")
        found[f"mean {column}"] = MeanOf(_number(low, text), _number(high, text), column)
    for text in histograms:
        column, categories = _fields(
            text, 2, "column:category,category,…; categories taken from the data would show who is in it"
        )
        found[column] = HistogramOf(categories.split(","), column)
    for kind, texts in ((QuantilesOf, quantiles), (DistributionOf, distributions)):
        for text in texts:
            column, low, high, width = _fields(text, 4, "column:low:high:width, as delay:-60:360:5")
            edges = _edges(text, _number(low, text), _number(high, text), _number(width, text))
            name = "quantiles" if kind is QuantilesOf else "distribution"
            found[f"{name} of {column}"] = (
                QuantilesOf(edges, column=column) if kind is QuantilesOf else DistributionOf(edges, column)
            )
    if not found:
        raise ValueError(
            "nothing to release: give --count, --sum, --mean, --histogram, --quantiles or --distribution."
        )
    return found


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
    participation: Participation | None = None
    if options.unit is not None:
        participation = MinSep(options.min_sep or 1, options.max_participations or 1)
    elif options.min_sep or options.max_participations or options.per_step != 1:
        raise ValueError("--min-sep, --max-participations and --per-step need --unit, the column of ids.")
    with Dashboard(
        statistics,
        epsilon=options.epsilon,
        delta=options.delta,
        horizon=options.horizon,
        participation=participation,
        per_step=options.per_step,
        unit=options.unit,
        state=options.state,
        key=None if options.key_env is None else key_in_environment(options.key_env),
        counter=options.counter,
        adopt=options.adopt,
    ) as stream:
        try:
            if options.follow is not None:
                _follow(options, stream, statistics)
                return
            columns = _columns(options, statistics)
            clock = _clock(options, columns)
            until = None if options.until is None else _moment(options.until, options.timezone)
            _report(options, stream, feed(stream, columns, clock, until=until, tell=_progress))
        except KeyboardInterrupt:
            print(f"\n{_kept(options, stream)}", file=sys.stderr)
            raise


def _kept(options: Any, stream: Estimator) -> str:
    """What an interrupted run leaves, and how to go on."""
    if options.state is None:
        return (
            "Interrupted: without --state nothing is kept, and another run begins anew. If tables or pages"
            " of this one were written and shown, its epsilon adds."
        )
    return (
        f"Interrupted: {stream.step} released steps are kept in {options.state}, and the same command goes on"
        " from there. Tables and pages are written at its end."
    )


def _follow(options: Any, stream: Estimator, statistics: Mapping[str, Statistic]) -> None:
    """Release each step when it is over by the clock of this machine, until Ctrl-C or --until."""
    if options.start is None or options.input == "-":
        raise ValueError("--follow needs --start, and a file that grows: standard input is read to its end.")
    pause, every = length_of(options.follow, "--follow"), length_of(options.every, "--every")
    clock = Clock(_moment(options.start, options.timezone), every)
    end = math.inf if options.until is None else _moment(options.until, options.timezone)
    while True:
        now = min(time.time() - pause, end)  # a pause for records that are written late
        if (now - clock.start) // every > stream.step:
            _report(options, stream, feed(stream, _columns(options, statistics), clock, until=now))
        if now >= end:
            return
        time.sleep(pause)


def feed(
    stream: Estimator,
    columns: Columns,
    clock: Clock,
    *,
    until: float | None = None,
    tell: Callable[[int, int], None] = lambda done, all: None,
) -> Tally:
    """Release all steps that are over, from the stream's own on.

    A record belongs to the step of its own time, whatever the order in the file, so that no record moves
    another. Steps are over up to `until`; without it, up to the last step that has a record, which stays
    open. Then the times of records are public: they say how many steps there are.

    Args:
        stream: it goes on with its open step.
        columns: records of any steps; those of released ones are left out, and those without an id, where
            units are told by ids.
        until: seconds since 1970; None for the data's last step.
        tell: called with steps done, and steps to do.
    """
    steps = clock.step_of(columns.seconds)
    if columns.units is not None:
        steps[[not str(unit).strip() for unit in columns.units]] = _NAMELESS
    last = int(steps.max(initial=-1)) if until is None else math.floor((until - clock.start) / clock.every)
    if stream.mechanism.steps < last:
        raise ValueError(
            f"the data has {last} steps and the stream is planned for {stream.mechanism.steps}: give --until,"
            " or begin with a longer horizon or none."
        )
    tally = Tally(0, _left_out(steps, stream.step, last))
    order = np.argsort(steps, kind="stable")
    bounds = np.searchsorted(steps[order], np.arange(stream.step, max(stream.step, last) + 1))
    first = stream.step
    for begin in range(first, last, GROUP):
        group = range(begin, min(begin + GROUP, last))
        places = [order[bounds[t - first] : bounds[t - first + 1]] for t in group]
        stream.steps(
            [{name: column[some] for name, column in columns.values.items()} for some in places],
            unit_ids=None if columns.units is None else [columns.units[some] for some in places],
            times=[clock.end_of(t) for t in group],
        )
        tally.released += len(group)
        tell(group.stop - first, last - first)
    return tally


def _left_out(steps: NDArray[np.int64], first: int, last: int) -> dict[str, int]:
    reasons = {
        "no id": steps == _NAMELESS,
        "no time": steps == -(2**62),
        "before the start": (steps < 0) & (steps > -(2**62)),
        "of steps that were released before this run": (steps >= 0) & (steps < first),
        "of steps that are not over": steps >= max(first, last),
    }
    return {reason: int(np.count_nonzero(mask)) for reason, mask in reasons.items() if mask.any()}


def key_in_environment(name: str) -> bytes:
    """The key in an environment variable, as 64 hexadecimal digits.

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
    """The parts of a short form; a column may itself hold colons."""
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
    """low, low + width, …, high.

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


def _columns(options: Any, statistics: Mapping[str, Statistic]) -> Columns:
    read = sorted({s.column for s in statistics.values() if s.column is not None})
    wanted = sorted({options.time, *read, *([options.unit] if options.unit else [])})
    texts = read_columns(options.input, wanted, growing=options.follow is not None)
    values = {name: _values(texts[name], name, statistics) for name in read}
    units = None if options.unit is None else np.array(texts[options.unit], dtype=object)
    return Columns(seconds_of(texts[options.time], zone_of(options.timezone)), units, values)


def _values(texts: list[str], column: str, statistics: Mapping[str, Statistic]) -> NDArray[Any]:
    """Numbers, where a statistic asks for them; a text that is none is NaN, which they leave out."""
    kinds = {s.wants_numbers for s in statistics.values() if s.column == column}
    if kinds == {True, False}:
        raise ValueError(f"column {column!r} is read both as numbers and as categories: copy it.")
    if kinds != {True}:
        return np.array(texts, dtype=object)
    found = np.full(len(texts), np.nan)
    for i, text in enumerate(texts):
        try:
            found[i] = float(text)
        except ValueError:
            continue
    if texts and any(texts) and np.isnan(found).all():
        raise ValueError(
            f"column {column!r} holds no number: --sum, --mean, --quantiles and --distribution need one that"
            " does. Categories go to --histogram."
        )
    return found


def _clock(options: Any, columns: Columns) -> Clock:
    every = length_of(options.every, "--every")
    if options.start is not None:
        return Clock(_moment(options.start, options.timezone), every)
    times = columns.seconds[np.isfinite(columns.seconds)]
    if not len(times):
        raise ValueError("no record has a time that can be read, and --start is not given.")
    if options.state is not None:
        raise ValueError(
            "--state needs --start, the public begin of step 0: taken from the data it could differ the next"
            " time."
        )
    start = float(times.min()) // every * every
    print(f"start: {iso(start)}, from the first record, whose time is treated as public (--start).")
    return Clock(start, every)


def _moment(text: str, zone: str) -> float:
    found = float(seconds_of([text], zone_of(zone))[0])
    if not math.isfinite(found):
        raise ValueError(f"{text!r} is no time: give ISO 8601, as 2013-01-01T00:00.")
    return found


def _report(options: Any, stream: Estimator, tally: Tally) -> None:
    last = stream.get()
    saved = []
    if options.out is not None:  # before anything is printed: who reads that may close the pipe
        write_releases(options.out, stream.releases())
        saved.append(options.out)
    if options.report is not None:
        write_page(options.report, stream, title=f"Releases of {Path(options.input).name}")
        saved.append(options.report)
    shared = "" if last is None or len(last.estimates) < 2 else ", for all statistics together"
    print(
        f"{tally.released} steps released, {stream.step} in all;"
        f" epsilon so far {0 if last is None else last.epsilon:.4g} at delta"
        f" {stream.mechanism.delta:g}{shared}."
    )
    for reason, count in {**tally.left_out, **stream.diagnostics()}.items():
        print(f"  private: {count} records {reason}")
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
