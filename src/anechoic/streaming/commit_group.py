"""Several steps that are kept in one commit: a batch for each, with what belongs to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from anechoic.streaming.ingest import checked_id
from anechoic.streaming.stream_state import check_time, plain_time


@dataclass(frozen=True, eq=False)
class Group:
    """One entry a step in each of the lists; None where nothing was given."""

    batches: list[Any]
    unit_ids: list[Any]
    times: list[str | float | None]
    names: list[str | None]

    @classmethod
    def of(
        cls,
        batches: Iterable[Any],
        unit_ids: Iterable[Any] | None,
        times: Iterable[str | float | None] | None,
        batch_ids: Iterable[str] | None,
    ) -> Group:
        """The group, checked.

        Raises:
            ValueError: if the numbers differ, or for a batch id or a time that is none.
        """
        listed = list(batches)
        nothing = [None] * len(listed)
        made = cls(
            listed,
            list(nothing if unit_ids is None else unit_ids),
            list(nothing) if times is None else [plain_time(time) for time in times],
            list(nothing) if batch_ids is None else [checked_id(name) for name in batch_ids],
        )
        if not len(listed) == len(made.unit_ids) == len(made.times) == len(made.names):
            raise ValueError(
                f"{len(listed)} batches, {len(made.unit_ids)} unit_ids, {len(made.times)} times and"
                f" {len(made.names)} batch_ids: one of each belongs to a step."
            )
        return made

    def known(self, seen: Callable[[str], int | None]) -> list[int | None]:
        """For each batch the step that it is part of already, or None.

        Raises:
            ValueError: if a new batch is named twice.
        """
        found = [None if name is None else seen(name) for name in self.names]
        fresh = [n for n, step in zip(self.names, found, strict=True) if n is not None and step is None]
        if len(set(fresh)) < len(fresh):
            raise ValueError("batch_ids name a batch twice: each is one step.")
        return found

    def check_times(self, places: Iterable[int], before: str | float | None) -> None:
        """Refuse times that go back, of the batches at these places, after one at time `before`.

        Raises:
            ValueError: as `check_time`.
        """
        for place in places:
            check_time(before, self.times[place])
            before = before if self.times[place] is None else self.times[place]
