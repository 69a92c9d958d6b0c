"""Parts of a batch: which rows one call of a kernel works on, and which process works on them.

How a kernel rounds depends on the shape that it works on. So a batch is cut into parts of a number of rows
that is fixed for the run, in an order that is the same everywhere, and a process takes whole parts: what a
part gives is then the same, whoever works on it and beside what.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anechoic.batches.base import Batches
from anechoic.errors import MismatchError
from anechoic.units.batch import UnitBatch


@dataclass(frozen=True)
class Part:
    """Some rows of a batch.

    Attributes:
        number: of the part in its batch, from 0 on.
        indices: examples, as Python ints.
        items: of the units whose rows these are; None where a row is a unit.
    """

    number: int
    indices: list[int]
    items: range | None = None


@dataclass(frozen=True)
class Share:
    """How batches are cut into parts, and which of them are this process's.

    Attributes:
        rows: of a part, at least one. A unit that brings more rows to a step is a part of its own.
        rank, ranks: this process, and how many there are.
    """

    rows: int
    rank: int = 0
    ranks: int = 1

    def check(self, most: int) -> None:
        """Refuse micro-batches that are smaller than a part.

        Raises:
            MismatchError: naming the remedy.
        """
        if most < self.rows:
            raise MismatchError(
                f"max_physical_batch_size={most} is below chunk_rows={self.rows}: a micro-batch is made of"
                f" whole chunks, so that sums are the same for every number of processes. Raise it, or give"
                f" PrivacyEngine(chunk_rows={most})."
            )

    def parts(self, batches: Batches, step: int) -> tuple[list[Part], UnitBatch | None]:
        """All parts of batch `step`, in order; and the batch, where units own several examples."""
        whole = batches.unit_batch(step)
        if whole is None:
            rows = batches.batch(step).tolist()
            starts = range(0, len(rows), self.rows)
            return [Part(i, rows[at : at + self.rows]) for i, at in enumerate(starts)], None
        parts: list[Part] = []
        for items in self._items(whole):
            examples = whole.only(items).examples.tolist()
            parts.append(Part(len(parts), examples, items))
        return parts, whole

    def _items(self, whole: UnitBatch) -> list[range]:
        """Items of each part: as many as fit into it, in order."""
        if not whole.count:
            return []
        starts, filled = [0], 0
        for item, size in enumerate(np.bincount(whole.items, minlength=whole.count).tolist()):
            if filled and filled + size > self.rows:
                starts.append(item)
                filled = 0
            filled += size
        return [range(a, b) for a, b in zip(starts, [*starts[1:], whole.count], strict=True)]

    def own(self, parts: list[Part]) -> list[Part]:
        """Those of this process, in order."""
        return parts[self.rank :: self.ranks]

    def groups(self, parts: list[Part], most: int | None) -> list[list[Part]]:
        """Own parts that are delivered together: all, or as many as have at most `most` rows; at least one
        group, which may be empty.

        Each part by itself where `most` leaves no room for two: then nothing that is computed from a delivery
        depends on the number of processes, whatever it is.
        """
        mine = self.own(parts)
        if most is None or not mine:
            return [mine]
        if self.alone(most):
            return [[part] for part in mine]
        groups: list[list[Part]] = [[]]
        filled = 0
        for part in mine:
            if groups[-1] and filled + len(part.indices) > most:
                groups.append([])
                filled = 0
            groups[-1].append(part)
            filled += len(part.indices)
        return groups

    def alone(self, most: int | None) -> bool:
        """Whether each part is delivered by itself."""
        return most is not None and most < 2 * self.rows
