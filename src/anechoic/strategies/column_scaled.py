"""Strategies with scaled columns: C D, and columns normalised to length 1."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from anechoic._serialize import serializable
from anechoic._validate import LARGEST, SMALLEST, Array, finite_array, rows_of, scale_rows, steps_within
from anechoic.noise.recurrence import Recurrence
from anechoic.strategies.base import StoredArray, Strategy, Structure, Wrapper, store_fields


@serializable
@dataclass(frozen=True, eq=False, repr=False)
class ColumnScaled(Wrapper):
    """C D for a strategy C and a positive diagonal D; its left inverse D^-1 L is one factor per noise row.

    Args:
        base: C.
        scales: diagonal of D, shape (n,), all > 0.
    """

    n: int
    base: Strategy
    scales: ArrayLike

    def __init__(self, base: Strategy, scales: ArrayLike, n: int | None = None) -> None:
        if not isinstance(base, Strategy):
            raise ValueError(f"base={base!r} must be a Strategy.")
        if n is not None and n != base.n:
            raise ValueError(f"n={n} differs from the base strategy's {base.n} steps.")
        array = finite_array("scales", scales, length=base.n)
        if array.min() <= 0:
            t = int(array.argmin())
            raise ValueError(f"scales[{t}]={array[t]} must be > 0.")
        # squares that are 0 or infinite here could come back into range as a product, and be wrong
        norms = np.sqrt(base.column_norms_squared())
        for what, sizes in (("scales", array), ("column norms of base", norms)):
            low, high = float(sizes.min()), float(sizes.max())
            if low < SMALLEST or high > LARGEST:
                raise ValueError(
                    f"{what} reach from {low} to {high}, but must lie between {SMALLEST} and {LARGEST} for"
                    " their squares to be computed: scale the strategy, which changes no loss."
                )
        store_fields(self, n=base.n, base=base, scales=array)

    _d = StoredArray("scales")

    @property
    def rows(self) -> int:
        return self.base.rows

    @cached_property
    def structure(self) -> Structure:
        inner = self.base.structure
        return Structure(inner.bands, inner.gram_bands, nonnegative=inner.nonnegative)

    def multiply(self, x: ArrayLike) -> Array:
        return self.base.multiply(scale_rows(self._d, rows_of(self.n, x)))

    def correlate(self, z: ArrayLike) -> Array:
        return scale_rows(1.0 / self._d, self.base.correlate(z))

    def to_dense(self) -> Array:
        return self.base.to_dense() * self._d

    def column_norms_squared(self) -> Array:
        return self.base.column_norms_squared() * np.square(self._d)

    def recurrence(self) -> Recurrence:
        return self.base.recurrence().with_gains(1.0 / self._d)

    def truncate(self, steps: int) -> ColumnScaled:
        return ColumnScaled(self.base.truncate(steps_within(self.n, steps)), self._d[:steps])

    def describe(self) -> str:
        norms = self.column_norms_squared()
        word = "ColumnNormalized" if np.allclose(norms, 1.0, rtol=1e-9) else "ColumnScaled"
        return f"{word}({self.base.describe()})"


def ColumnNormalized(base: Strategy) -> ColumnScaled:
    """Return `base` with every column scaled to norm 1 (monograph, Definition 2.10).

    The scales are fixed by all n steps, so the leading block of a normalised strategy is not itself
    normalised: that is the guarantee of a run that stops early.

    Raises:
        ValueError: if base is no strategy.
    """
    if not isinstance(base, Strategy):
        raise ValueError(f"base={base!r} must be a Strategy.")
    return ColumnScaled(base, 1.0 / np.sqrt(base.column_norms_squared()))
