"""Which examples form batch t: a function of the sampling key and t, for every sampling scheme.

    batches = batches_of(mech.sampling, key)
    batches.batch(t)                       # indices, in NumPy; the same in every process that has the key

Where a scheme draws units, its indices are those of units, and `UnitBatches` turns them into examples.

Numbers are drawn as integers from AES-256 under the key, so that every law is exact, or within 2**-64 of it,
to all who cannot break it.
"""

from anechoic.batches.balls_in_bins import Binned
from anechoic.batches.base import Batches, batches_of
from anechoic.batches.fixed_order import InOrder
from anechoic.batches.given import Given, Owning
from anechoic.batches.min_sep import Separated
from anechoic.batches.of_units import UnitBatches
from anechoic.batches.poisson import Sampled
from anechoic.batches.promise import check_promise
from anechoic.batches.random_allocation import Allocated

__all__ = [
    "Allocated",
    "Batches",
    "Binned",
    "Given",
    "InOrder",
    "Owning",
    "Sampled",
    "Separated",
    "UnitBatches",
    "batches_of",
    "check_promise",
]
