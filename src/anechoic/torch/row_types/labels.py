"""Labels of tensors: how each depends on the rows of the batch in hand."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RowAxis:
    """Row r of the batch is at r * inner … (r + 1) * inner - 1 along `axis`, and nowhere else."""

    axis: int
    inner: int = 1


@dataclass(frozen=True)
class Total:
    """A sum over rows of something of each row alone, times public numbers."""


@dataclass(frozen=True)
class Picked:
    """Numbers of which each belongs to one row, as many as the data say."""


@dataclass(frozen=True)
class Mixed:
    """Depends on rows in another way.

    Attributes:
        why: what was done, as a clause.
    """

    why: str


Label = RowAxis | Total | Picked | Mixed
TOTAL, PICKED = Total(), Picked()
