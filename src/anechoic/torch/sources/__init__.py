"""Gradient sources, one file a grad_sample_mode: each makes one clipped sum of a delivered batch."""

from anechoic.torch.sources import ghost, rows, vmap_loss  # noqa: F401 - each registers its modes
from anechoic.torch.sources.base import SOURCES, GradientSource, SourceSetup, register, source_class
from anechoic.torch.sources.clipping import Clipping, clipped_sums

__all__ = [
    "SOURCES",
    "Clipping",
    "GradientSource",
    "SourceSetup",
    "clipped_sums",
    "register",
    "source_class",
]
