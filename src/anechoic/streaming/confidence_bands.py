"""How many standard deviations an interval needs so that those of all steps hold together.

The noise of the n released sums is B Z, of which everything is known: its covariance is B B^T. Its largest
standardised entry is simulated, with an upper confidence bound of the quantile in the place of the quantile;
where there are too many steps or numbers for that, probabilities are added up instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import ndtri
from scipy.stats import binom

from anechoic._validate import Array
from anechoic.losses.dispatch import error
from anechoic.mechanism.mechanism import Mechanism
from anechoic.streaming.clock import Window
from anechoic.streaming.mechanisms import FOR_EVER

#: Longest stream that is simulated, how often, and the numbers drawn at once.
SIMULATED_UP_TO = 2**14
REPEATS = 4096
_AT_ONCE = 2**22
#: Probability that the simulated quantile lies below the true one.
_FAILURE = 0.01


def factors(mechanism: Mechanism, over: Window, level: float, contrasts: int) -> Callable[[int], float]:
    """Return z by step: |error| <= z standard deviations holds at all steps together, at some level.

    Args:
        mechanism, over: of the stream.
        level: in (0, 1).
        contrasts: numbers at each step that are to be covered, each a fixed combination of those released.
            Over the steps each has the law of a single one; and all together are covered with at least the
            product of their probabilities, as symmetric convex sets are under a normal law (Royen 2014).
    """
    miss, steps = -math.expm1(math.log(level) / contrasts), mechanism.steps

    def union(step: int) -> float:
        """For any Gaussian number: probabilities add up."""
        return float(-ndtri(miss_of(miss, step, steps) / 2))

    place = int(binom.ppf(1 - _FAILURE, REPEATS, 1 - miss))  # bounds the quantile, but for _FAILURE
    if steps > SIMULATED_UP_TO or place >= REPEATS:
        return union
    one = min(union(0), float(np.sort(largest_entries(mechanism, over, REPEATS))[place]))
    return lambda step: one


def miss_of(miss: float, step: int, steps: int) -> float:
    """Return the part of a probability that is a step's: over all steps they add up to at most `miss`."""
    if steps < FOR_EVER:
        return miss / steps
    # steps 2**k - 1 … 2**(k + 1) - 2 share 6 / (pi (k + 1))^2 of the probability
    block = (step + 1).bit_length() - 1
    share: float = 6 / (math.pi * (block + 1)) ** 2 / 2**block
    return miss * share


def largest_entries(mechanism: Mechanism, over: Window, repeats: int) -> Array:
    """Draw max_t |(B Z)[t]| / ||B[t]|| independently; the draws are public, and always the same."""
    strategy, workload = mechanism.strategy, over.workload(mechanism.steps)
    norms = error(workload, strategy).per_step[:, None]
    rng = np.random.default_rng(0)
    width = max(1, min(repeats, _AT_ONCE // strategy.rows))
    found = []
    for start in range(0, repeats, width):
        fresh = rng.standard_normal((strategy.rows, min(width, repeats - start)))
        found.append(np.abs(workload.multiply(strategy.correlate(fresh)) / norms).max(axis=0))
    return np.concatenate(found)
