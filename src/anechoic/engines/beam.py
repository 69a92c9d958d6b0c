"""Records of Apache Beam, added up by key: a CombineFn whose accumulators are those of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import apache_beam as beam

from anechoic.streaming import Accumulator

__all__ = ["CombineSums", "received"]

#: Records that wait to be added at once.
_WAITING = 4096


@dataclass
class _State:
    """An accumulator, and records that are not added to it yet."""

    made: Accumulator
    waiting: list[Mapping[str, Any]] = field(default_factory=list)


class CombineSums(beam.CombineFn):  # type: ignore[misc]  # Beam's classes are not typed
    """Sums of records, for `CombineGlobally`, or `CombinePerKey` with steps as keys.

    Input are records as mappings of columns; output is an accumulator as bytes, which `received` reads in the
    process of the stream. The pipeline needs neither key nor ledger, and releases nothing.

    Args:
        spec: what `accumulator_spec()` of the stream gave.
        unit: column of the ids of units, where the stream tells units by ids.

    Example, with `board` a stream:
        sums = CombineSums(board.accumulator_spec())
        steps = records | beam.Map(lambda record: (step_of(record), record)) | beam.CombinePerKey(sums)
        # in the process of the stream, with `found` the pairs that came out
        board.add_sums(received(found, board), batch_id="night of 24 May")
    """

    def __init__(self, spec: str, unit: str | None = None) -> None:
        Accumulator(spec)  # refused here, and not on a worker
        self._spec, self._unit = spec, unit

    def create_accumulator(self) -> _State:
        return _State(Accumulator(self._spec))

    def add_input(self, mutable_accumulator: _State, element: Mapping[str, Any]) -> _State:
        mutable_accumulator.waiting.append(element)
        if len(mutable_accumulator.waiting) >= _WAITING:
            self.compact(mutable_accumulator)
        return mutable_accumulator

    def merge_accumulators(self, accumulators: Iterable[_State]) -> _State:
        whole = self.create_accumulator()
        for one in accumulators:
            whole.made.merge(self.compact(one).made)
        return whole

    def compact(self, accumulator: _State) -> _State:
        """Add what waits."""
        if some := accumulator.waiting:
            made = accumulator.made
            names = made.layout.columns
            columns: Any = {name: [record[name] for record in some] for name in names} or len(some)
            made.add(columns, None if self._unit is None else [record[self._unit] for record in some])
            accumulator.waiting = []
        return accumulator

    def extract_output(self, accumulator: _State) -> bytes:
        return self.compact(accumulator).made.to_bytes()


def received(pairs: Iterable[tuple[int, bytes]], of: Any) -> list[Accumulator]:
    """Accumulators of the (step, bytes) that a pipeline gave, for `Stream.add_sums`.

    Args:
        pairs: of `CombinePerKey`.
        of: the stream.

    Raises:
        CheckpointError, MismatchError: as `Accumulator.from_bytes`.
    """
    found = []
    for step, sent in pairs:
        made = Accumulator.from_bytes(sent, of)
        made.step = step
        found.append(made)
    return found
