"""Gradient sources, one file a grad_sample_mode: each makes one clipped sum of a delivered batch."""

from anechoic.torch.sources import rows, vmap_loss  # noqa: F401 - each is known by its mode
from anechoic.torch.sources.base import GradientSource
from anechoic.torch.sources.ghost import source  # noqa: F401

__all__ = ["GradientSource"]
