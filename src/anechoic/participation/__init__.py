"""Which steps one privacy unit may touch (participation schemas, monograph Definition 3.12).

A schema does not know the number of steps n; it comes from the strategy. Steps count from 0.
"""

from anechoic.participation.cyclic import Cyclic
from anechoic.participation.epochs import OncePerEpoch
from anechoic.participation.full_batch import FullBatch
from anechoic.participation.min_sep import MinSep
from anechoic.participation.patterns import Patterns
from anechoic.participation.single import Single

__all__ = ["Cyclic", "FullBatch", "MinSep", "OncePerEpoch", "Patterns", "Single"]
