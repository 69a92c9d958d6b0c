"""Clip contributions by min(1, limit / norm), with norms that never fall short, at every clip norm.

Or limit / (norm + gamma), which is automatic clipping; and over all parameters together, or part by part,
where the squares of the parts' bounds add up to that of the clip norm at most (docs/proofs/clipping.md).

A norm is a float32 norm over short parts, put together in float64, and enlarged by a bound on what rounding
can have lost. Where float32 could over- or underflow, all is float64. Factors are rounded towards zero.

On the grid of a mechanism (`GridClipping`) contributions are integers, which are added up exactly
(`grid_sums`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anechoic.noise.grid import spacing
from anechoic.torch.sources.grid_sums import add_on_grid

#: Largest norm of each contribution, shape (contributions,); None for the clip norm.
RowLimits = NDArray[np.float64] | None

#: Entries whose squares are summed in the precision of the samples.
_PART = 256
#: float32 norms are not used where the clip norm is outside this range: squares of entries would vanish.
_ORDINARY = (1e-12, 1e15)
#: Entries that are widened to float64 at a time.
_WIDENED = 2**20


@dataclass(frozen=True)
class Clipping:
    """Clip contributions and sum them.

    Guarantee: a clipped contribution has a norm of at most the clip norm over all parameters together,
    whatever the parts and gamma are. What rounding adds to a sum is `anechoic.noise.grid.float_excess`.

    Args:
        clip_norm: > 0, of one contribution over all parameters together.
        parts: which parameters are clipped together, and to what; None for all, to the clip norm.
        gamma: > 0: every contribution is scaled to norm bound * norm / (norm + gamma) (AUTO-S of Bu, Wang,
            Zha and Karypis, "Automatic Clipping", 2023). None: only those longer than their bound are scaled,
            to it.

    Raises:
        ValueError: if the squares of the bounds add up to more than that of the clip norm, or for a gamma
            that is not positive.
    """

    clip_norm: float
    parts: ClipParts | None = field(default=None, kw_only=True)
    gamma: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.parts is not None and self.parts.flat_squared > Fraction(self.clip_norm) ** 2:
            raise ValueError(
                f"bounds={self.parts.bounds} let a contribution have norm"
                f" {float(self.parts.flat_squared) ** 0.5!r}, above clip_norm={self.clip_norm!r}: scale them"
                " down, or calibrate for more."
            )
        if self.gamma is not None and not 0 < self.gamma < float("inf"):
            raise ValueError(f"gamma={self.gamma!r} must be positive and finite.")

    @property
    def name(self) -> str:
        """Name of the clipping in a checkpoint, beside the clip norm: "flat", or other words and values."""
        if self.parts is None:
            return "flat" if self.gamma is None else f"automatic (gamma {self.gamma})"
        how = "to" if self.gamma is None else f"automatically (gamma {self.gamma}), to"
        return f"parameters in parts {self.parts.places}, each clipped {how} norms {self.parts.bounds}"

    def nothing(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Return the sums of no contribution."""
        return [torch.zeros_like(p) for p in parameters]

    def members(self, parameters: int) -> list[tuple[float, list[int]]]:
        """(bound, places of the parameters that are clipped to it together)."""
        if self.parts is None:
            return [(self.clip_norm, list(range(parameters)))]
        return list(zip(self.parts.bounds, self.parts.members(), strict=True))

    def factors(self, norms: Tensor, limits: RowLimits = None, *, bound: float | None = None) -> Tensor:
        """Return the factor of each contribution: at least 0, and 0 where its norm is not finite.

        Args:
            norms: upper bounds on the norms over one part, shape (contributions,), float64.
            limits: what part of the bound each may use, shape (contributions,); None for all of it.
            bound: of that part; None for the clip norm.
        """
        limit = torch.full_like(norms, self.clip_norm if bound is None else bound)
        if limits is not None:
            limit = limit * torch.from_numpy(limits).to(norms)
        if self.gamma is None:
            scaled = (limit / norms) * (1 - 2.0**-50)  # a quotient and a product, each rounded once
            factors = torch.where(norms <= limit, torch.ones_like(norms), scaled)
        else:
            factors = limit / (norms + self.gamma) * (1 - 2.0**-50)
        # below the normal numbers a quotient may have been rounded up by any part of itself
        sound = torch.isfinite(norms) & (factors >= torch.finfo(torch.float64).tiny)
        return torch.where(sound, factors, torch.zeros_like(norms))

    def sums(self, samples: list[Tensor], limits: RowLimits = None) -> list[Tensor]:
        """Clip contributions and return their sums; see `add`."""
        totals = self.nothing([s.new_empty(s.shape[1:]) for s in samples])
        self.add(totals, samples, limits)
        return totals

    def add(self, totals: list[Tensor], samples: list[Tensor], limits: RowLimits = None) -> None:
        """Clip contributions and add them to `totals`, in place.

        Args:
            totals: as `nothing` makes them.
            samples: one tensor a parameter, shape (contributions, *parameter). A contribution that is not
                finite counts as zero.
            limits: see `factors`.
        """
        if self.parts is not None and samples:
            self.parts.add(totals, samples, limits, self._add)
        else:
            side_by_side(totals, samples, partial(self._add, bound=self.clip_norm, limits=limits))

    def _add(self, totals: list[Tensor], samples: list[Tensor], *, bound: float, limits: RowLimits) -> None:
        """Add those of one part."""
        flat = [s.reshape(len(s), t.numel()) for s, t in zip(samples, totals, strict=True)]
        norms = self.norms(flat, bound)
        factors = self.factors(norms, limits, bound=bound)
        finite = torch.isfinite(norms)
        if not bool(finite.all()):
            flat = [torch.where(finite[:, None], part, torch.zeros_like(part)) for part in flat]
        with highest_matmul_precision():
            for total, part in zip(totals, flat, strict=True):
                total += (rounded_down(factors, part.dtype) @ part).view(total.shape)

    def norms(self, flat: list[Tensor], bound: float | None = None) -> Tensor:
        """Upper bounds on the norms of contributions, shape (contributions,), float64; inf or nan are kept.

        `flat` has one tensor a parameter, shape (contributions, entries); `bound` is as in `factors`.
        """
        total = torch.zeros(len(flat[0]), dtype=torch.float64, device=flat[0].device)
        if _ORDINARY[0] <= (self.clip_norm if bound is None else bound) <= _ORDINARY[1]:
            for part in flat:
                total += _squares(part)
            found = total.sqrt() * (1 + 2.0**-50)
            if bool((finite := torch.isfinite(found)).all()):
                return found
            found[~finite] = _wide_norms([part[~finite] for part in flat])  # theirs alone
            return found
        return _wide_norms(flat)


def _wide_norms(flat: list[Tensor]) -> Tensor:
    """Upper bounds on norms, in float64, of whatever size; inf or nan are kept."""
    total = torch.zeros(len(flat[0]), dtype=torch.float64, device=flat[0].device)
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


def rounded_down(factors: Tensor, dtype: torch.dtype) -> Tensor:
    """Round factors to `dtype`, towards zero."""
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
def highest_matmul_precision() -> Iterator[None]:
    """Multiply matrices in the precision of their entries, whatever the user allows for training."""
    before = torch.get_float32_matmul_precision()
    if before == "highest":
        yield
        return
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@dataclass(frozen=True)
class GridClipping(Clipping):
    """Clip contributions to integers: `sums` are int64 tensors in units of clip_norm * 2**-bits.

    Guarantee: one contribution moves the sums by a vector of integers with 2-norm below 2**bits, whatever it
    is; the squares are counted, those of each part against its bound.
    """

    bits: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        spacing(self.clip_norm, self.bits)

    def nothing(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        return [torch.zeros(p.shape, dtype=torch.int64, device=p.device) for p in parameters]

    def _add(self, totals: list[Tensor], samples: list[Tensor], *, bound: float, limits: RowLimits) -> None:
        add_on_grid(totals, samples, self.clip_norm, self.bits, limits, bound=bound, gamma=self.gamma)


#: Entries of a parameter up to which a copy is cheaper than operations of its own.
_SMALL = 2**12


@dataclass(frozen=True)
class ClipParts:
    """Groups of trainable parameters, each clipped to a bound of its own.

    Args:
        bounds: > 0, the norm that a contribution may have in each part.
        places: the part of each parameter, in the order of all sums; no part is empty.
    """

    bounds: tuple[float, ...]
    places: tuple[int, ...]

    def __post_init__(self) -> None:
        used = set(self.places) == set(range(len(self.bounds)))
        if not used or not all(0 < bound < math.inf for bound in self.bounds):
            raise ValueError(
                f"bounds={self.bounds}, places={self.places}: every part has a positive, finite bound, and at"
                " least one parameter."
            )

    @property
    def flat_squared(self) -> Fraction:
        """The square of the norm that all parts together may have, exactly."""
        return sum((Fraction(bound) ** 2 for bound in self.bounds), Fraction())

    def members(self) -> list[list[int]]:
        """The parameters of each part."""
        return [[i for i, part in enumerate(self.places) if part == one] for one in range(len(self.bounds))]

    def add(
        self, totals: list[Tensor], samples: list[Tensor], limits: RowLimits, work: Callable[..., None]
    ) -> None:
        """Add contributions to `totals` as `Clipping.add`, part by part.

        It is `work` that adds those of one. What is not finite in one part counts as zero in all of them.
        """
        keep = finite_rows(samples).cpu().numpy()
        limits = keep.astype(np.float64) if limits is None else np.where(keep, limits, 0.0)
        for bound, members in zip(self.bounds, self.members(), strict=True):
            mine = [totals[i] for i in members], [samples[i] for i in members]
            side_by_side(*mine, partial(work, bound=bound, limits=limits))


def finite_rows(samples: list[Tensor]) -> Tensor:
    """Which contributions have no entry that is infinite or no number, shape (contributions,)."""
    finite = torch.ones(len(samples[0]), dtype=torch.bool, device=samples[0].device)
    for sample in samples:
        flat = sample.reshape(len(sample), math.prod(sample.shape[1:]))
        # a sum with such an entry is not finite either; one without may overflow
        doubtful = ~torch.isfinite(flat.sum(1)) & finite
        if bool(doubtful.any()):
            finite[doubtful] = torch.isfinite(flat[doubtful]).all(1)
    return finite


def side_by_side(totals: list[Tensor], samples: list[Tensor], work: Callable[..., None]) -> None:
    """work(totals, samples), with small parameters in one tensor: each costs several operations."""
    flat, rows, kinds = [], [], set()
    large: tuple[list[Tensor], list[Tensor]] = [], []
    for total, sample in zip(totals, samples, strict=True):
        if total.numel() > _SMALL:
            large[0].append(total)
            large[1].append(sample)
        else:
            flat.append(total.view(-1))
            rows.append(sample.reshape(len(sample), total.numel()))
            kinds.add((sample.dtype, sample.device))
    if len(flat) < 2 or len(kinds) > 1:
        work(totals, samples)
        return
    joint = torch.cat(flat)
    work([joint, *large[0]], [torch.cat(rows, 1), *large[1]])
    torch._foreach_copy_(flat, joint.split([*map(len, flat)]))
