"""One batch over privacy units: its rows, which of them are clipped together, and to what norm."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anechoic.errors import MismatchError

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class UnitBatch:
    """The rows of a batch, and how they are summed up.

    The contribution of item j is the sum of the gradients of its rows, times scales[j], clipped to norm
    limits[j] * clip norm.

    Attributes:
        examples: index of the example in each row, shape (rows,).
        items: item of each row, shape (rows,), numbered 0, 1, … by first appearance.
        limits: largest norm of each item over the clip norm, shape (items,), in (0, 1].
        scales: factor on the sum of each item before it is clipped, shape (items,), > 0.
    """

    examples: Indices
    items: Indices
    limits: NDArray[np.float64]
    scales: NDArray[np.float64]

    @property
    def count(self) -> int:
        """Number of items."""
        return len(self.limits)

    @property
    def largest(self) -> int:
        """Rows of the largest item, 0 in an empty batch."""
        return int(np.bincount(self.items, minlength=1).max())

    def only(self, chosen: Iterable[int]) -> UnitBatch:
        """The rows of the chosen items, item by item, with the items renumbered in the order given."""
        wanted = np.asarray(list(chosen), dtype=np.int64)
        place = np.full(self.count, -1, dtype=np.int64)
        place[wanted] = np.arange(len(wanted))
        items = place[self.items]
        rows = np.argsort(np.where(items < 0, len(wanted), items), kind="stable")[: int((items >= 0).sum())]
        return UnitBatch(self.examples[rows], items[rows], self.limits[wanted], self.scales[wanted])

    def parts(self, most: int | None) -> list[UnitBatch]:
        """The batch in parts of at most `most` rows, no item in two of them; None leaves it whole.

        Raises:
            MismatchError: if an item alone has more rows.
        """
        if most is None or len(self.examples) <= most:
            return [self]
        sizes = np.bincount(self.items, minlength=self.count)
        check_item_fits(int(sizes.max()), most)
        starts, filled = [0], 0
        for item, size in enumerate(sizes.tolist()):
            if filled + size > most:
                starts.append(item)
                filled = 0
            filled += size
        ends = [*starts[1:], self.count]
        return [self.only(range(start, end)) for start, end in zip(starts, ends, strict=True)]


def check_item_fits(rows: int, most: int) -> None:
    """Refuse micro-batches that would split what is clipped as one.

    Raises:
        MismatchError: naming the remedy.
    """
    if rows > most:
        raise MismatchError(
            f"max_physical_batch_size={most}, but a unit brings up to {rows} examples to one step, whose"
            " gradients are clipped together: raise it, or give"
            f" Units(unit_ids, max_examples={most}) or fewer."
        )
