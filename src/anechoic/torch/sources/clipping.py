"""Clipping, the one place: min(1, limit / norm) by norms that never fall short, at every clip norm.

A norm is a float32 norm over short parts, put together in float64, and enlarged by a bound on what rounding
can have lost. Where float32 could over- or underflow, all is float64. Factors are rounded towards zero.

On the grid of a mechanism (`GridClipping`) contributions are integers, which are added up exactly: their sums
depend on no order, no number of threads and no size of micro-batches. Everything is worked on in pieces that
fit into the cache of one core: the norms are one pass over the gradients of all rows, scaling, rounding,
adding up and the check of what was rounded are a second one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anechoic.noise.grid import Integers, largest_square, spacing, to_grid

#: Entries whose squares are summed in the precision of the samples.
_PART = 256
#: Entries of a parameter up to which a copy is cheaper than operations of its own.
_SMALL = 2**12
#: float32 norms are not used where the clip norm is outside this range: squares of entries would vanish.
_ORDINARY = (1e-12, 1e15)
#: Entries that are widened to float64 at a time.
_WIDENED = 2**20


@dataclass(frozen=True)
class Clipping:
    """How contributions are clipped and summed.

    Args:
        clip_norm: > 0, of one contribution over all parameters together.
    """

    clip_norm: float

    @property
    def excess(self) -> float:
        """By what part of the clip norm one clipped contribution may exceed it: not at all.

        What rounding adds to a sum of several is `anechoic.noise.grid.float_excess`.
        """
        return 0.0

    def nothing(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """The sums of no contribution."""
        return [torch.zeros_like(p) for p in parameters]

    def factors(self, norms: Tensor, limits: NDArray[np.float64] | None = None) -> Tensor:
        """What each contribution is multiplied with: in [0, 1], 0 where its norm is not finite.

        Args:
            norms: upper bounds on the norms, shape (contributions,), float64.
            limits: what part of the clip norm each may use, shape (contributions,); None for all of it.
        """
        limit = torch.full_like(norms, self.clip_norm)
        if limits is not None:
            limit = limit * torch.from_numpy(limits).to(norms)
        scaled = (limit / norms) * (1 - 2.0**-50)  # a quotient and a product, each rounded once
        factors = torch.where(norms <= limit, torch.ones_like(norms), scaled)
        return torch.where(torch.isfinite(norms), factors, torch.zeros_like(norms))

    def sums(self, samples: list[Tensor], limits: NDArray[np.float64] | None = None) -> list[Tensor]:
        """Sums over contributions, each clipped over all parameters together.

        Args:
            samples: one tensor a parameter, shape (contributions, *parameter).
            limits: see `factors`.

        Returns:
            One tensor a parameter, without the first axis. A contribution that is not finite counts as zero.
        """
        return side_by_side(samples, lambda few: self._sums(few, limits))

    def _sums(self, samples: list[Tensor], limits: NDArray[np.float64] | None) -> list[Tensor]:
        flat = [sample.reshape(len(sample), -1) for sample in samples]
        norms = self.norms(flat)
        factors = self.factors(norms, limits)
        finite = torch.isfinite(norms)
        if not bool(finite.all()):
            flat = [torch.where(finite[:, None], part, torch.zeros_like(part)) for part in flat]
        with _full_precision():
            return [
                (rounded_down(factors, part.dtype) @ part).reshape(sample.shape[1:])
                for part, sample in zip(flat, samples, strict=True)
            ]

    def norms(self, flat: list[Tensor]) -> Tensor:
        """Upper bounds on the norms of contributions, shape (contributions,), float64; inf or nan are kept.

        Args:
            flat: one tensor a parameter, shape (contributions, entries).
        """
        total = torch.zeros(len(flat[0]), dtype=torch.float64, device=flat[0].device)
        if _ORDINARY[0] <= self.clip_norm <= _ORDINARY[1]:
            for part in flat:
                total += _squares(part)
            if bool(torch.isfinite(total).all()):
                return total.sqrt() * (1 + 2.0**-50)
        peaks = [part.abs().amax(1).double() for part in flat if part.shape[1]]
        peak = torch.stack(peaks).amax(0) if peaks else total
        ordinary = torch.isfinite(peak) & (peak > 0)
        # a power of two, so that dividing by it rounds nothing
        unit = torch.where(ordinary, torch.exp2(torch.frexp(peak).exponent.double()), torch.ones_like(peak))
        total = torch.zeros_like(total)
        for part in flat:
            total += _wide_squares(part, unit)
        norms = total.sqrt() * unit * (1 + 2.0**-30)
        return torch.where(torch.isfinite(peak), norms, peak)


def side_by_side(samples: list[Tensor], sums: Callable[[list[Tensor]], list[Tensor]]) -> list[Tensor]:
    """sums(samples), where those of small parameters are put into one tensor: each costs several operations.

    Args:
        samples: one tensor a parameter, shape (contributions, *parameter).
        sums: of such tensors over contributions, whatever the parameters are.
    """
    sizes = [math.prod(sample.shape[1:]) for sample in samples]
    small = [size <= _SMALL for size in sizes]
    if sum(small) < 2 or len({(sample.dtype, sample.device) for sample in samples}) > 1:
        return sums(samples)
    every = list(zip(samples, sizes, small, strict=True))
    joint = torch.cat([sample.reshape(len(sample), size) for sample, size, few in every if few], 1)
    first, *others = sums([joint, *(sample for sample, _, few in every if not few)])
    parts = iter(first.split([size for size, few in zip(sizes, small, strict=True) if few]))
    rest = iter(others)
    return [next(parts).reshape(sample.shape[1:]) if few else next(rest) for sample, _, few in every]


def clipped_sums(
    samples: list[Tensor], clip_norm: float, limits: NDArray[np.float64] | None = None
) -> list[Tensor]:
    """Sums over contributions, each clipped to `clip_norm`; see `Clipping.sums`."""
    return Clipping(clip_norm).sums(samples, limits)


def rounded_down(factors: Tensor, dtype: torch.dtype) -> Tensor:
    """Factors in `dtype`, none larger than it was."""
    found = factors.to(dtype)
    return torch.where(found.double() > factors, torch.nextafter(found, torch.zeros_like(found)), found)


def _squares(part: Tensor) -> Tensor:
    """Upper bounds on squared norms, float64; not finite where a square overflows.

    A sum of k squares, in any order, falls short by at most k u / (1 - k u) of itself; the root that torch
    takes and the square that undoes it add four u; what vanishes below the smallest number is at most that a
    square.
    """
    numbers = torch.finfo(part.dtype)
    entries = part.shape[1]
    whole = entries - entries % _PART
    total = torch.zeros(len(part), dtype=torch.float64, device=part.device)
    if whole:
        norms = part[:, :whole].unflatten(1, (-1, _PART)).norm(2, dim=-1)
        total += norms.double().square().sum(1)
    if entries > whole:
        total += part[:, whole:].norm(2, dim=-1).double().square()
    rounds = (_PART + 6) * numbers.eps / 2
    return total * (1 + rounds + 2 * rounds**2) + entries * numbers.tiny


def _wide_squares(part: Tensor, unit: Tensor) -> Tensor:
    """Squared norms of part / unit in float64, a piece at a time."""
    total = torch.zeros(len(part), dtype=torch.float64, device=part.device)
    for piece in part.split(max(1, _WIDENED // max(1, len(part))), dim=1):
        total += (piece.double() / unit[:, None]).square().sum(1)
    return total


@contextmanager
def _full_precision() -> Iterator[None]:
    """Products of matrices in the precision of their entries, whatever the user allows for training."""
    before = torch.get_float32_matmul_precision()
    if before == "highest":
        yield
        return
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


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
_largest = cache(largest_square)


@dataclass(frozen=True)
class GridClipping(Clipping):
    """Contributions as integers: `sums` are int64 tensors in units of clip_norm * 2**-bits.

    Guarantee: one contribution moves the sums by a vector of integers with 2-norm below 2**bits, whatever it
    is; the squares are counted.

    Args:
        clip_norm: > 0, of one contribution over all parameters together.
        bits: of the mechanism's grid.
    """

    bits: int = 0

    def __post_init__(self) -> None:
        spacing(self.clip_norm, self.bits)

    @property
    def excess(self) -> float:
        return 0.0

    def nothing(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        return [torch.zeros(p.shape, dtype=torch.int64, device=p.device) for p in parameters]

    def sums(self, samples: list[Tensor], limits: NDArray[np.float64] | None = None) -> list[Tensor]:
        return side_by_side(samples, lambda few: grid_sums(few, self.clip_norm, self.bits, limits))


def grid_sums(
    samples: list[Tensor], clip_norm: float, bits: int, limits: NDArray[np.float64] | None = None
) -> list[Tensor]:
    """Sums over contributions, each clipped to `clip_norm` over all parameters together, as integers.

    Args:
        samples: one tensor a parameter, shape (contributions, *parameter).
        clip_norm: > 0.
        bits: the spacing is clip_norm * 2**-bits.
        limits: what part of `clip_norm` each may use, shape (contributions,); None for all of it.

    Returns:
        One int64 tensor a parameter, without the first axis, on its device. A contribution that is not finite
        counts as zero.
    """
    if not samples:
        return []
    with torch.inference_mode(False):
        flat = [
            sample.detach().cpu().reshape(len(sample), sample[0:1].numel() if len(sample) else 0)
            for sample in samples
        ]
        parts = [part.numpy() if part.dtype == torch.float64 else part.float().numpy() for part in flat]
        if len(samples[0]) == 0:
            return [torch.zeros(s.shape[1:], dtype=torch.int64, device=s.device) for s in samples]
        given = np.ones(len(parts[0])) if limits is None else np.asarray(limits, dtype=np.float64)
        totals = _Sums(parts, clip_norm, bits, given).totals()
        return [
            torch.from_numpy(total).view(sample.shape[1:]).to(sample.device)
            for total, sample in zip(totals, samples, strict=True)
        ]


class _Sums:
    """One call of `grid_sums`, over arrays of shape (contributions, entries)."""

    def __init__(self, parts: list[Any], clip_norm: float, bits: int, limits: NDArray[np.float64]) -> None:
        self._parts, self._clip_norm, self._bits, self._limits = parts, clip_norm, bits, limits
        self._count = len(limits)
        self._dimension = sum(part.shape[1] for part in parts)
        self._totals = [np.zeros(part.shape[1], np.int64) for part in parts]

    def totals(self) -> list[Integers]:
        if any(part.dtype != np.float32 for part in self._parts):
            self._one_by_one(np.arange(self._count))
            return self._totals
        factors, quick = self._factors()
        rows = np.flatnonzero(quick)
        if len(rows):
            squares = self._add(rows, factors)
            for row in rows[squares * (1 + SQUARE_ERROR) > _largest(self._bits)]:
                self._check(int(row), factors)
        self._one_by_one(np.flatnonzero(~quick & (self._limits > 0)))
        return self._totals

    def _factors(self) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """(what each contribution is multiplied with, where float32 is enough for it)."""
        squares = np.zeros(self._count)

        def norms(part: slice) -> None:
            for rows in self._parts:
                squares[part] += _row_squares(rows[part])

        size = max(1, self._count // 16 if self._count * self._dimension > _LITTLE else self._count)
        _each(norms, [slice(i, min(i + size, self._count)) for i in range(0, self._count, size)])
        with np.errstate(all="ignore"):
            largest = np.sqrt(squares * (1 + SQUARE_ERROR))
            unit = np.float64(2.0**self._bits)
            wanted = np.minimum(unit / self._clip_norm, unit * self._limits * (1 - MARGIN) / largest)
            quick = np.isfinite(squares) & (squares >= self._dimension * SMALLEST_MEAN)
            quick &= (wanted >= FACTORS[0]) & (wanted <= FACTORS[1])
        return np.where(quick, wanted, 0.0).astype(np.float32), quick

    def _add(self, rows: NDArray[np.int64], factors: NDArray[np.float32]) -> NDArray[np.float64]:
        """Add the contributions `rows`; the sum of squares of each before it is rounded towards zero.

        An integer is below 2**bits, so that 2**(31 - bits) of them fit into 32 bits.
        """
        together = min(ROWS, 2 ** (31 - self._bits))
        whole = len(rows) == self._count
        groups = [rows[i : i + together] for i in range(0, len(rows), together)]
        squares = [np.zeros(len(group)) for group in groups]

        def add(place: tuple[int, int]) -> list[NDArray[np.float64]]:
            index, start = place
            part = self._parts[index][:, start : start + COLUMNS]
            products = np.empty((together, part.shape[1]), np.float32)
            integers = np.empty((together, part.shape[1]), np.int32)
            total, found = self._totals[index][start : start + COLUMNS], []
            for group in groups:
                given = part[group[0] : group[-1] + 1] if whole else part[group]
                product, integer = products[: len(group)], integers[: len(group)]
                np.multiply(given, factors[group, None], out=product)
                np.copyto(integer, product, casting="unsafe")  # towards zero
                total += np.add.reduce(integer, axis=0, dtype=np.int32)
                found.append(_row_squares(product))
            return found

        places = [(i, s) for i, part in enumerate(self._parts) for s in range(0, part.shape[1], COLUMNS)]
        for found in _each(add, places):
            for known, more in zip(squares, found, strict=True):
                known += more
        return np.concatenate(squares)

    def _check(self, row: int, factors: NDArray[np.float32]) -> None:
        """Count the squares of one contribution in integers, and take it out again if they are too many."""
        found = [(part[row] * factors[row]).astype(np.int32).astype(np.int64) for part in self._parts]
        if sum(int(np.square(integers).astype(object).sum()) for integers in found) <= largest_square(
            self._bits
        ):
            return
        for total, integers in zip(self._totals, found, strict=True):
            total -= integers

    def _one_by_one(self, rows: NDArray[np.int64]) -> None:
        """Add contributions in float64: those of extreme size, and all of float64 models."""
        ends = np.cumsum([part.shape[1] for part in self._parts])[:-1]
        for row in rows.tolist():
            entries = np.concatenate([part[row] for part in self._parts])
            found = to_grid(entries, self._clip_norm, self._bits, limit=float(self._limits[row]))
            for total, integers in zip(self._totals, np.split(found, ends), strict=True):
                total += integers


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


def _each(work: Callable[[Any], Any], places: list[Any]) -> list[Any]:
    """work(place) for all places, on torch's number of threads."""
    threads = min(torch.get_num_threads(), len(places))
    if threads <= 1:
        return [work(place) for place in places]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, places))
