"""Optimisers, one file per strategy class: each returns `Optimized`, with what is known of the optimum.

The files carry an underscore because a function of the same name would hide the module.
"""

from anechoic.optimize._balls_in_bins import balls_in_bins
from anechoic.optimize._banded import banded
from anechoic.optimize._banded_inverse import banded_inverse
from anechoic.optimize._banded_toeplitz import banded_toeplitz
from anechoic.optimize._blt import blt
from anechoic.optimize._column_normalized import column_normalized
from anechoic.optimize._damped import damped, restarted
from anechoic.optimize._dense import dense, dense_bound
from anechoic.optimize._dense_conjecture import Conjecture, conjecture_4_7
from anechoic.optimize._toeplitz import toeplitz
from anechoic.optimize.result import Optimized

__all__ = [
    "Conjecture",
    "Optimized",
    "balls_in_bins",
    "banded",
    "banded_inverse",
    "banded_toeplitz",
    "blt",
    "column_normalized",
    "conjecture_4_7",
    "damped",
    "dense",
    "dense_bound",
    "restarted",
    "toeplitz",
]
