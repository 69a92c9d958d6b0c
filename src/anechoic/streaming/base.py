"""What a `Stream` and an `OpenHistogram` have in common: records come in, and a step ends in a release."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from anechoic.errors import GuaranteeError, MismatchError
from anechoic.keys import derive
from anechoic.runs.fork_guard import ProcessBound, single_process
from anechoic.streaming.accumulator import Accumulator, as_accumulator, by_step, check_once, take
from anechoic.streaming.ingest import Addition, checked_batch, checked_id, query_marks
from anechoic.streaming.layout import SumsLayout, check_same
from anechoic.streaming.release import Release
from anechoic.streaming.store import Store
from anechoic.streaming.stream_state import InMemory, Standing, beyond, check_time, plain_time
from anechoic.units.ids import secret_of


class StreamBase(ProcessBound):
    """One opened state, one way in for records and for sums of records, one end of a step.

    Attributes:
        by_unit: whether units are told by ids, and held to their participation.
    """

    by_unit: bool
    _state: InMemory | Store
    _standing: Standing
    _noise: Any
    _booked: Any
    _last: Release | None = None

    @property
    def step(self) -> int:
        """Releases made, which is the index of the open step."""
        return int(self._state.kept)

    def get(self) -> Release | None:
        """The last release, or None before the first. Free: what is published can be read at will."""
        return self._last

    def diagnostics(self) -> dict[str, int]:
        """Records so far that were left out or changed, by reason. Private: for the operator alone."""
        return dict(self._standing.counts)

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
        addition = self._read(batch, unit_ids, self._standing.step)
        if batch_id is not None and self._state.seen(checked_id(batch_id)) is not None:
            return False
        check_once([addition.accumulator])
        self._check_room(addition.count)
        with self._state.transaction():
            self._add(addition, batch_id)
            self._save()
        take([addition.accumulator])
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
        time = plain_time(time)
        check_time(self._standing.time, time)
        self._check_left(1)
        if self._booked is not None:
            self._booked.begin(self.step + 1)
        with self._state.transaction():
            made = self._publish(time)
            self._save()
        self._last = made
        self._forget()
        return made

    def _check_left(self, steps: int) -> None:
        """Refuse more steps than are planned."""
        if self.step + steps > self.horizon:
            what = "another step" if steps == 1 else f"{steps} more steps"
            raise beyond(self.horizon, self.step, what)

    def _save(self) -> None:
        self._state.save(self._standing, self._noise)

    def _forget(self) -> None:
        """Give up rows that no release is read from any more."""

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
        name, query = checked_batch(batch_id)
        return self._add_sums(by_step(sums, self.layout), name, query)

    @single_process
    def _add_sums(self, given: dict[int | None, Accumulator], name: str, query: str | None) -> bool:
        self._state.check()
        if self._state.seen(name) is not None:
            return False
        marks = self._new_query(query, name)
        first, late = self._standing.step, Counter[str]()
        additions: list[tuple[int, Addition]] = []
        for step, made in given.items():
            why = self._out_of_reach(first if step is None else step)
            if step is not None and why:
                late[why] += made.count
            else:
                at = first if step is None else step
                additions.append((at, self._read(made, None, at)))
        check_once(one.accumulator for _, one in additions)
        self._check_room(sum(one.count for _, one in additions))
        with self._state.transaction():
            for mark in (name, *marks):
                self._state.mark(mark, first)
            for at, addition in additions:
                self._add(addition, None, at)
            self._standing.counts += late
            self._save()
        take(one.accumulator for _, one in additions)
        return True

    def _new_query(self, query: str | None, name: str) -> tuple[str, ...]:
        """What to mark of the query of a batch: nothing for one that is known."""
        if query is None:
            return ()
        some, this = query_marks(query)
        if self._state.seen(some) is None:
            if name != checked_batch((query, 0))[0]:
                raise GuaranteeError(
                    f"the first batch of query {query!r} that comes to this stream is not number 0: others"
                    " went to a stream whose state is lost, or is another file. Give that state. Or begin a"
                    " new query with this stream, whose privacy cost adds to that of the one before."
                )
            return some, this
        if self._state.seen(this) is None:
            raise GuaranteeError(
                f"batches of query {query!r} come to a stream that has those of another. A query whose"
                " checkpoint was deleted delivers its records again, and they would count twice: begin a new"
                " stream, whose privacy cost adds to this one's. Where its records are others, give its"
                " batches ids of text."
            )
        return ()

    def _out_of_reach(self, step: int) -> str:
        """Why sums of a step are left out; empty where they are not."""
        if step < self._standing.step:
            return "of steps that were released before"
        most = min(self.horizon, self._standing.step + self._ahead)
        return "of steps too far ahead" if step >= most else ""

    def _check_of(self, batch: Any, step: int) -> None:
        """Refuse an accumulator of another stream or step."""
        if (made := as_accumulator(batch)) is not None:
            check_same(made.layout.stream, made.layout.mark, self.layout)
            if made.step not in (None, step):
                raise MismatchError(
                    f"an accumulator of step {made.step} was given to step {step}: add_sums sorts steps."
                )

    @cached_property
    def layout(self) -> SumsLayout:
        """Of accumulators."""
        state = self._state
        stream = derive(state.key, f"sums of {state.salt.hex()} {self._identity()}", size=16).hex()
        return self._layout(stream, secret_of(state.key) if self.by_unit else None)

    def accumulator_spec(self) -> str:
        """What workers need to make an `Accumulator` for this stream: JSON, without key or ledger."""
        return self.layout.text

    def end_steps(self, times: Iterable[str | float | None]) -> None:
        """Release the open step, and others after it that have no more records, one for each time."""
        for time in times:
            self.release(time)

    @property
    @abstractmethod
    def horizon(self) -> int:
        """Steps that are planned; 2**40 without a horizon."""

    @property
    @abstractmethod
    def _ahead(self) -> int:
        """Steps, from the open one on, whose sums are kept."""

    @abstractmethod
    def _layout(self, stream: str, secret: bytes | None) -> SumsLayout:
        """Of accumulators, for this name of the stream and this secret of digests."""

    @abstractmethod
    def _check_room(self, count: int) -> None:
        """Refuse so many records where a sum could leave its range."""

    @abstractmethod
    def _identity(self) -> str:
        """What must be the same whenever a state file is opened."""

    @abstractmethod
    def _read(self, batch: Any, unit_ids: Any, step: int) -> Addition:
        """A batch, checked as far as that can be done before anything changes."""

    @abstractmethod
    def _add(self, addition: Addition, batch_id: str | None, step: int | None = None) -> None:
        """Add to the open step, or to another one."""

    @abstractmethod
    def _publish(self, time: str | float | None) -> Release:
        """End the open step with its noise, and keep what is published."""
