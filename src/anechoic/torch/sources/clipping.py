"""Clipping, the one place: min(1, limit / norm) by norms that never fall short, at every clip norm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: Entries whose norm is taken in float32, which falls short by at most 4e-6 over so many; parts are combined
#: in float64. The slack covers what is lost, where layers have more entries than `_FEW`.
_CHUNK = 2**12
_FEW = 2**8
_SLACK = 1e-5


@dataclass(frozen=True)
class Clipping:
    """How contributions are clipped and summed.

    Args:
        clip_norm: > 0, of one contribution over all parameters together.
    """

    clip_norm: float

    @property
    def excess(self) -> float:
        """By what part of the clip norm a clipped contribution may exceed it, by rounding."""
        return 2.0**-20

    def sums(self, samples: list[Tensor], limits: NDArray[np.float64] | None = None) -> list[Tensor]:
        """Sums of the clipped contributions; see `clipped_sums`."""
        return clipped_sums(samples, self.clip_norm, limits)


def clipped_sums(
    samples: list[Tensor], clip_norm: float, limits: NDArray[np.float64] | None = None
) -> list[Tensor]:
    """Sums over contributions, each clipped to `clip_norm` over all parameters together.

    Args:
        samples: one tensor a parameter, shape (contributions, *parameter).
        clip_norm: > 0.
        limits: what part of `clip_norm` each may use, shape (contributions,); None for all of it.

    Returns:
        One tensor a parameter, without the first axis. A contribution that is not finite counts as zero.
    """
    norms = torch.stack([_squared_norms(s) for s in samples]).sum(dim=0).sqrt()
    large = any(s[0].numel() > _FEW for s in samples if len(s))
    bound: float | Tensor = clip_norm * (1 - _SLACK) if large else clip_norm
    if limits is not None:
        bound = torch.from_numpy(limits).to(norms.device) * bound
    factors = (bound / (norms + 1e-6)).clamp(max=1.0)
    finite = torch.isfinite(norms)
    if not bool(finite.all()):
        factors = torch.where(finite, factors, torch.zeros_like(factors))
        keep = [finite.reshape(-1, *(1,) * (s.dim() - 1)) for s in samples]
        samples = [torch.where(k, s, torch.zeros_like(s)) for k, s in zip(keep, samples, strict=True)]
    return [torch.einsum("i,i...", factors.to(s.dtype), s) for s in samples]


def _squared_norms(sample: Tensor) -> Tensor:
    """Squared 2-norm of each contribution, shape (contributions,), float64."""
    flat = sample.reshape(len(sample), -1)
    parts = [part.norm(2, dim=-1).double().square() for part in flat.split(_CHUNK, dim=1)]
    return torch.stack(parts).sum(dim=0)
