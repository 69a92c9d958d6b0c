"""Upper confidence bounds for the mean of independent values in [0, 1]: how Monte Carlo enters a guarantee.

The key that the samples are drawn from is independent of the data. Where a privacy parameter was verified
with confidence 1 - beta over that key, the whole procedure, drawing the key included, is
(epsilon, delta + beta)-DP.
"""

from __future__ import annotations

import math

import numpy as np

from anechoic._validate import Array
from anechoic.accounting.search import smallest

#: Largest share that `upper_mean_of` bets on one value: at 1, a single value of 1 would end the bet.
LARGEST_BET = 0.9


def upper_mean_of(values: Array, count: int, failure: float, second_moment: float) -> float:
    """The largest mean that is compatible with these values, at confidence 1 - failure.

    For independent values in [0, 1], not necessarily identical, whose expectations have the average p, and a
    number l < 1 fixed in advance, prod_i (1 + l (p - v_i)) is non-negative with expectation <= 1, so that by
    Markov's inequality it exceeds 1 / failure with probability at most `failure` (Waudby-Smith and Ramdas
    2023, Section 4, with a constant bet). It grows in p: the bound is where it reaches 1 / failure. Rounded
    up.

    Args:
        values: those of the `count` values that are not 0, shape (<= count,), each in [0, 1].
        count: number of values, >= 1.
        failure: in (0, 1).
        second_moment: a guess at E v^2 that was made without these values; it decides l, and a bad one only
            loosens the bound.
    """
    goal = math.log(1.0 / failure)
    bet = min(LARGEST_BET, math.sqrt(2.0 * goal / (count * max(second_moment, 1e-300))))
    zeros = count - len(values)

    def wealth(p: float) -> float:
        return zeros * math.log1p(bet * p) + float(np.log1p(bet * (p - values)).sum())

    return smallest(lambda p: wealth(p) > goal, 0.0, 1.0, 1e-6) if wealth(1.0) > goal else 1.0
