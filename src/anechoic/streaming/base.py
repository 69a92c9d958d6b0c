"""What `Stream` and `PartitionSelectionHistogram` share: records come in, and a step ends in a release."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from anechoic._validate import positive_int
from anechoic.errors import GuaranteeError, HorizonError, MismatchError
from anechoic.keys import derive
from anechoic.runs.fork_guard import ProcessBound, single_process
from anechoic.streaming.accumulator import Accumulator, check_unused, mark_used, merge_by_step
from anechoic.streaming.layout import SumsLayout, check_same
from anechoic.streaming.release import Release
from anechoic.streaming.statistic import Records
from anechoic.streaming.store import Store
from anechoic.streaming.stream_state import InMemory, StreamState, checked_time
from anechoic.units.ids import secret_of

#: Batch ids that begin so are made by `checked_batch_id`.
_OWN = "\0"


@dataclass(frozen=True, eq=False)
class Addition:
    """A batch that was read: by statistic, how many records, and the digests of units; None for no id."""

    records: Mapping[str, Records]
    count: int
    units: list[bytes | None] | None
    accumulator: Accumulator | None = None


class StreamBase(ProcessBound):
    """The common part of streams: one opened state, one way in for records and sums, one end of a step.

    Attributes:
        by_unit: whether units are told by ids, and held to their participation.
        horizon: the steps that are planned; 2**40 without a horizon.
    """

    by_unit: bool
    horizon: int
    _ahead: int  # for how many steps, from the open one on, sums are kept
    _state: InMemory | Store
    _stream_state: StreamState
    _noise: Any
    _booked: Any
    _last: Release | None = None

    @property
    def step(self) -> int:
        """Return the number of releases, which is the index of the open step."""
        return int(self._state.kept)

    def get(self) -> Release | None:
        """Return the last release, or None before the first. Free: what is published can be read at will."""
        return self._last

    def diagnostics(self) -> dict[str, int]:
        """Return how many records were left out or changed, by reason. Private: for the operator alone."""
        return dict(self._stream_state.counts)

    def close(self) -> None:
        """Give the state file back; it can be opened again."""
        self._give_back()

    @single_process
    def update(self, batch: Any, unit_ids: Any = None, *, batch_id: str | None = None) -> bool:
        """Add records to the open step. No noise is used, and nothing is published.

        Args:
            batch: records, as the statistics read them; a mapping of columns where they name columns.
            unit_ids: one a record, with `participation`: integers, text or bytes.
            batch_id: a name for the batch. One that was added before is not added again.

        Returns:
            Whether it was added: False for a batch id that is known.

        Raises:
            ValueError: for records of the wrong shape, or unit ids that are missing or not wanted.
            HorizonError: if all steps were released, or a sum could leave the range of its integers.
            GuaranteeError: in a fork, after a failure that left the state file behind, or for an accumulator
                that was added before.
        """
        self._state.check()
        addition = self._read(batch, unit_ids, self._stream_state.step)
        if batch_id is not None and self._state.step_of_batch(checked_batch_id(batch_id)) is not None:
            return False
        check_unused([addition.accumulator])
        self._check_room(addition.count)
        with self._state.transaction():
            self._add(addition, batch_id)
            self._save()
        mark_used([addition.accumulator])
        return True

    @single_process
    def release(self, time: str | float | None = None) -> Release:
        """End the open step and publish: one row of noise, used here and never again.

        Args:
            time: of the step's end, kept with the release: text that sorts (as ISO 8601 in UTC) or a number,
                not below that of the release before.

        Raises:
            HorizonError: if all steps were released.
            ValueError: if time goes backwards, or is something else.
            GuaranteeError: as `update`.
        """
        self._state.check()
        time = checked_time(self._stream_state.time, time)
        self._check_left(1)
        if self._booked is not None:
            self._booked.begin(self.step + 1)
        with self._state.transaction():
            made = self._publish(time)
            self._save()
        self._last = made
        return made

    def _check_left(self, steps: int) -> None:
        """Refuse more steps than are planned."""
        if self.step + steps > self.horizon:
            what = "another step" if steps == 1 else f"{steps} more steps"
            raise HorizonError(
                f"all {self.horizon} steps of this stream are planned for, {self.step} are released, and"
                f" {what} would not be covered by its guarantee. Begin another stream, whose privacy cost"
                " adds to this one's; without horizon there is no last step."
            )

    def _save(self) -> None:
        self._state.save(self._stream_state, self._noise)

    def add_sums(self, sums: Accumulator | Iterable[Accumulator], *, batch_id: str | tuple[str, int]) -> bool:
        """Add what was added up elsewhere, in one commit with the id of the batch. Nothing is published.

        Sums of steps that were released, and of steps too far ahead, are left out and counted.

        Args:
            sums: of one step, or of several.
            batch_id: text that names the batch, or (id of the query, number of the batch) of a streaming
                engine. One that was added before is not added again.

        Returns:
            Whether they were added: False for a batch id that is known.

        Raises:
            ValueError: for something else than accumulators, or a batch id that is none.
            MismatchError: for sums of another stream or statistic, or one accumulator given twice.
            GuaranteeError: for batches of another query than those before, for a query whose batch 0 never
                came, as `update`, and for an accumulator that was added before under another id.
            HorizonError: as `update`.
        """
        name, query = batch_name(batch_id)
        return self._add_sums(merge_by_step(sums, self.layout), name, query)

    @single_process
    def _add_sums(self, given: dict[int | None, Accumulator], name: str, query: str | None) -> bool:
        self._state.check()
        if self._state.step_of_batch(name) is not None:
            return False
        marks = self._new_query(query, name)
        first, late = self._stream_state.step, Counter[str]()
        additions: list[tuple[int, Addition]] = []
        for step, made in given.items():
            why = self._out_of_reach(first if step is None else step)
            if step is not None and why:
                late[why] += made.count
            else:
                at = first if step is None else step
                additions.append((at, self._read(made, None, at)))
        check_unused(one.accumulator for _, one in additions)
        self._check_room(sum(one.count for _, one in additions))
        with self._state.transaction():
            for mark in (name, *marks):
                self._state.mark(mark, first)
            for at, addition in additions:
                self._add(addition, None, at)
            self._stream_state.counts += late
            self._save()
        mark_used(one.accumulator for _, one in additions)
        return True

    def _new_query(self, query: str | None, name: str) -> tuple[str, ...]:
        """Return what to mark of the query of a batch: nothing for one that is known."""
        if query is None:
            return ()
        some, this = f"{_OWN}query", f"{_OWN}query {query}"  # that batches of any came, and of this one
        if self._state.step_of_batch(some) is None:
            if name != batch_name((query, 0))[0]:
                raise GuaranteeError(
                    f"the first batch of query {query!r} that comes to this stream is not number 0: others"
                    " went to a stream whose state is lost, or is another file. Give that state. Or begin a"
                    " new query with this stream, whose privacy cost adds to that of the one before."
                )
            return some, this
        if self._state.step_of_batch(this) is None:
            raise GuaranteeError(
                f"batches of query {query!r} come to a stream that has those of another. A query whose"
                " checkpoint was deleted delivers its records again, and they would count twice: begin a new"
                " stream, whose privacy cost adds to this one's. Where its records are others, give its"
                " batches ids of text."
            )
        return ()

    def _out_of_reach(self, step: int) -> str:
        """Return why sums of a step are left out; empty where they are not."""
        if step < self._stream_state.step:
            return "of steps that were released before"
        most = min(self.horizon, self._stream_state.step + self._ahead)
        return "of steps too far ahead" if step >= most else ""

    def _check_of(self, batch: Any, step: int) -> None:
        """Refuse an accumulator of another stream or step."""
        if isinstance(batch, Accumulator):
            check_same(batch.layout.stream, batch.layout.mark, self.layout)
            if batch.step not in (None, step):
                raise MismatchError(
                    f"an accumulator of step {batch.step} was given to step {step}: add_sums sorts steps."
                )

    @cached_property
    def layout(self) -> SumsLayout:
        """Return the layout of accumulators."""
        state = self._state
        stream = derive(state.key, f"sums of {state.salt.hex()} {self._identity()}", size=16).hex()
        return self._layout(stream, secret_of(state.key) if self.by_unit else None)

    def accumulator_spec(self) -> str:
        """Return what workers need to make an `Accumulator` for this stream: JSON, without key or ledger."""
        return self.layout.text

    def end_steps(self, times: Iterable[str | float | None]) -> None:
        """Release the open step, and others after it that have no more records, one for each time."""
        for time in times:
            self.release(time)

    @abstractmethod
    def _layout(self, stream: str, secret: bytes | None) -> SumsLayout:
        """Return the layout of accumulators for this name of the stream and this secret of digests."""

    @abstractmethod
    def _check_room(self, count: int) -> None:
        """Refuse so many records where a sum could leave its range."""

    @abstractmethod
    def _identity(self) -> str:
        """Return what must be the same whenever a state file is opened."""

    @abstractmethod
    def _read(self, batch: Any, unit_ids: Any, step: int) -> Addition:
        """Return a batch, checked as far as that can be done before anything changes."""

    @abstractmethod
    def _add(self, addition: Addition, batch_id: str | None, step: int | None = None) -> None:
        """Add to the open step, or to another one."""

    @abstractmethod
    def _publish(self, time: str | float | None) -> Release:
        """End the open step with its noise, and keep what is published."""


def checked_batch_id(batch_id: Any) -> str:
    """Return `batch_id` if it is a text that is not empty."""
    if not isinstance(batch_id, str) or not batch_id or batch_id.startswith(_OWN):
        raise ValueError(f"batch_id={batch_id!r} must be a text that names the batch, without a NUL first.")
    return batch_id


def batch_name(batch_id: Any) -> tuple[str, str | None]:
    """Return the name of a batch and its query, for an id that is text or (query, number)."""
    if not isinstance(batch_id, tuple):
        return checked_batch_id(batch_id), None
    if len(batch_id) != 2 or not isinstance(batch_id[0], str) or not batch_id[0]:
        raise ValueError(
            f"batch_id={batch_id!r:.80} must be text, or (id of the query, number of the batch)."
        )
    number = positive_int("number of the batch", batch_id[1], minimum=0)
    return _OWN + json.dumps([batch_id[0], number]), batch_id[0]
