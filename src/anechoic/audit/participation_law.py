"""Law of participation of an amplified scheme: all that an audit has to know of it.

Units are drawn independently of one another. Given the batches before, a unit that may join the next one does
so with a probability that the scheme fixes, its hazard. Each scheme says it in a file of its own, and so may
yours; what else is asked follows from it, or is said beside it where there is a better answer.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import singledispatch
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array
from anechoic.errors import UnsupportedError
from anechoic.sampling.base import Sampling
from anechoic.strategies.base import Strategy

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Hazards:
    """Observed draws, and the probabilities of them.

    Attributes:
        part: whether canary j is in batch t, shape (n, m).
        possible: steps that sample the canary's group, shape (n, m).
        trials: whether canary j may join batch t, given its past, shape (n, m).
        rates: probability with which each of these does, shape (n,).
        rate: the one that holds at most steps; 0 where there is none such.
    """

    part: Mask
    possible: Mask
    trials: Mask
    rates: Array
    rate: float

    @property
    def constant(self) -> bool:
        """Whether draws are repeated at one rate."""
        return 0.0 < self.rate < 1.0

    @property
    def equal(self) -> Mask:
        """Draws at that rate, shape (n, m)."""
        return np.asarray(self.trials & (self.rates == self.rate)[:, None])

    @property
    def impossible(self) -> Mask:
        """Canaries whose pattern cannot be drawn, shape (m,)."""
        left_out = self.trials & (self.rates >= 1.0)[:, None] & ~self.part
        return np.asarray(((self.part & ~self.trials) | left_out).any(axis=0))


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


@dataclass(frozen=True, eq=False)
class StrategyColumns:
    """The strategy as likelihood ratios need it.

    Attributes:
        strategy: C, square.
        gram: C^T C, shape (n, n).
        variance: of one entry of Z, in clip norms.
        energy: ||C[:, t]||^2 / (2 variance), shape (n, 1).
        possible: steps at which a canary could be sampled, shape (n, m).
    """

    strategy: Strategy
    gram: Array
    variance: float
    energy: Array
    possible: Mask

    def refuse_overlap(self, sampling: Sampling) -> None:
        """Refuse columns that a product formula needs apart: entries are compared with their own norms.

        Raises:
            UnsupportedError: naming the two columns that one unit can touch and that overlap most.
        """
        together = np.triu(sampling.participation.together(len(self.gram)))
        norms = np.sqrt(self.gram.diagonal())
        cosines = np.where(together, np.abs(self.gram), 0.0) / norms / norms[:, None]
        if cosines.max() > 1e-12:
            i, j = np.unravel_index(int(cosines.argmax()), cosines.shape)
            raise UnsupportedError(
                f"columns {i} and {j} of C overlap, and {type(sampling).__name__} lets one unit touch both:"
                " the likelihood ratio is not a product, and no amplification is proved either. Use fewer"
                " bands."
            )


@dataclass(frozen=True, eq=False)
class ParticipationLaw(ABC):
    """Base of the laws. A subclass has `hazard`, and `log_ratio`, without which no audit can bound epsilon.

    Args:
        sampling: an amplified scheme.
    """

    sampling: Sampling

    @abstractmethod
    def hazard(self, past: Mask) -> tuple[Mask, float]:
        """Who may join the next batch, and with what probability each of them does.

        Args:
            past: whether unit j is in batch i, for all batches before, shape (t, m), t in 0 … n - 1.

        Returns:
            A mask of shape (m,), and a number in [0, 1]; of those who may, each joins independently.
        """

    @property
    def rate(self) -> float:
        """The hazard at most steps, by which repeated draws are judged; 0 where there is none such."""
        return 0.0

    def log_ratio(self, columns: StrategyColumns, moved: Array) -> Array:
        """log of the mean over patterns pi of exp(sum of moved over pi - ||C 1_pi||^2 / (2 variance)), (m,).

        Args:
            columns: of the strategy.
            moved: y_t / variance of every canary, shape (n, m).

        Raises:
            UnsupportedError: where no mean is known; or columns overlap that its formula needs apart.
        """
        names = type(self.sampling).__name__, type(self).__name__
        raise UnsupportedError("{}: no likelihood ratio is known. Give {} a log_ratio.".format(*names))

    def draw(self, possible: Mask, rng: np.random.Generator) -> Mask:
        """Participation of as many units as `possible` has columns, where it is possible, shape (n, m)."""
        part = np.zeros(possible.shape, bool)
        for t, allowed in enumerate(possible):
            may_join, rate = self.hazard(part[:t])
            part[t] = allowed & may_join & (rng.random(len(allowed)) < rate)
        return part

    def counts(self, hazards: Hazards) -> Counts:
        """Participations that are binomial: here in each batch, of those who may join it given the past."""
        names = [f"in batch {t}" for t in range(len(hazards.part))]
        return Counts(hazards.part.sum(axis=1), hazards.trials.sum(axis=1), hazards.rates, names)

    def hazards(self, part: Mask, possible: Mask) -> Hazards:
        """The probabilities of observed draws; both arguments are fields of the result.

        Raises:
            ValueError: if `hazard` gives no probability.
        """
        steps = [self.hazard(part[:t]) for t in range(len(part))]
        rates = np.array([rate for _, rate in steps])
        for wrong in rates[~((rates >= 0.0) & (rates <= 1.0))]:
            raise ValueError(f"{type(self).__name__}.hazard gives {wrong:g}: probabilities lie in [0, 1].")
        return Hazards(part, possible, possible & np.array([who for who, _ in steps]), rates, self.rate)

    def draw_units(self, count: int, rng: np.random.Generator) -> tuple[Mask, Mask]:
        """Participation of `count` units, and the steps where it was possible; both of shape (n, count).

        Where groups are public all units are in that of step 0, which has the most steps.
        """
        steps = np.arange(self.sampling.steps)[:, None]
        possible = np.repeat(steps % self.sampling.public_groups == 0, count, axis=1)
        return self.draw(possible, rng), possible


@singledispatch
def law_of(sampling: Sampling) -> ParticipationLaw:
    """The law of a scheme; that of your own is registered, as in `@law_of.register(Cohort)` above its class.

    Args:
        sampling: how batches are formed.

    Raises:
        UnsupportedError: for a scheme without one.
    """
    raise UnsupportedError(
        f"{type(sampling).__name__} sampling has no law of participation: no test of its draws, and"
        " no likelihood ratio is known. Without amplification use canary_scores; with it, register a law:"
        " help(anechoic.extend)."
    )


def log_mix(rate: float, stay: Array, join: Array) -> Array:
    """log((1 - rate) exp(stay) + rate exp(join))."""
    rest = math.log1p(-rate) if rate < 1 else -math.inf
    return np.logaddexp(rest + stay, math.log(rate) + join)
