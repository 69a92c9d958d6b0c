"""Partition of a batch: the rows of one kernel call, and the process that works on them.

How a kernel rounds depends on the shape that it works on. So a batch is cut into parts of a number of rows
that is fixed for the run, in an order that is the same everywhere, and a process takes whole parts: what a
part gives is then the same, whoever works on it and beside what.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from anechoic.batches.base import Batches
from anechoic.errors import MismatchError
from anechoic.units.batch import UnitBatch


class ProcessParts(NamedTuple):
    """The parts of a batch that one process is given at once: numbers, rows of each, examples."""

    numbers: list[int]
    sizes: tuple[int, ...]
    indices: list[int]
    units: UnitBatch | None = None


@dataclass(frozen=True)
class BatchPartition:
    """Partition of batches into parts of `rows` rows, or as many as the largest unit brings to a step."""

    rows: int
    rank: int = 0
    ranks: int = 1

    def check(self, most: int) -> None:
        """Refuse micro-batches that are smaller than a part."""
        if most < self.rows:
            raise MismatchError(
                f"max_physical_batch_size={most} is below chunk_rows={self.rows}, and holds whole chunks:"
                f" raise it, or give PrivacyEngine(chunk_rows={most})."
            )

    def process_parts(self, batches: Batches, step: int, most: int | None) -> list[ProcessParts]:
        """Return this process's parts of batch `step`, in order, those that are delivered together as one.

        At most `most` rows are delivered at once. There is at least one portion: every process steps a batch.
        """
        whole = batches.unit_batch(step)
        if whole is not None:
            return self._of_units(whole, most)
        rows = batches.batch(step).tolist()
        cut = {i: rows[at : at + self.rows] for i, at in enumerate(range(0, len(rows), self.rows))}
        return [
            ProcessParts(
                numbers, tuple(len(cut[i]) for i in numbers), [row for i in numbers for row in cut[i]]
            )
            for numbers in self.groups(len(cut), self.rows, most)
        ]

    def _of_units(self, whole: UnitBatch, most: int | None) -> list[ProcessParts]:
        size, items, start = max(self.rows, whole.largest), [], 0
        sizes: list[int] = []
        for part in whole.parts(size):
            items.append(range(start, start + part.count))
            sizes.append(len(part.examples))
            start += part.count
        found = []
        for numbers in self.groups(len(items), size, most):
            units = whole.only([item for number in numbers for item in items[number]])
            rows = tuple(sizes[number] for number in numbers)
            found.append(ProcessParts(numbers, rows, units.examples.tolist(), units))
        return found

    def groups(self, parts: int, size: int, most: int | None) -> list[list[int]]:
        """Return the numbers of this process's parts, of so many of `size` rows, those delivered together."""
        mine = list(range(self.rank, parts, self.ranks))
        together = max(1, len(mine) if most is None else most // size)
        return [mine[i : i + together] for i in range(0, len(mine), together)] or [[]]
