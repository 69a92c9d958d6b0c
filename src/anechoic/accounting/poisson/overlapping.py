"""The accountant of Poisson sampling where bands overlap."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from anechoic.accounting.accountant import Accountant, only_deterministic, refuse_replacing
from anechoic.accounting.gaussian import gaussian_epsilon, gaussian_mu
from anechoic.accounting.poisson.common_row import SHARE, CommonRow, common_row
from anechoic.accounting.poisson.conditional import SHARES, HistoryChain
from anechoic.accounting.poisson.epsilon import poisson_epsilon, taking_part
from anechoic.accounting.poisson.patterns import GroupedPatterns, patterns_of
from anechoic.accounting.poisson.reduction import chain_of, spectral_bound
from anechoic.accounting.poisson.search import fast_poisson_noise_multiplier
from anechoic.errors import UnsupportedError
from anechoic.sampling import CyclicPoisson, Poisson
from anechoic.statement.theorem import Theorem

_CLOSE = 5e-4  # a noise std is good where its epsilon is as near as this to the one asked for

_ATTEMPTS = 12


@dataclass(frozen=True)
class OverlappingAccountant(Accountant):
    """(Cyclic) Poisson sampling of a non-negative strategy with more bands than groups.

    The smallest of five bounds: conditional composition (after arXiv 2310.15526), row by row or with one row
    that all participations share, plain Poisson-sampled Gaussians at the noise over the spectral norm,
    groups of patterns of participation, and no amplification at all. That was up to 1.17 times the noise
    that the exact mixture of ten steps needs, and 1.5 times that of forty: the proof page has a table.
    """

    theorem: ClassVar[Theorem] = Theorem(
        "Poisson sampling with overlapping bands (after arXiv 2310.15526)", "conditional-composition.md"
    )

    sampling: Poisson | CyclicPoisson

    def __post_init__(self) -> None:
        only_deterministic(self.sampling, self.accounting)
        bands, groups = self.strategy.structure.bands, self.sampling.groups
        which = f"{self.strategy.describe()} with bands={bands}, which exceeds groups={groups},"
        remedy = f"Use at most {groups} bands (Theorem 3.21), a non-negative square strategy, or FixedOrder."
        refuse_replacing(self.sampling, self.adjacency)
        if self.strategy.rows != self.strategy.n:
            raise UnsupportedError(
                f"{which} is rectangular: conditional composition (arXiv 2310.15526) is proved for the square"
                f" C whose rows are released one a step. {remedy}"
            )
        if not self.strategy.structure.nonnegative:
            raise UnsupportedError(
                f"{which} has negative entries, or cannot be shown to have none: conditional composition"
                f" (arXiv 2310.15526) is proved for entrywise non-negative C. {remedy}"
            )

    @property
    def _compositions(self) -> int:
        return -(-self.strategy.n // self.sampling.groups)

    @cached_property
    def _spectral(self) -> float:
        return spectral_bound(self.strategy, self.sampling.groups)

    @cached_property
    def _chain(self) -> HistoryChain | None:
        return chain_of(self.strategy, self.sampling.groups, self.sampling.rate)

    @cached_property
    def _common(self) -> CommonRow | None:
        return common_row(self.strategy, self.sampling.groups, self.sampling.rate)

    @cached_property
    def _patterns(self) -> GroupedPatterns | None:
        return patterns_of(self.strategy, self.sampling.groups, self.sampling.rate)

    @property
    def taking_part(self) -> float:
        return taking_part(self.sampling.rate, self._compositions)

    def amplified_bound(self, delta: float, std: float) -> float:
        epsilon = gaussian_epsilon(delta, self.unamplified / std)
        if self.sampling.rate == 1.0:
            return epsilon
        epsilon = min(
            epsilon, poisson_epsilon(delta, std / self._spectral, self.sampling.rate, self._compositions)
        )
        for rows in (self._patterns, self._common, self._chain):
            if rows is not None and epsilon > 0.0:
                epsilon = rows.epsilon(delta, std, epsilon)
        return epsilon

    def amplified_noise_std(self, epsilon: float, delta: float) -> float:
        std = self.unamplified / gaussian_mu(epsilon, delta)
        if self.sampling.rate == 1.0:
            return std
        sigma = fast_poisson_noise_multiplier(epsilon, delta, self.sampling.rate, self._compositions)
        std = min(std, sigma * self._spectral)
        for rows in (self._patterns, self._common, self._chain):
            std = std if rows is None else _less_noise(rows, epsilon, delta, std)
        return std

    def describe(self) -> str:
        shares = " or ".join(f"{share:g}" for share in (SHARE, *SHARES))
        return (
            "(epsilon, delta)-DP, amplified by secret Poisson sampling with overlapping bands: the smallest"
            " of conditional composition for entrywise non-negative C (after arXiv 2310.15526; larger of both"
            f" directions; thresholds fail with probability {shares} of delta, which is a part of it; row by"
            " row on a grid of likelihood ratios, in convex order; also with one row that all participations"
            " share), of the monograph's Theorem 3.21 at the noise over the spectral norm of C (pessimistic"
            " privacy loss distribution), of groups of patterns of participation (collinear, and Gauss-Markov"
            " chains), and of no amplification (exact Gaussian)"
        )


def _less_noise(
    rows: HistoryChain | CommonRow | GroupedPatterns, epsilon: float, delta: float, std: float
) -> float:
    """About the least noise std, at most `std`, at which these rows, or patterns, show `epsilon`."""
    asked = epsilon * (1 - 1e-6)  # what a search for epsilon at this noise may add
    found = rows.epsilon(delta, std, epsilon)
    if found > asked * (1 - _CLOSE):
        return std
    # (log std, log epsilon) where epsilon is shown, and below where it is not
    safe, unsafe = (math.log(std), math.log(found / asked)), None
    slope = -1.0
    for _ in range(_ATTEMPTS):
        aim = -_CLOSE / 3
        if unsafe is not None:
            slope = (safe[1] - unsafe[1]) / (safe[0] - unsafe[0])
        place = safe[0] + (aim - safe[1]) / slope
        if unsafe is not None:
            place = min(max(place, unsafe[0] + 0.05 * (safe[0] - unsafe[0])), safe[0])
        value = math.log(max(rows.epsilon(delta, math.exp(place), 4 * epsilon), 1e-12) / asked)
        if value <= 0:
            slope = min(-0.5, (value - safe[1]) / (place - safe[0])) if place < safe[0] else slope
            safe = (place, value)
            if value > -_CLOSE:
                break
        else:
            unsafe = (place, value)
    return math.exp(safe[0])
