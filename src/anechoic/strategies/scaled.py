"""Strategies made from another one: columns scaled (normalised), or restarted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from anechoic._serialize import serializable
from anechoic._validate import (
    LARGEST,
    SMALLEST,
    Array,
    finite_array,
    positive_int,
    rows_of,
    scale_rows,
    steps_within,
)
from anechoic.errors import UnsupportedError
from anechoic.strategies.base import Strategy, Structure
from anechoic.strategies.recurrence import Recurrence


@dataclass(frozen=True, eq=False, repr=False)
class _Wrapper(Strategy):
    """A strategy made from another, square or rectangular as that one is."""

    def solve(self, z: ArrayLike) -> Array:
        """C^-1 z along axis 0, where C is square; z has shape (n, ...).

        Raises:
            UnsupportedError: if C has more rows than columns, and therefore no inverse.
        """
        if self.rows != self.n:
            raise UnsupportedError(
                f"{self.describe()} has {self.rows} rows for {self.n} steps and no inverse: use correlate, or"
                " turn it into a square one with strategies.from_factorization."
            )
        return self.correlate(z)


@serializable
@dataclass(frozen=True, eq=False, repr=False)
class ColumnScaled(_Wrapper):
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
        object.__setattr__(self, "n", base.n)
        object.__setattr__(self, "base", base)
        object.__setattr__(self, "scales", array)

    @property
    def _d(self) -> Array:
        return self.scales  # type: ignore[return-value]

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
    """`base` with every column scaled to norm 1 (monograph, Definition 2.10).

    The scales are fixed by all n steps, so the leading block of a normalised strategy is not itself
    normalised: that is the guarantee of a run that stops early.
    """
    if not isinstance(base, Strategy):
        raise ValueError(f"base={base!r} must be a Strategy.")
    return ColumnScaled(base, 1.0 / np.sqrt(base.column_norms_squared()))


@serializable
@dataclass(frozen=True, eq=False, repr=False)
class Restarted(_Wrapper):
    """`base` started afresh every base.n steps: C is block-diagonal, I (x) base (Definition 3.18).

    Args:
        base: the strategy of one block.
        times: number of blocks, >= 1.
        steps: steps in all; None for times * base.n; fewer cuts the last block short.
    """

    n: int
    base: Strategy
    times: int

    def __init__(self, base: Strategy, times: int, n: int | None = None) -> None:
        if not isinstance(base, Strategy):
            raise ValueError(f"base={base!r} must be a Strategy.")
        times = positive_int("times", times)
        full = times * base.n
        n = full if n is None else positive_int("n", n)
        if not full - base.n < n <= full:
            raise ValueError(f"n={n} does not end in block {times} of {base.n} steps.")
        period = base.recurrence().period
        if period is not None and base.n % period:
            raise ValueError(
                f"base forgets its past every {period} steps, which do not divide its {base.n}: a restarted"
                " strategy can be restarted in multiples of its own blocks only."
            )
        object.__setattr__(self, "n", n)
        object.__setattr__(self, "base", base)
        object.__setattr__(self, "times", times)

    @cached_property
    def _last(self) -> Strategy:
        """The strategy of the last block, which may be cut short."""
        steps = self.n - (self.times - 1) * self.base.n
        return self.base if steps == self.base.n else self.base.truncate(steps)

    @property
    def rows(self) -> int:
        return (self.times - 1) * self.base.rows + self._last.rows

    @cached_property
    def structure(self) -> Structure:
        inner = self.base.structure
        bands, gram_bands = min(inner.bands, self.n), min(inner.gram_bands, self.n)
        return Structure(bands, gram_bands, nonnegative=inner.nonnegative)

    def multiply(self, x: ArrayLike) -> Array:
        x = rows_of(self.n, x)
        split = (self.times - 1) * self.base.n
        whole = _blockwise(self.base.multiply, x[:split], self.times - 1)
        return np.concatenate([whole, self._last.multiply(x[split:])])

    def correlate(self, z: ArrayLike) -> Array:
        z = rows_of(self.rows, z)
        split = (self.times - 1) * self.base.rows
        whole = _blockwise(self.base.correlate, z[:split], self.times - 1)
        return np.concatenate([whole, self._last.correlate(z[split:])])

    def column_norms_squared(self) -> Array:
        whole = np.tile(self.base.column_norms_squared(), self.times - 1)
        return np.concatenate([whole, self._last.column_norms_squared()])

    def recurrence(self) -> Recurrence:
        inner = self.base.recurrence()
        gains = None if inner.gains is None else np.tile(inner.gains, self.times)[: self.n]
        period = self.base.n if inner.period is None else inner.period
        return replace(inner, n=self.n, gains=gains, period=period)

    def truncate(self, steps: int) -> Restarted:
        steps = steps_within(self.n, steps)
        return Restarted(self.base, -(-steps // self.base.n), steps)

    def describe(self) -> str:
        return f"Restarted({self.base.describe()}, times={self.times})"


def _blockwise(act: Callable[[Array], Array], x: Array, times: int) -> Array:
    """`act` on each of `times` blocks of axis 0, all at once."""
    if times == 0:
        return x
    blocks = np.moveaxis(x.reshape(times, len(x) // times, *x.shape[1:]), 0, -1)
    images = np.moveaxis(act(blocks), -1, 0)
    return images.reshape(times * images.shape[1], *x.shape[1:])
