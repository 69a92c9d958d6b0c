"""Strategies C: lower-triangular matrices whose inverse correlates the noise, and trees, with more rows."""

from anechoic._serialize import serializable
from anechoic.strategies.banded import Banded
from anechoic.strategies.banded_inverse import BandedInverse
from anechoic.strategies.base import SquareStrategy, Strategy, Structure
from anechoic.strategies.blt import BLT
from anechoic.strategies.full_tree import FullTree
from anechoic.strategies.generating import approximation_error, excess_bound
from anechoic.strategies.horizon_free import HorizonFree, without_horizon
from anechoic.strategies.lq import from_factorization
from anechoic.strategies.rational import rational_blt
from anechoic.strategies.recurrence import (
    Autoregressive,
    Buffered,
    MovingAverage,
    Nested,
    Recurrence,
    StateSpace,
)
from anechoic.strategies.recurrent import ConstantRecurrent
from anechoic.strategies.scaled import ColumnNormalized, ColumnScaled, Restarted
from anechoic.strategies.simple import Dense, Identity, Output
from anechoic.strategies.toeplitz import BandedToeplitz, Toeplitz
from anechoic.strategies.tree import Tree

__all__ = [
    "BLT",
    "Autoregressive",
    "Banded",
    "BandedInverse",
    "BandedToeplitz",
    "Buffered",
    "ColumnNormalized",
    "ColumnScaled",
    "ConstantRecurrent",
    "Dense",
    "FullTree",
    "HorizonFree",
    "Identity",
    "MovingAverage",
    "Nested",
    "Output",
    "Recurrence",
    "Restarted",
    "SquareStrategy",
    "StateSpace",
    "Strategy",
    "Structure",
    "Toeplitz",
    "Tree",
    "approximation_error",
    "excess_bound",
    "from_factorization",
    "rational_blt",
    "serializable",
    "without_horizon",
]
