"""Which examples form batch t: a function of the sampling key and t, for every sampling scheme.

    batches = batches_of(mech.sampling, key)
    batches.batch(t)                       # indices, in NumPy; the same in every process that has the key

Where a scheme draws units, its indices are those of units, and `UnitBatches` turns them into examples.

Numbers are drawn as integers from AES-256 under the key, so that every law is exact, or within 2**-64 of it,
to all who cannot break it.
"""

from anechoic.batches import (  # noqa: F401
    balls_in_bins,
    fixed_order,
    min_sep,
    poisson,
    random_allocation,
)
