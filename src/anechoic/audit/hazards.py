"""The law of an amplified scheme, one draw after the other: with what probability a unit joins batch t.

Given its own past, and independently of all others, a unit that may still join does so with a probability
that the scheme fixes: each scheme says it in a file of its own, and so may yours.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array
from anechoic.errors import UnsupportedError
from anechoic.sampling.base import Sampling

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Hazards:
    """The probabilities of observed draws.

    Attributes:
        trials: whether canary j may join batch t, given its past, shape (n, m).
        rates: probability with which each of these does, shape (n,).
        rate: the one that holds at most steps; 0 where there is none such.
        impossible: canaries whose pattern cannot be drawn, shape (m,).
        log_probability: of the pattern of each canary, shape (m,).
    """

    trials: Mask
    rates: Array
    rate: float
    impossible: Mask
    log_probability: Array

    @property
    def constant(self) -> bool:
        """Whether draws are repeated at one rate."""
        return 0.0 < self.rate < 1.0

    @property
    def equal(self) -> Mask:
        """Draws at that rate, shape (n, m)."""
        return np.asarray(self.trials & (self.rates == self.rate)[:, None])

    @classmethod
    def of(cls, part: Mask, trials: Mask, rates: Array, rate: float = 0.0) -> Hazards:
        """With what follows from observed participation `part`, shape (n, m)."""
        sure = trials & (rates >= 1.0)[:, None]
        impossible = np.asarray(((part & ~trials) | (sure & ~part)).any(axis=0))
        with np.errstate(divide="ignore"):
            joins, stays = np.log(rates), np.log1p(-np.minimum(rates, 1.0))
        stayed = np.where(sure, 0.0, np.where(rates < 1.0, stays, 0.0)[:, None])
        logs = np.where(part, joins[:, None], stayed)
        return cls(trials, rates, rate, impossible, np.where(trials, logs, 0.0).sum(axis=0))


@singledispatch
def hazards(sampling: Sampling, part: Mask, possible: Mask) -> Hazards:
    """The law of the observed patterns.

    Args:
        sampling: an amplified scheme.
        part: whether canary j is in batch t, shape (n, m).
        possible: steps that sample the canary's group.

    Raises:
        UnsupportedError: for a scheme whose batches are not drawn.
    """
    raise UnsupportedError(f"{type(sampling).__name__} sampling draws no batches: there is no law to test.")


@singledispatch
def draw_units(sampling: Sampling, possible: Mask, rng: np.random.Generator) -> Mask:
    """Participation of as many units as `possible` has columns, drawn as the scheme promises.

    Raises:
        UnsupportedError: for a scheme that is not amplified.
    """
    raise UnsupportedError(
        f"{type(sampling).__name__}: no likelihood ratio is implemented for this scheme. Without"
        " amplification use canary_scores."
    )


def draw_participation(sampling: Sampling, canaries: int, rng: np.random.Generator) -> tuple[Mask, Mask]:
    """Random participation of `canaries` units, and the steps where it was possible; both (n, canaries).

    Under cyclic Poisson sampling all are in the group of step 0, which has the most steps.

    Raises:
        UnsupportedError: for a scheme that is not amplified.
    """
    steps = np.arange(sampling.steps)[:, None]
    possible = np.repeat(steps % sampling.public_groups == 0, canaries, axis=1)
    return draw_units(sampling, possible, rng), possible


def joined_before(part: Mask) -> Mask:
    """Whether a canary joined an earlier batch."""
    counts: NDArray[np.int64] = np.cumsum(part, axis=0) - part
    return np.asarray(counts > 0)
