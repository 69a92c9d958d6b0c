"""Optimisers, one file per strategy class: each returns `Optimized`, with what is known of the optimum.

The files carry an underscore because a function of the same name would hide the module.
"""

from anechoic.optimize._banded_toeplitz import banded_toeplitz
from anechoic.optimize._blt import blt
from anechoic.optimize.result import Optimized

__all__ = ["Optimized", "banded_toeplitz", "blt"]
