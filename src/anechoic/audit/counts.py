"""Counts of participations that are binomial under the law of a scheme."""

from __future__ import annotations

from functools import singledispatch
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anechoic.audit.hazards import Mask
from anechoic.errors import UnsupportedError
from anechoic.sampling.base import Sampling


class Counts(NamedTuple):
    """Binomial counts, and what each of them is about.

    Attributes:
        counts, trials: shape (counts,).
        rate: promised probability, one for all of them or one for each.
        names: of each, as in "12 of 80 in batch 3".
    """

    counts: NDArray[np.int64]
    trials: NDArray[np.int64]
    rate: float | NDArray[np.float64]
    names: list[str]


@singledispatch
def counts_of(sampling: Sampling, part: Mask, possible: Mask) -> Counts:
    """What is counted under a scheme: participations at a step, in a bin, at the place of an earlier epoch.

    Args:
        sampling: an amplified scheme.
        part: whether canary j is in batch t, shape (n, m).
        possible: steps that sample the canary's group.

    Raises:
        UnsupportedError: for a scheme whose batches are not drawn.
    """
    raise UnsupportedError(f"{type(sampling).__name__} sampling draws no batches: there is no law to test.")


def in_batches(steps: int) -> list[str]:
    """Names of counts of single batches."""
    return [f"in batch {t}" for t in range(steps)]
