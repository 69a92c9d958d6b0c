"""A stream's fresh rows, made from the keys of its steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array
from anechoic.keys import checked_key
from anechoic.noise.gaussian import AES, ERROR, FreshRow, fresh_rows


class RowKeys:
    """Which key each fresh row is drawn from.

    Args:
        key: of all rows up to the first change.
        cipher: of all rows.
    """

    def __init__(self, key: bytes, cipher: str = AES) -> None:
        self._firsts, self._all = [0], [key]
        self.cipher = cipher

    def of(self, step: int) -> bytes:
        """The key of a row."""
        return self._all[bisect_right(self._firsts, step) - 1]

    def row(self, step: int) -> FreshRow:
        """A fresh row."""
        return FreshRow(self.of(step), step, self.cipher)

    def alike(self, step: int) -> int:
        """How many rows from `step` on have one key, as far as is known."""
        place = bisect_right(self._firsts, step)
        return self._firsts[place] - step if place < len(self._firsts) else 2**62

    def change(self, step: int, key: bytes) -> None:
        """See `NoiseStream.rekey`."""
        if step < self._firsts[-1]:
            raise ValueError(f"step={step} lies before {self._firsts[-1]}, where the key changed last.")
        if step == self._firsts[-1]:
            self._all[-1] = checked_key(key)
        else:
            self._all.append(checked_key(key))
            self._firsts.append(step)


class FreshRows:
    """A stream's slice of the fresh rows up to one step, made from their keys into memory of others.

    Attributes:
        error: |float64 entry - variate| is at most this.
        step: t, of the latest.
        offset: first coordinate of the slice.
    """

    error = ERROR

    def __init__(self, keys: RowKeys, step: int, offset: int) -> None:
        self._keys, self.step, self.offset = keys, step, offset
        self._latest = keys.row(step)

    @property
    def cipher(self) -> str:
        """What they are drawn with."""
        return self._keys.cipher

    def row(self, step: int) -> FreshRow:
        """z of any step."""
        return self._latest if step == self.step else self._keys.row(step)

    def rows(self, weights: Array) -> Iterator[tuple[FreshRow, float]]:
        """z_t, z_{t-1}, … with their weights, the later ones where these are not 0."""
        yield self._latest, float(weights[0])
        for j in (np.flatnonzero(weights[1:]) + 1).tolist():
            yield self.row(self.step - j), float(weights[j])

    def fill(self, out: NDArray[Any], start: int, weights: Array) -> None:
        """out = sum_j weights[j] z_{t-j}, each product and each sum rounded to the precision of `out`."""
        rows = self.rows(weights)
        first, weight = next(rows)
        first.fill(out, self.offset + start, weight)
        other = None
        for row, weight in rows:
            other = np.empty_like(out) if other is None else other
            row.fill(other, self.offset + start, weight)
            out += other

    def together(self, count: int, length: int) -> Array:
        """Leading entries of rows `step`, step + 1, … of one key as float64, shape (count, length)."""
        steps = range(self.step, self.step + count)
        return fresh_rows(self._keys.of(self.step), steps, self.offset, length, self._keys.cipher)

    def enclosure(self, step: int, coordinate: int, bits: int) -> tuple[int, int]:
        """(low, exponent): z[step, coordinate of the slice] lies in [low, low + 1] 2**-exponent."""
        return self.row(step).enclosure(self.offset + coordinate, bits)
