"""Optimisers, one file per strategy class: each returns `Optimized`, with what is known of the optimum."""

from anechoic.optimize.banded_toeplitz import banded_toeplitz
from anechoic.optimize.blt import blt
from anechoic.optimize.result import Optimized

__all__ = ["Optimized", "banded_toeplitz", "blt"]
