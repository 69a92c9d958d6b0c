"""Which parameters are clipped together: all of them, or some, each part to a bound of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: Entries of a parameter up to which a copy is cheaper than operations of its own.
_SMALL = 2**12
Limits = NDArray[np.float64] | None


@dataclass(frozen=True)
class ClipParts:
    """ClipParts that the trainable parameters are split into.

    Args:
        bounds: > 0, the norm that a contribution may have in each part.
        places: the part of each parameter, in the order of all sums; no part is empty.
    """

    bounds: tuple[float, ...]
    places: tuple[int, ...]

    def __post_init__(self) -> None:
        if set(self.places) != set(range(len(self.bounds))) or not all(
            bound > 0 and math.isfinite(bound) for bound in self.bounds
        ):
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

    def sums(self, samples: list[Tensor], limits: Limits, work: Callable[..., list[Tensor]]) -> list[Tensor]:
        """Sums over contributions, made part by part.

        Args:
            samples: one tensor a parameter, shape (contributions, *parameter). A contribution that is not
                finite in one part counts as zero in all of them.
            limits: what part of its bounds each may use, shape (contributions,); None for all of them.
            work: (samples, bound=, limits=) -> sums, of one part.
        """
        keep = finite_rows(samples).cpu().numpy()
        limits = keep.astype(np.float64) if limits is None else np.where(keep, limits, 0.0)
        found: dict[int, Tensor] = {}
        for bound, members in zip(self.bounds, self.members(), strict=True):
            mine = [samples[i] for i in members]
            made = side_by_side(mine, partial(work, bound=bound, limits=limits))
            found.update(zip(members, made, strict=True))
        return [found[i] for i in range(len(samples))]


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
    every: list[Any] = list(zip(samples, sizes, small, strict=True))
    joint = torch.cat([sample.reshape(len(sample), size) for sample, size, few in every if few], 1)
    first, *others = sums([joint, *(sample for sample, _, few in every if not few)])
    parts = iter(first.split([size for size, few in zip(sizes, small, strict=True) if few]))
    rest = iter(others)
    return [next(parts).reshape(sample.shape[1:]) if few else next(rest) for sample, _, few in every]
