"""How batches are formed, as data: each scheme carries N, B and n, and says which participation follows.

A scheme is a promise about data access. `FixedOrder` and `External` give no amplification; under the
others accounting uses the secrecy of which batches an example joined.

Where a mechanism protects another unit than an example, read "unit" for "example": N counts units, B is the
(expected) number of units in a batch, and a unit joins with all its examples.
"""

from anechoic.sampling.balls_in_bins import BallsInBins
from anechoic.sampling.external import External
from anechoic.sampling.fixed_order import FixedOrder
from anechoic.sampling.min_sep import MinSepSampling
from anechoic.sampling.poisson import CyclicPoisson, FixedSize, Poisson
from anechoic.sampling.random_allocation import RandomAllocation

__all__ = [
    "BallsInBins",
    "CyclicPoisson",
    "External",
    "FixedOrder",
    "FixedSize",
    "MinSepSampling",
    "Poisson",
    "RandomAllocation",
]
