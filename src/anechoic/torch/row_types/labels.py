"""Labels of tensors: how each depends on the rows of the batch in hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RowAxis:
    """Row r of the batch is at r * inner … (r + 1) * inner - 1 along `axis`, and nowhere else."""

    axis: int
    inner: int = 1


@dataclass(frozen=True)
class Total:
    """A sum over rows of something of each row alone, times public numbers.

    Attributes:
        mean: whether it was divided by the number of rows.
    """

    mean: bool = False


@dataclass(frozen=True)
class One:
    """Depends on one row alone.

    Attributes:
        row: which one.
    """

    row: int


@dataclass(frozen=True)
class Picked:
    """Numbers of which each belongs to one row, as many as the data say.

    Attributes:
        by: where the mask is that picked them; None where that is not known.
    """

    by: Any = None


@dataclass(frozen=True)
class Mixed:
    """Depends on rows in another way.

    Attributes:
        why: what was done, as a clause.
    """

    why: str


Label = RowAxis | Total | One | Picked | Mixed
TOTAL, MEAN = Total(), Total(mean=True)
