"""Block-diagonal strategies: a base of n steps is started afresh every n steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from anechoic._serialize import serializable
from anechoic._validate import Array, positive_int, rows_of, steps_within
from anechoic.noise.recurrence import Recurrence
from anechoic.strategies.base import Strategy, Structure, Wrapper, store_fields


@serializable
@dataclass(frozen=True, eq=False, repr=False)
class Restarted(Wrapper):
    """`base` started afresh every base.n steps: C is block-diagonal, I (x) base (Definition 3.18).

    Args:
        base: the strategy of one block.
        times: number of blocks, >= 1.
        steps: steps in all; None for times * base.n; fewer cuts the last block short.

    Raises:
        ValueError: for an argument out of range, or a base whose own blocks do not divide its steps.
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
        store_fields(self, n=n, base=base, times=times)

    @cached_property
    def _last(self) -> Strategy:
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
