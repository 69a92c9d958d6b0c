"""Optimisers by what is free: full matrices, columns, series (Toeplitz), bins. Each returns `Optimized`."""

from anechoic.optimize.bins.balls_in_bins import balls_in_bins
from anechoic.optimize.columns.banded import banded
from anechoic.optimize.full.dense import dense, dense_bound
from anechoic.optimize.series.banded_inverse import banded_inverse
from anechoic.optimize.series.banded_toeplitz import banded_toeplitz
from anechoic.optimize.series.blt import blt
from anechoic.optimize.series.toeplitz import toeplitz

__all__ = [
    "balls_in_bins",
    "banded",
    "banded_inverse",
    "banded_toeplitz",
    "blt",
    "dense",
    "dense_bound",
    "toeplitz",
]
