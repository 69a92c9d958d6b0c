"""Strategies C: lower-triangular matrices whose inverse correlates the noise, and trees, with more rows."""

from anechoic.strategies import (  # noqa: F401 - each registers what it says
    constant_recurrent,
    endless,
    endless_mixture_root,
    tree_aggregation,
)
from anechoic.strategies.banded import Banded
from anechoic.strategies.banded_inverse import BandedInverse
from anechoic.strategies.blt import BLT
from anechoic.strategies.column_scaled import ColumnNormalized
from anechoic.strategies.dense import Dense
from anechoic.strategies.endless import make_endless
from anechoic.strategies.factorization import from_factorization
from anechoic.strategies.full_tree import FullTree
from anechoic.strategies.identity import Identity
from anechoic.strategies.output import Output
from anechoic.strategies.restarted import Restarted
from anechoic.strategies.toeplitz import BandedToeplitz, Toeplitz
from anechoic.strategies.tree import Tree

__all__ = [
    "BLT",
    "Banded",
    "BandedInverse",
    "BandedToeplitz",
    "ColumnNormalized",
    "Dense",
    "FullTree",
    "Identity",
    "Output",
    "Restarted",
    "Toeplitz",
    "Tree",
    "endless",
    "from_factorization",
    "make_endless",
]
