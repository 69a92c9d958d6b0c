"""Sums on the grid of a mechanism: contributions are clipped, rounded to integers, and added up exactly.

Their sums depend on no order, no number of threads and no size of micro-batches. Everything is worked on in
pieces that fit into the cache of one core: the norms are one pass over the gradients of all rows, scaling,
rounding and adding up are a second one.

In float32, why a contribution g has integers of norm at most limit * 2**bits * (1 - SPARE): computed squares
fall short of |g|^2 by a part of 513 * 2**-24 at most in any order of adding, fused or not, and by 2**-26 for
what underflows, so that |g| <= largest. The factor is 2**bits * limit * (1 - MARGIN) / largest, rounded once,
and each product is rounded once: both add a part of 2**-24 at most. Rounding to integers goes towards zero.
Then (1 - 2**-13) * (1 + 2**-24)**2 < 1 - SPARE.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anechoic.noise.grid import SPARE, Integers, square_of, to_grid

#: Entries whose squares are added up in float32: in any order off by 513 * 2**-24 at most, fused or not.
DOT = 2**9
SQUARE_ERROR = 2.0**-14
#: Part of the clip norm that is left to float32's roundings of factors, products and squares.
MARGIN = 2.0**-13
#: Mean squares from here on: what underflows in float32 is below 2**-26 of them.
SMALLEST_MEAN = 2.0**-100
#: Factors that float32 holds with all their digits, whatever they are multiplied with.
FACTORS = (2.0**-100, 2.0**100)
#: Entries that are squared in one piece: threads cost more.
_LITTLE = 2**18
#: Columns and rows that are worked on at once: 0.5 MiB of products, and as many integers.
COLUMNS, ROWS = 2**12, 32
Rows = NDArray[np.float32]


def add_on_grid(
    totals: list[Tensor],
    samples: list[Tensor],
    clip_norm: float,
    bits: int,
    limits: NDArray[np.float64] | None = None,
    *,
    bound: float | None = None,
    gamma: float | None = None,
) -> None:
    """Add contributions as integers, each clipped over all these parameters together.

    Args:
        totals, samples, limits, gamma: see `Clipping.add`; totals are int64.
        bits: the spacing is clip_norm * 2**-bits.
        bound: to which they are clipped, in (0, clip_norm]; None for `clip_norm`.
    """
    if not samples or not len(samples[0]):
        return
    sums = _Sums(clip_norm, bits, gamma)
    with torch.inference_mode(False):
        here = []
        for total, sample in zip(totals, samples, strict=True):
            flat = sample.detach().cpu().reshape(len(sample), total.numel())
            here.append(total.cpu())
            wide = flat.dtype == torch.float64
            sums.wide |= wide
            sums.widths.append(total.numel())
            sums.parts.append((flat if wide else flat.float()).numpy())
            sums.totals.append(here[-1].view(-1).numpy())
        share = 1.0 if bound is None or bound >= clip_norm else bound / clip_norm * (1 - 2.0**-52)
        given = np.ones(len(samples[0])) if limits is None else np.asarray(limits, dtype=np.float64)
        sums.add_up(given * share)
        if totals[0].device.type != "cpu":
            torch._foreach_copy_(totals, here)


class _Sums:
    """One call of `add_on_grid`, over arrays of shape (contributions, entries)."""

    def __init__(self, clip_norm: float, bits: int, gamma: float | None) -> None:
        self._clip_norm, self._bits, self._gamma = clip_norm, bits, gamma
        self.parts: list[Any] = []
        self.totals: list[Integers] = []
        self.widths: list[int] = []
        self.wide = False  #: whether some are float64

    def add_up(self, limits: Any) -> None:
        self._limits, quick = limits, np.zeros(len(limits), bool)
        if not self.wide:
            factors, quick = self._factors()
            rows = np.flatnonzero(quick)
            if len(rows):
                self._add(rows, factors)
        if not quick.all():
            self._one_by_one(np.flatnonzero(~quick & (limits > 0)))

    def _factors(self) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """(what each contribution is multiplied with, where float32 is enough for it)."""
        count, dimension = len(self._limits), sum(self.widths)
        squares = np.zeros(count)

        def norms(start: int) -> None:
            for rows in self.parts:
                squares[start : start + size] += _row_squares(rows[start : start + size])

        size = max(1, count // 16 if count * dimension > _LITTLE else count)
        _each(norms, range(0, count, size))
        with np.errstate(all="ignore"):
            largest = np.sqrt(squares * (1 + SQUARE_ERROR))
            unit = np.float64(2.0**self._bits)
            wanted = unit * self._limits * (1 - MARGIN) / (largest + (self._gamma or 0.0))
            if self._gamma is None:
                wanted = np.minimum(unit / self._clip_norm, wanted)
            quick = np.isfinite(squares) & (squares >= dimension * SMALLEST_MEAN)
            quick &= (wanted >= FACTORS[0]) & (wanted <= FACTORS[1])
        return np.where(quick, wanted, 0.0).astype(np.float32), quick

    def _add(self, rows: NDArray[np.int64], factors: NDArray[np.float32]) -> None:
        """Add the contributions `rows`.

        An integer is below 2**bits, so that 2**(31 - bits) of them fit into 32 bits.
        """
        together = min(ROWS, 2 ** (31 - self._bits))
        whole = len(rows) == len(self._limits)

        def add(place: tuple[int, int]) -> None:
            index, start = place
            part = self.parts[index][:, start : start + COLUMNS]
            products = np.empty((together, part.shape[1]), np.float32)
            integers = np.empty((together, part.shape[1]), np.int32)
            total = self.totals[index][start : start + COLUMNS]
            for first in range(0, len(rows), together):
                group = rows[first : first + together]
                given = part[group[0] : group[-1] + 1] if whole else part[group]
                product, integer = products[: len(group)], integers[: len(group)]
                np.multiply(given, factors[group, None], out=product)
                np.copyto(integer, product, casting="unsafe")  # towards zero
                total += np.add.reduce(integer, axis=0, dtype=np.int32)

        _each(add, [(i, s) for i, part in enumerate(self.parts) for s in range(0, part.shape[1], COLUMNS)])

    def _one_by_one(self, rows: NDArray[np.int64]) -> None:
        """Add contributions in float64: those of extreme size, and all of float64 models."""
        ends = np.cumsum(self.widths)[:-1]
        for row in rows.tolist():
            limit = float(self._limits[row])
            found = self._alone(np.concatenate([part[row] for part in self.parts]), limit)
            # what the squares of its integers may add up to; of a whole one to_grid has counted them
            allowed = int(Fraction(limit) ** 2 * 4**self._bits * Fraction(1 - 2 * SPARE))
            if limit >= 1 or square_of(found, self._bits) <= allowed:
                for total, integers in zip(self.totals, np.split(found, ends), strict=True):
                    total += integers

    def _alone(self, entries: NDArray[Any], limit: float) -> Integers:
        """One contribution on the grid."""
        peak = float(np.abs(entries).max(initial=0.0))
        if self._gamma is None or not 0 < peak < float("inf"):
            return to_grid(entries, self._clip_norm, self._bits, limit=limit)
        scaled = entries.astype(np.float64) / peak
        norm = float(np.sqrt(np.square(scaled).sum()))
        with np.errstate(over="ignore"):
            part = norm / (norm + np.float64(self._gamma) / peak)
        # its norm is at least 1, a limit at most, so it is always scaled to the limit
        return to_grid(scaled, 1.0, self._bits, limit=limit * float(part))


def _row_squares(rows: Rows) -> NDArray[np.float64]:
    """Sum of squares of each row, to a relative error of SQUARE_ERROR but for underflow."""
    count, width = rows.shape
    whole = width // DOT * DOT
    found = np.zeros(count)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        if whole:
            pieces = rows[:, :whole].reshape(count, -1, DOT)
            found += np.einsum("ijk,ijk->ij", pieces, pieces).sum(axis=1, dtype=np.float64)
        if whole < width:
            rest = rows[:, whole:]
            found += np.einsum("ij,ij->i", rest, rest)
    return found


def _each(work: Callable[[Any], None], places: Sequence[Any]) -> None:
    """work(place) for all places, on torch's number of threads."""
    threads = min(torch.get_num_threads(), len(places))
    if threads > 1:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, places))  # raises what one of them raised
    else:
        for place in places:
            work(place)
