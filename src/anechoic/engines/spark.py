"""Spark Structured Streaming into a stream: workers clip and sum; the driver has key, noise and ledger."""

from __future__ import annotations

import math
import os
import time as clocks
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType, TimestampType

from anechoic.engines.frames import ROWS, accumulated
from anechoic.streaming import Accumulator, PartitionSelectionHistogram, Stream, read_releases
from anechoic.streaming.clock import Clock, length_of, seconds_of
from anechoic.streaming.layout import layout_of
from anechoic.streaming.release import HEAD, rows_of

__all__ = ["StreamSink", "releases"]

_MICROS = 10**6
#: In the place of a time that is missing: of no step, and not the latest one.
_NEVER = -(2**62)
#: What workers add to a frame: the time of a record in microseconds, and its step.
_TIME, _STEP = "anechoic time", "anechoic step"
#: What workers give back: an accumulator of one step; and once a partition the latest time in it.
_SENT = "sums binary, latest bigint"
#: Steps that end in one commit.
_GROUP = 64


class StreamSink:
    """Micro-batches of Spark into a stream, exactly once: for `writeStream.foreachBatch`.

    Workers read, clip and add up their partitions, and send one accumulator for each step. The stream, with
    its key, its noise and its ledger, stays in the process of the driver. A record belongs to the step of its
    own time, wherever and whenever it is read. A batch that Spark delivers again adds nothing: its id is (id
    of the query, number of the batch), kept in one commit with the sums. Steps end in order once the
    watermark is past them; records that come later are left out, and counted in `diagnostics()` of the
    stream.

    When steps end is not protected, and what comes late is left out. So the time must be one that nobody's
    record sets for others, as that of the server; or give `over`, a rule that no record changes.

    Args:
        stream: or a `PartitionSelectionHistogram`; with a state file, so that it outlives the driver. Its
            `setting` may hold start and every.
        time: column of type TIMESTAMP.
        start: begin of step 0 in ISO 8601; UTC where it has no offset.
        every: length of a step, as "15min" or "1h".
        delay: how long after the latest record steps wait for others, as "10min"; records that lie ahead of
            the driver's clock are not asked. Not with `over`.
        over: called with frame and number of each batch, gives the time in seconds since 1970 up to which
            steps are over: of heartbeats, or of a clock.
        unit: column of the ids of units, where the stream tells units by ids.

    Raises:
        ValueError: for a clock that is none, or another one than that of the releases so far; where not just
            one of delay and over is given; for a statistic that names no column; for unit given or missing
            against what the stream needs.
        UnsupportedError: for a stream of a statistic that learns from releases.

    Example, with `board` a stream that has a state, and `visits` a streaming DataFrame:
        sink = StreamSink(board, time="at", start="2026-05-24", every="1h", delay="10min")
        query = visits.writeStream.foreachBatch(sink).option("checkpointLocation", "visits").start()
    """

    def __init__(
        self,
        stream: Stream | PartitionSelectionHistogram,
        *,
        time: str,
        start: str,
        every: str,
        delay: str | None = None,
        over: Callable[[DataFrame, int], float] | None = None,
        unit: str | None = None,
    ) -> None:
        begin = float(seconds_of([start])[0])
        if not math.isfinite(begin):
            raise ValueError(f"start={start!r} is no time: give ISO 8601, as 2026-05-24T00:00+00:00.")
        if (delay is None) == (over is None):
            raise ValueError(f"delay={delay!r} and over={over!r}: give one of them, by which steps end.")
        if (unit is not None) != stream.by_unit:
            raise ValueError(
                f"unit={unit!r}, but the stream holds units to a participation: name the column of their ids."
                if stream.by_unit
                else f"unit={unit!r}, but every record of this stream is a unit of its own: give the stream a"
                " participation."
            )
        self.clock = Clock(begin, length_of(every, "every"))
        made = stream.get()
        if made is not None and made.time != self.clock.end_of(made.step):
            raise ValueError(
                f"step {made.step} of the stream ended at {made.time}, and by start={start!r},"
                f" every={every!r} it ends at {self.clock.end_of(made.step)}: give those that it began with."
            )
        layout = layout_of(stream)
        for name in layout.unread:
            raise ValueError(f"{name!r} names no column of a frame, as Count('site') does: name one.")
        self.stream, self._time, self._over = stream, time, over
        self._delay = 0 if delay is None else round(length_of(delay, "delay") * _MICROS)
        self._columns = [name for name in dict.fromkeys([*layout.columns, unit]) if name is not None]
        self._start, self._every = round(begin * _MICROS), round(self.clock.every * _MICROS)
        grid: dict[str, Any] = {"start": self._start, "every": self._every}
        self._task = partial(partition_sums, spec=stream.accumulator_spec(), unit=unit, **grid)

    def __call__(self, frame: DataFrame, number: int) -> None:
        """Take a micro-batch, and end the steps that are over.

        Args:
            frame: of the batch.
            number: of the batch.

        Raises:
            ValueError: outside of a query, or for a column of times that holds something else.
            MismatchError: for workers that encode records in another way than this machine.
            GuaranteeError: for a query with a new checkpoint, or a stream without its state; see
                `Stream.add_sums`.
        """
        query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not query:
            raise ValueError("no streaming query calls this sink: hand it to writeStream.foreachBatch.")
        if not isinstance(frame.schema[self._time].dataType, TimestampType):
            raise ValueError(
                f"column {self._time!r} is {frame.schema[self._time].dataType.simpleString()}: steps need a"
                " TIMESTAMP, as to_timestamp() makes."
            )
        now = round(clocks.time() * _MICROS)
        micros = F.unix_micros(_quoted(self._time)).alias(_TIME)
        chosen = frame.select(*map(_quoted, self._columns), micros)
        rows = chosen.mapInArrow(partial(self._task, now=now), _SENT).collect()
        sums = [Accumulator.from_bytes(row.sums, self.stream) for row in rows if row.sums is not None]
        self.stream.add_sums(sums, batch_id=(query, number))
        latest = max((row.latest for row in rows if row.latest is not None), default=_NEVER) - self._delay
        until = latest if self._over is None else math.floor(self._over(frame, number) * _MICROS)
        closed = min((until - self._start) // self._every, self.stream.horizon)
        while self.stream.step < closed:
            group = range(self.stream.step, min(self.stream.step + _GROUP, closed))
            self.stream.end_steps(self.clock.end_of(step) for step in group)


def partition_sums(
    batches: Iterator[Any], *, spec: str, unit: str | None, start: int, every: int, now: int
) -> Iterator[Any]:
    """Yield accumulators of a partition as bytes, and the latest time in it.

    A worker makes them from text and numbers, without key, noise or ledger.

    Args:
        batches: of Arrow.
        spec: what `accumulator_spec()` gave.
        unit: column of ids.
        start, every: of steps, in microseconds.
        now: times after it are not asked which is the latest.
    """
    latest = [_NEVER]

    def with_steps() -> Iterator[Any]:
        for batch in _joined(batches):
            micros = np.asarray(batch[_TIME].fill_null(_NEVER))
            latest.append(int(micros[micros <= now].max(initial=_NEVER)))
            yield batch.append_column(_STEP, pa.array((micros - start) // every))

    made = accumulated(with_steps(), spec, step=_STEP, unit=unit)
    sent = [*(one.to_bytes() for one in made), None]
    times = [*[None] * len(made), max(latest)]
    yield pa.record_batch([pa.array(sent, pa.binary()), pa.array(times, pa.int64())], ["sums", "latest"])


def _joined(batches: Iterator[Any]) -> Iterator[Any]:
    """Batches of some 2**18 rows: Spark's have 10,000, and each costs the same."""
    waiting: list[Any] = []
    for batch in batches:
        waiting.append(batch)
        if sum(one.num_rows for one in waiting) >= ROWS:
            yield pa.Table.from_batches(waiting).combine_chunks().to_batches()[0]
            waiting = []
    if waiting:
        yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()


def _quoted(name: str) -> Any:
    """A column by its name, dots and all."""
    return F.col("`" + name.replace("`", "``") + "`")


def releases(session: SparkSession, state: str | os.PathLike[str], since: int = 0) -> DataFrame:
    """What a stream released, as a DataFrame: one row for each number, the same rows whenever it is asked.

    Whoever merges rows by step, statistic and entry may be killed and ask again.

    Args:
        session: of Spark.
        state: file of the stream, which may be open elsewhere on this machine. No key is needed.
        since: first step.

    Raises:
        CheckpointError: as `anechoic.streaming.read_releases`.
    """
    kinds = {"step": LongType(), "time": StringType(), "statistic": StringType(), "entry": LongType()}
    kinds |= {"label": StringType()}
    schema = StructType([StructField(name, kinds.get(name, DoubleType())) for name in HEAD])
    return session.createDataFrame(list(rows_of(read_releases(state, since=since))), schema)
