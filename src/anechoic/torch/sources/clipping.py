"""Clipping, the one place: min(1, limit / norm) by norms that never fall short, at every clip norm.

A norm is a float32 norm over short parts, put together in float64, and enlarged by a bound on what rounding
can have lost. Where float32 could over- or underflow, all is float64. Factors are rounded towards zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
