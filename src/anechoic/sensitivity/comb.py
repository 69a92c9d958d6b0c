"""Toeplitz strategies: where the worst pattern is the comb 0, b, 2b, … (monograph, Lemma 3.16 c)."""

from __future__ import annotations

import numpy as np

from anechoic.sensitivity import theorems
from anechoic.sensitivity.result import Sensitivity
from anechoic.strategies import BandedToeplitz
from anechoic.strategies.base import Strategy


def early_and_often(strategy: Strategy, separation: int, count: int) -> Sensitivity:
    """sens^2 = ||sum_{j < k} C[:, jb]||^2 for Toeplitz C with c_0 >= c_1 >= … >= 0, cyclic or min-sep.

    Entry by entry: M[t, t'] = sum_{u < n - t'} c_u c_{u + t' - t} falls as t' grows and as t' - t grows, and
    the p-th and q-th step of a pattern have t' >= qb and t' - t >= (q - p)b, with equality for the comb.
    The caller checks the condition. Nothing of length n is made where the strategy has a closed form.
    """
    squared = strategy.comb_norm_squared(separation, count)
    return Sensitivity.of_squared(
        squared, True, "Lemma 3.16(c) (Toeplitz, non-increasing)", theorems.FALLING_COEFFICIENTS
    )


def first_offset(strategy: Strategy, period: int, count: int) -> Sensitivity:
    """sens^2 = ||sum_j C[:, jb]||^2 for Toeplitz C >= 0 under cyclic participation.

    The columns l + jb are those of offset 0 moved down by l and cut at n, so offset 0 is the worst.
    """
    squared = strategy.comb_norm_squared(period, count)
    return Sensitivity.of_squared(
        squared,
        True,
        "enumeration of cycles (Toeplitz: offset 0 is the worst)",
        theorems.NONNEGATIVE_PRODUCTS,
    )


def majorant(strategy: Strategy) -> BandedToeplitz:
    """The smallest non-increasing Toeplitz matrix that is >= |C| entry by entry, for Toeplitz C.

    |C^T C| <= |C|^T |C| <= that of the majorant, so its sensitivity is never below that of C.
    """
    c = np.abs(strategy.coefficients[: strategy.structure.bands])
    return BandedToeplitz(strategy.n, np.maximum.accumulate(c[::-1])[::-1])
