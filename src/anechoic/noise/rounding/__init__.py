"""Rows of noise rounded to integers exactly: one filter for each kind of recurrence.

The proof is docs/proofs/float-safe.md.
"""

from anechoic.noise.rounding.base import PAD, Fresh, RoundedFilter, advance
from anechoic.noise.rounding.decaying import DRIFT, before_drift
from anechoic.noise.rounding.make import rounded_filter
from anechoic.noise.rounding.rows import IntegerArrays

__all__ = [
    "DRIFT",
    "PAD",
    "Fresh",
    "IntegerArrays",
    "RoundedFilter",
    "advance",
    "before_drift",
    "rounded_filter",
]
