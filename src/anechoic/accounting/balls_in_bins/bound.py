"""Balls in bins with correlated noise: the Gram matrix of the mixture, and bounds without sampling error.

An example draws one of b bins and takes part in steps i, i + b, …. For an entrywise non-negative C the run
is dominated by P = (1/b) sum_i N(m_i, s^2 I) against Q = N(0, s^2 I) with m_i = sum_j C[:, i + j b]
(arXiv 2410.06266, Lemma 3.2; there, the two directions are exchanged). Only G_ij = <m_i, m_j> matters.

`BinsBound` takes the least of three families of upper bounds on both directions: classes of bins
(`accounting.balls_in_bins.bin_classes`), chains (`accounting.loss_distributions.chains`) and Renyi
divergences (`accounting.balls_in_bins.renyi`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial

import numpy as np

from anechoic._validate import Array, fraction, positive_float, positive_int
from anechoic.accounting.accountant import refuse_any_noise
from anechoic.accounting.balls_in_bins.bin_classes import Domination, dominations
from anechoic.accounting.balls_in_bins.folded_gram import folded_gram
from anechoic.accounting.balls_in_bins.renyi import renyi_epsilon
from anechoic.accounting.gaussian import UNSAMPLED_FROM, gaussian_epsilon, gaussian_mu
from anechoic.accounting.loss_distributions import chains as markov
from anechoic.accounting.loss_distributions.profile import Bounds
from anechoic.accounting.search import least_noise, rounded_up, smallest_epsilon
from anechoic.errors import UnsupportedError
from anechoic.sensitivity.gram import ENTRIES, gram_of
from anechoic.strategies.base import Strategy

_TRIED = 5  # chains, by rank
_TRIED_CLASSES = 3
_RENYI_FROM = 2.0  # epsilon from which Renyi divergences are computed, and the bins up to which always
_RENYI_UP_TO = 12
_BEYOND, _BELOW = 1.8, 1e4  # a law is computed up to this multiple of epsilon, and this part of delta
_TOLERANCE = 1e-4  # relative, of a noise std
_SLOPE = -1.7  # of log epsilon by log std, to begin with
_SLOPE_NEAR, _BY_EPSILON = -1.1, -0.045  # near the least noise, and for each unit of epsilon more
_ROUNDING = 1e-12
_NEAR = 1.5  # times the least delta by a quick grid, up to which chains are compared by a better one
_BEYOND_COARSE = 1.27  # power of coarse over quick that is about fine over quick
_COARSELY = 2.0  # times as large is a delta by a coarse grid at most
_ROUGH = 0.02  # relative, of a rough noise std


def check_nonnegative(strategy: Strategy, what: str) -> None:
    """Refuse strategies with a negative entry, and rectangular ones.

    Raises:
        UnsupportedError: naming the lemma.
    """
    if strategy.rows != strategy.n:
        raise UnsupportedError(
            f"{strategy.describe()} is rectangular: amplification by {what} is proved for the square C whose"
            " rows are released one a step. Use a square strategy, or FixedOrder."
        )
    if not strategy.structure.nonnegative:
        raise UnsupportedError(
            f"{strategy.describe()} has negative entries, or cannot be shown to have none: amplification by"
            f" {what} is proved for entrywise non-negative C (Lemma 3.2 of arXiv 2410.06266), and fails for"
            " [[1, 0], [-1, 1]]. Use a non-negative strategy, or FixedOrder."
        )


def bins_gram(strategy: Strategy, bins: int) -> Array:
    """G_ij = <m_i, m_j> for the sums m_i of the columns i, i + bins, … of C, shape (bins, bins).

    Args:
        strategy: entrywise non-negative.
        bins: b >= 1; bins beyond the last step have the mean 0.

    Raises:
        UnsupportedError: for a strategy with negative entries, or too many bins to be held.
    """
    check_nonnegative(strategy, "balls-in-bins sampling")
    bins = positive_int("bins", bins)
    if bins * bins <= ENTRIES and (folded := folded_gram(strategy, bins)) is not None:
        return np.maximum(folded, 0.0)
    gram = gram_of(strategy) if bins * bins <= ENTRIES else None
    if gram is None:
        raise UnsupportedError(
            f"bins={bins} and n={strategy.n}: the Gram matrix of the bins is too large to be computed here"
            f" (at most {math.isqrt(ENTRIES)} bins). Use fewer, or FixedOrder."
        )
    n, result = strategy.n, np.zeros((bins, bins))
    offsets = np.arange(bins)
    for lag in range(min(gram.bandwidth, n)):
        entries = gram.diagonal(lag)
        rows = -(-len(entries) // bins)
        sums = np.pad(entries, (0, rows * bins - len(entries))).reshape(rows, bins).sum(axis=0)
        columns = (offsets + lag) % bins
        result[offsets, columns] += sums
        if lag:
            result[columns, offsets] += sums
    return np.maximum(result, 0.0)  # of a non-negative C, up to rounding


@lru_cache(maxsize=12)
def bins_bound(strategy: Strategy, bins: int) -> BinsBound:
    """The bound for a strategy; its Gram matrix takes a while, and what it found is asked for again."""
    return BinsBound(bins_gram(strategy, bins))


@dataclass(frozen=True, eq=False)
class BinsBound:
    """The least upper bound on both directions that is known here for bins with this Gram matrix.

    Args:
        gram: of the means, shape (b, b), entries >= 0.
        classes, chains: those to be taken; None for all that dominate.
        renyi: whether to take Renyi divergences.
        fineness: how finely chains are computed.
    """

    gram: Array
    classes: tuple[Domination, ...] | None = None
    chains: tuple[markov.BinChain, ...] | None = None
    renyi: bool = True
    fineness: markov.Resolution = markov.FINE

    @cached_property
    def unsampled(self) -> float:
        """The largest squared length of a mean: without sampling the run is a Gaussian mechanism."""
        return float(self.gram.diagonal().max())

    @cached_property
    def _taking_part(self) -> tuple[float, BinsBound] | None:
        """h, the probability of a bin with a step, and the bound given that; None where every bin has one.

        P = (1 - h) Q + h P' for the mixture P' of those bins. If P' and Q are (e', delta / h)-close both ways
        round, then P and Q are (log(1 + h (exp(e') - 1)), delta)-close: see
        docs/proofs/amplification.md#balls-in-bins.
        """
        taken = self.gram.diagonal() > 0
        if taken.all():
            return None
        inner = replace(self, gram=self.gram[np.ix_(taken, taken)])
        return float(taken.mean()) * (1 + _ROUNDING), inner

    @cached_property
    def _classes(self) -> list[Domination]:
        return dominations(self.gram) if self.classes is None else list(self.classes)

    @cached_property
    def _chains(self) -> list[markov.BinChain]:
        if self.chains is not None:
            return list(self.chains)
        # one of b orthogonal means is a class: no chain gives less
        return markov.chains(self.gram) if np.count_nonzero(self.gram) > len(self.gram) else []

    def epsilon(self, delta: float, std: float) -> float:
        """An upper bound on epsilon.

        Args:
            delta: in (0, 1).
            std: of the noise, s > 0.
        """
        delta, std = fraction("delta", delta), positive_float("std", std)
        if (delta, std) not in self._found:
            self._found[delta, std] = self._epsilon(delta, std)
        return self._found[delta, std]

    @cached_property
    def _found(self) -> dict[tuple[float, float], float]:
        return {}

    def _epsilon(self, delta: float, std: float) -> float:
        plain = gaussian_epsilon(delta, math.sqrt(self.unsampled) / std)
        if self._taking_part is not None:
            taken, inner = self._taking_part
            return 0.0 if taken <= delta else min(plain, _amplified(inner.epsilon(delta / taken, std), taken))
        if len(self.gram) == 1 or plain == 0.0:
            return plain
        least = self._class(delta, std, self._chain(delta, std, plain)[0])[0]
        if not self.renyi or (least < _RENYI_FROM and len(self.gram) > _RENYI_UP_TO):
            return least  # a divergence never gave less there
        return min(least, renyi_epsilon(self.gram, delta, std, least))

    def keeps(self, epsilon: float, delta: float, std: float) -> bool:
        """Whether `epsilon(delta, std)` is at most `epsilon`, to within grids, in a part of its time.

        Args:
            epsilon: > 0.
            delta: in (0, 1).
            std: of the noise, s > 0.
        """
        if self._taking_part is not None:
            taken, inner = self._taking_part
            return taken <= delta or inner.keeps(_given_part(epsilon, taken), delta / taken, std)
        if epsilon > markov.LARGEST or delta < markov.LEAST_DELTA or len(self.gram) <= _RENYI_UP_TO:
            return self.epsilon(delta, std) <= epsilon
        shortest = Domination(len(self.gram), float(self.gram.diagonal().min()), 0.0)
        if shortest.least_delta(epsilon, std) > delta:
            return False
        if self._class(delta, std, epsilon)[1] is not None:
            return True
        for chain in _nearest(self._chains, std, epsilon, delta)[:1]:
            least = chain.law(std, epsilon, delta, markov.COARSE).delta(epsilon)
            if delta < least <= _COARSELY * delta:
                least = chain.law(std, epsilon, delta, self.fineness).delta(epsilon)
            if least <= delta:
                return True
        renyi = self.renyi and epsilon >= _RENYI_FROM
        return renyi and renyi_epsilon(self.gram, delta, std, epsilon) <= epsilon

    def profile_bounds(self, delta: float, std: float) -> list[Callable[[float], tuple[float, float]]]:
        """Functions of epsilon >= 0 that bound (remove, add) from above, sharp where these are `delta`.

        Each bounds both directions at every epsilon.
        """
        delta, std = fraction("delta", delta), positive_float("std", std)
        if self._taking_part is not None:
            taken, inner = self._taking_part
            bounds = [] if taken <= delta else inner.profile_bounds(delta / taken, std)
            return [_seldom(each, taken) for each in bounds]
        plain = gaussian_epsilon(delta, math.sqrt(self.unsampled) / std)
        found: list[Callable[[float], tuple[float, float]]] = []
        least, chain = self._chain(delta, std, plain)
        if chain is not None:
            law = chain.law(std, _BEYOND * least, max(delta / _BELOW, markov.LEAST_DELTA))
            found.append(lambda epsilon: (law.remove(epsilon), law.add(epsilon)))
        domination = self._class(delta, std, plain)[1]
        ratio = None if domination is None else domination.ratio(std, delta)
        if domination is not None and ratio is not None:
            mu = math.sqrt(domination.shared) / std
            found.append(lambda epsilon: (ratio.remove(epsilon, mu), ratio.add(epsilon, mu)))
        return found

    def noise_std(
        self, epsilon: float, delta: float, *, start: float | None = None, tolerance: float = _TOLERANCE
    ) -> float:
        """A noise std at which `epsilon` is at most `epsilon`, within about `tolerance` of the least.

        Args:
            epsilon: > 0.
            delta: in (0, 1).
            start: a noise std to begin with, near the least, > 0.
            tolerance: relative.
        """
        epsilon, delta = positive_float("epsilon", epsilon), fraction("delta", delta)
        high = math.sqrt(self.unsampled) / gaussian_mu(epsilon, delta) * (1 + 1e-9)
        if self._taking_part is not None:
            taken, inner = self._taking_part
            refuse_any_noise(delta, taken)
            part = _given_part(epsilon, taken)
            return min(high, inner.noise_std(part, delta / taken, start=start, tolerance=tolerance))
        if len(self.gram) == 1 or epsilon >= UNSAMPLED_FROM:
            return high
        std = 0.6 * high if start is None else rounded_up(min(start, high))
        slope = _SLOPE if start is None else max(_SLOPE, _SLOPE_NEAR + _BY_EPSILON * epsilon)
        quick, coarse = self._narrowed(delta, std)
        for better, power in ((quick, 1.0), (coarse, _BEYOND_COARSE), (self, 1.0)):
            part = (better.epsilon(delta, std) / max(quick.epsilon(delta, std), _ROUNDING)) ** power
            scaled = partial(lambda part, at: part * quick.epsilon(delta, at), part)
            std = least_noise(scaled, epsilon, std, tolerance, slope)
        return min(high, least_noise(partial(self.epsilon, delta), epsilon, std, tolerance, slope))

    def rough_noise_std(self, epsilon: float, delta: float) -> float:
        """Some per cent above `noise_std`, in a fraction of its time: for rankings.

        One class, and one chain that is short, by rank alone, and coarsely.

        Args:
            epsilon: > 0.
            delta: in (0, 1).
        """
        epsilon, delta = positive_float("epsilon", epsilon), fraction("delta", delta)
        high = std = math.sqrt(self.unsampled) / gaussian_mu(epsilon, delta) * (1 + 1e-9)
        if self._taking_part is not None:
            taken, inner = self._taking_part
            refuse_any_noise(delta, taken)
            return min(high, inner.rough_noise_std(_given_part(epsilon, taken), delta / taken))
        if epsilon >= UNSAMPLED_FROM:
            return high
        for start in (0.6, 1.0):
            near = start * std
            classes = tuple(sorted(self._classes, key=lambda domination: domination.rank(near))[:1])
            chains = tuple(sorted(_first(self._chains, near), key=lambda chain: chain.count)[:1])
            found = BinsBound(self.gram, classes, chains, renyi=False, fineness=markov.COARSE)
            std = min(std, least_noise(partial(found.epsilon, delta), epsilon, near, _ROUGH, _SLOPE))
        return min(std, high)

    def _narrowed(self, delta: float, std: float) -> list[BinsBound]:
        """With the class and the chain alone that are the best here, on a quick and a coarse grid."""
        plain = gaussian_epsilon(delta, math.sqrt(self.unsampled) / std)
        least, chain = replace(self, chains=tuple(self._chains), fineness=markov.QUICK)._chain(
            delta, std, plain
        )
        domination = self._class(delta, std, least)[1]
        classes = () if domination is None else (domination,)
        chains = () if chain is None else (chain,)
        return [BinsBound(self.gram, classes, chains, False, grid) for grid in (markov.QUICK, markov.COARSE)]

    def _class(self, delta: float, std: float, least: float) -> tuple[float, Domination | None]:
        """The least epsilon by classes of bins, and which class gives it."""
        best = None
        for candidate in sorted(self._classes, key=lambda domination: domination.rank(std))[:_TRIED_CLASSES]:
            if candidate.least_delta(least, std) > delta:
                continue
            delta_at = candidate.delta_at(std, delta)
            if delta_at(least) <= delta:
                least, best = smallest_epsilon(delta_at, delta, least), candidate
        return least, best

    def _chain(self, delta: float, std: float, least: float) -> tuple[float, markov.BinChain | None]:
        """An epsilon of at most `least` by a Gauss-Markov chain, and which; None where none gives less."""
        best = None
        if least > markov.LARGEST or delta < markov.LEAST_DELTA:
            return least, best
        grid = markov.COARSE if self.fineness is markov.FINE else self.fineness
        near = _nearest(self._chains, std, least, delta)
        for candidate in near[:1] if grid is markov.QUICK else near:
            law = candidate.law(std, least, delta, grid)
            if law.delta(least) <= delta:
                least, best = smallest_epsilon(law.delta, delta, least), candidate
        if best is not None and self.fineness is not grid:
            least = smallest_epsilon(best.law(std, least, delta, self.fineness).delta, delta, least)
        return least, best


def _first(found: list[markov.BinChain], std: float) -> list[markov.BinChain]:
    """The chains that should give the least at this noise."""
    return sorted(found, key=lambda chain: chain.rank(std))[:_TRIED]


def _nearest(found: list[markov.BinChain], std: float, epsilon: float, delta: float) -> list[markov.BinChain]:
    """Of these the ones that are near the least by a grid that is quick, the best one first."""
    tried = _first(found, std)
    if len(tried) < 2:
        return tried
    laws = [chain.law(std, epsilon, delta, markov.QUICK) for chain in tried]
    at = smallest_epsilon(laws[0].delta, delta, epsilon)
    ranked = sorted((law.delta(at), place) for place, law in enumerate(laws))
    return [tried[place] for value, place in ranked if value <= _NEAR * ranked[0][0]]


def _amplified(epsilon: float, taken: float) -> float:
    """log(1 + h (e^epsilon - 1)), rounded up."""
    least = math.log1p(taken * math.expm1(epsilon)) if epsilon < 600.0 else epsilon + math.log(taken)
    return min(epsilon, least * (1 + _ROUNDING))


def _given_part(epsilon: float, taken: float) -> float:
    """The epsilon' with log(1 + h (e^epsilon' - 1)) = epsilon, rounded down."""
    most = math.log1p(math.expm1(epsilon) / taken) if epsilon < 600.0 else epsilon - math.log(taken)
    return max(epsilon, most * (1 - 2 * _ROUNDING))


def _seldom(law: Bounds, taken: float) -> Bounds:
    """The two directions of (1 - h) Q + h P' and Q, from those of P' and Q."""

    def mixed(epsilon: float) -> tuple[float, float]:
        remove = min(1.0, taken * law(_given_part(epsilon, taken))[0] * (1 + _ROUNDING))
        left = 1.0 - math.exp(min(epsilon, 600.0)) * (1.0 - taken) + _ROUNDING
        if left <= 0.0:
            return remove, 0.0
        behind = epsilon + math.log(taken / left)
        return remove, min(1.0, left * law(max(0.0, behind))[1] * (1 + _ROUNDING))

    return mixed
