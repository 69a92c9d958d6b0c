"""Strategies C: lower-triangular matrices whose inverse correlates the noise, and trees, with more rows."""

from anechoic._serialize import serializable
from anechoic.algebra.generating import approximation_error, excess_bound
from anechoic.noise.recurrence import (
    Autoregressive,
    Buffered,
    MovingAverage,
    Nested,
    Recurrence,
    Stacked,
    StackStep,
    StateSpace,
)
from anechoic.strategies import endless
from anechoic.strategies.banded import Banded
from anechoic.strategies.banded_inverse import BandedInverse
from anechoic.strategies.base import SquareStrategy, Strategy, Structure
from anechoic.strategies.blt import BLT
from anechoic.strategies.circulant import circulant_root
from anechoic.strategies.constant_recurrent import ConstantRecurrent
from anechoic.strategies.dense import Dense
from anechoic.strategies.endless import HorizonFree, without_horizon
from anechoic.strategies.factorized import from_factorization
from anechoic.strategies.full_tree import FullTree
from anechoic.strategies.identity import Identity
from anechoic.strategies.intervals import IntervalStrategy
from anechoic.strategies.mixture_root import MixtureRoot
from anechoic.strategies.output import Output
from anechoic.strategies.rational import rational_blt
from anechoic.strategies.recursive_tree import RecursiveTree
from anechoic.strategies.restarted import Restarted
from anechoic.strategies.scaled import ColumnNormalized, ColumnScaled
from anechoic.strategies.smooth_binary import SmoothBinary
from anechoic.strategies.toeplitz import BandedToeplitz, Toeplitz
from anechoic.strategies.tree import Tree
from anechoic.strategies.tree_aggregation import TreeAggregation

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
    "IntervalStrategy",
    "MixtureRoot",
    "MovingAverage",
    "Nested",
    "Output",
    "Recurrence",
    "RecursiveTree",
    "Restarted",
    "SmoothBinary",
    "SquareStrategy",
    "StackStep",
    "Stacked",
    "StateSpace",
    "Strategy",
    "Structure",
    "Toeplitz",
    "Tree",
    "TreeAggregation",
    "approximation_error",
    "circulant_root",
    "endless",
    "excess_bound",
    "from_factorization",
    "rational_blt",
    "serializable",
    "without_horizon",
]
