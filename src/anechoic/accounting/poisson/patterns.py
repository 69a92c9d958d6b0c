"""Poisson sampling where a unit takes part seldom: by patterns of participation, a group of them at a time.

A unit takes part in the steps of the pattern x with probability w_x, and the likelihood ratio of the run is
R = w_0 + sum over groups g of patterns of w_g R_g, R_g that of the patterns of the group alone, of mean 1. As
(a + b)_+ <= a_+ + b_+,

    E (R - K)_+ <= sum_g w_g E (R_g - K_g)_+    and    E (K - R)_+ <= sum_g w_g E (K_g - R_g)_+

for all K_g with w_0 + sum_g w_g K_g = K: the first bounds H(P || Q), the second H(Q || P). The best K_g come
from sorting slopes. A group is bounded by how long the sums of its columns are, as if these were collinear;
and, for one and two participations, by the Gauss-Markov chain that lies above their products
(`accounting.laws.chains`), since it is secret too which of its patterns a unit has. Proof:
docs/proofs/conditional-composition.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, pairwise

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.special import ndtr

from anechoic._validate import Array
from anechoic.accounting.laws.chains import LARGEST, LEAST_DELTA, BinChain, Fineness, chains_above
from anechoic.accounting.laws.profile import envelope
from anechoic.accounting.poisson.reduction import held
from anechoic.accounting.search import smallest_epsilon
from anechoic.participation import MinSep
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.strategies.base import Strategy

MOST = 12  # participations that are looked at
SELDOM = 4.0  # expected participations up to which this is tried
_HELD = 2048  # steps of a group up to which products are held
_CHAINED = 64  # steps of a group up to which chains of two participations are tried: later ones gain little
_LISTED = 100_000  # patterns of so many participations whose lengths are listed
_LEVELS = 48  # different lengths in a group
_THINNED = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89)  # each, every other, … pattern of a group
_LONGEST = 24  # patterns of a chain
_FINENESS = Fineness(0.015, 900)
_REACH, _POINTS = 9.0, 361  # of the grid of noise, in its standard deviations
_SPREAD = 8.0  # standard deviations of a loss from which a chain is not tried
_ROUNDING = 1e-10

#: A convex function, as its vertices: arguments from 0 on, which rise, and values.
Curve = tuple[Array, Array]


@dataclass(frozen=True, eq=False)
class Group:
    """Patterns that are bounded together.

    Attributes:
        weight: w_g > 0, the probability of all of them.
        squares: squared lengths of their sums of columns, shape (k,).
        shares: how much of the group each length is, of sum 1, shape (k,).
        chains: of each of which the group is a part, or an average of parts, that its products dominate.
    """

    weight: float
    squares: Array
    shares: Array
    chains: tuple[BinChain, ...] = ()

    def curve(self, std: float, direction: str, delta: float) -> Curve:
        """K -> a bound on E (R_g - K)_+ for "remove", on E (K - R_g)_+ for "add"."""
        places, values = self._collinear(std, direction)
        if self.chains:
            chain = min(self.chains, key=lambda chain: chain.rank(std))
            spread = math.sqrt(chain.shared + chain.variance) / std
            if spread < _SPREAD:
                z = np.arange(-_REACH, _REACH + spread, 0.2)
                logs = spread * z - spread**2 / 2
                law = chain.law(std, min(float(logs[-1]), LARGEST), max(delta, LEAST_DELTA), _FINENESS)
                if direction == "remove":
                    found = [law.remove(log) for log in logs.tolist()]
                else:
                    found = [math.exp(log) * law.add(-log) for log in logs.tolist()]
                places, values = np.append(places, np.exp(logs)), np.append(values, found)
        return _hull(places, values)

    def _collinear(self, std: float, direction: str) -> Curve:
        """The curve of one-dimensional Gaussians, each at the level that one value of the noise gives it."""
        mu = np.sqrt(self.squares)[:, None] / std
        z = np.linspace(-_REACH, _REACH, _POINTS)
        z = np.append(z, np.arange(_REACH, _REACH + float(mu.max()), 0.05) + 0.05)
        levels = np.exp(np.minimum(mu * z - mu**2 / 2, 600.0))
        if direction == "remove":
            values, start = ndtr(mu - z) * (1 + 1e-15) - levels * ndtr(-z) * (1 - 1e-15), 1.0
        else:
            values, start = levels * ndtr(z) * (1 + 1e-15) - ndtr(z - mu) * (1 - 1e-15), 0.0
        places = np.append(0.0, self.shares @ levels)
        values = np.append(start, np.maximum(self.shares @ values, 0.0))
        if direction == "add":  # from there on no put rises faster than its level
            places, values = np.append(places, places[-1] + 1.0), np.append(values, values[-1] + 1.0)
        return places, values


@dataclass(frozen=True, eq=False)
class GroupedPatterns:
    """All patterns of a unit: in groups, but for those of too many participations.

    Attributes:
        taken: 1 - w_0, the probability of any participation, to a relative 1e-12.
        groups: of the patterns.
        more: probability of a pattern in none of them, or more.
    """

    taken: float
    groups: tuple[Group, ...]
    more: float

    def profile(self, std: float, delta: float) -> Callable[[float], float]:
        """epsilon -> a bound on delta in both directions; where it is above `delta`, in one."""

        def curve(direction: str) -> Curve:
            return _split([(g.weight, g.curve(std, direction, delta)) for g in self.groups])

        calls, puts = curve("remove"), cache(lambda: curve("add"))  # the second only where it is asked for

        def delta_at(epsilon: float) -> float:
            above = math.expm1(min(epsilon, 700.0))  # K less 1
            remove = float(np.interp((above + self.taken) * (1 - _ROUNDING), *calls)) + self.more
            left = self.taken * (1 + _ROUNDING) - above / (1.0 + above)
            if left <= 0.0 or remove > delta:  # nothing is seen of who is absent that often; or enough is
                return min(1.0, remove * (1 + _ROUNDING) + 1e-16)
            add = (1.0 + above) * float(np.interp(left * (1 + _ROUNDING), *puts()))
            return min(1.0, max(remove, add) * (1 + _ROUNDING) + 1e-16)

        return delta_at

    def epsilon(self, delta: float, std: float, high: float) -> float:
        """An upper bound on epsilon; `high`, which is known, where none is below it."""
        return smallest_epsilon(self.profile(std, delta), delta, high) if self.more < delta else high


def patterns_of(strategy: Strategy, groups: int, rate: float) -> GroupedPatterns | None:
    """The patterns of one unit; None where it takes part often.

    Args:
        strategy: square, entrywise non-negative.
        groups: g >= 1.
        rate: p in (0, 1).

    Raises:
        UnsupportedError: for a strategy that is not Toeplitz and too large to be held.
    """
    steps = -(-strategy.n // groups)
    if steps * rate > SELDOM:
        return None
    found: list[Group] = []
    looked_at = min(steps, MOST)
    gram = products(strategy, groups) if steps <= _HELD else None
    for count in range(1, looked_at + 1):
        weight = float(scipy.stats.binom.pmf(count, steps, rate))
        if weight < 1e-300:
            looked_at = count - 1
            break
        if gram is not None and count <= 2:
            found.extend(_chained(gram, weight, count))
        elif gram is not None and math.comb(steps, count) <= _LISTED:
            found.append(Group(weight, *_lengths(_squares(gram, count))))
        else:
            longest = sensitivity(strategy, MinSep(groups, count)).value
            found.append(Group(weight, np.array([longest**2]) * (1 + _ROUNDING), np.ones(1)))
    more = float(scipy.stats.binom.sf(looked_at, steps, rate)) * (1 + _ROUNDING)
    return GroupedPatterns(-math.expm1(steps * math.log1p(-rate)), tuple(found), more)


def products(strategy: Strategy, groups: int) -> Array:
    """At least <C_j, C_l> of the columns j, l of every group, entry by entry, shape (m, m)."""
    n = strategy.n
    size = -(-n // groups)
    found = np.zeros((size, size))
    if strategy.structure.toeplitz:  # the columns of another group are those of group 0 in fewer rows
        c = np.asarray(strategy.coefficients[: min(n, strategy.structure.bands)])
        rows = n - groups * np.arange(size)  # that a column has
        for lag in range(size):
            summed = np.cumsum(c[: max(0, len(c) - lag * groups)] * c[lag * groups :])
            if not len(summed):
                break
            entries = summed[np.minimum(rows[lag:], len(summed)) - 1]
            found[np.arange(size - lag), lag + np.arange(size - lag)] = entries
        return (found + np.triu(found, 1).T) * (1 + _ROUNDING)
    dense = held(strategy)
    for first in range(min(groups, n)):
        columns = dense[:, first::groups]
        here = found[: columns.shape[1], : columns.shape[1]]
        np.maximum(here, columns.T @ columns, out=here)
    return found * (1 + _ROUNDING)


def _chained(gram: Array, weight: float, count: int) -> Iterator[Group]:
    """Patterns of one step, or of two, by how far apart they are: each time with chains."""
    steps = len(gram)
    lags = np.zeros(2 * steps)
    lags[:steps] = [gram.diagonal(lag).max() for lag in range(steps)]
    if count == 1:
        yield Group(weight, *_lengths(gram.diagonal()), _chains([(np.arange(steps), lags)]))
        return
    places, each = np.arange(steps), weight / math.comb(steps, 2)
    for first, last in _apart(steps):
        for half in (0, 1):  # of {i, i + d} those in which no step is in two
            sets, squares = [], []
            for apart in range(first, last + 1):
                starts = places[: steps - apart]
                starts = starts[starts // apart % 2 == half]
                ends = starts + apart
                sets.append((starts, 2 * lags[:steps] + lags[places + apart] + lags[np.abs(places - apart)]))
                squares.append(gram[starts, starts] + gram[ends, ends] + 2 * gram[starts, ends])
            found = np.concatenate(squares)
            if len(found):
                sets = [one for one in sets if len(one[0])]
                chains = _chains(sets) if steps <= _CHAINED else ()
                yield Group(each * len(found), *_lengths(found), chains)


def _apart(steps: int) -> list[tuple[int, int]]:
    """First and last distance of the two steps of a pattern, in classes of patterns about as many."""
    starts = {1, 2, 3, *(round(steps * part) for part in (0.3, 0.45, 0.6, 0.75, 0.85))}
    edges = [*sorted(start for start in starts if 1 <= start < steps), steps]
    return [(first, after - 1) for first, after in pairwise(edges)]


def _chains(sets: list[tuple[NDArray[np.int64], Array]]) -> tuple[BinChain, ...]:
    """Chains that dominate each of these sets, thinned or as they are.

    Args:
        sets: places that rise, shape (k,), and the products of two patterns by the lag of their places.
    """
    found: list[BinChain] = []
    for thinned in _THINNED:
        parts = [(places[start::thinned], lags) for places, lags in sets for start in range(thinned)]
        fewest = min(len(places) for places, _ in parts)
        if fewest < 2:
            break
        profile = np.zeros(max(len(places) for places, _ in parts))
        for places, lags in parts:
            for apart in range(len(places)):
                product = float(lags[places[apart:] - places[: len(places) - apart]].max())
                profile[apart] = max(profile[apart], product)
        fewest = min(fewest, _LONGEST)
        found.extend(replace(chain, count=fewest) for chain in chains_above(profile))
    return tuple(found)


def _squares(gram: Array, count: int) -> Array:
    """Squared lengths of the sums of `count` columns, of all such sets, shape (sets,)."""
    places = np.array(list(combinations(range(len(gram)), count)))
    return np.asarray(gram[places[:, :, None], places[:, None, :]].sum(axis=(1, 2)))


def _lengths(squares: Array) -> tuple[Array, Array]:
    """(few different squares, each at least one of these, and their shares)."""
    unit = float(squares.max()) / _LEVELS
    levels, counts = np.unique(np.ceil(squares / unit * (1 - 1e-12)).clip(1), return_counts=True)
    return levels * unit * (1 + _ROUNDING), counts / len(squares)


def _hull(places: Array, values: Array) -> Curve:
    """The convex function below these points, which lie above a convex one that falls, or rises."""
    order = np.lexsort((values, places))
    places, values = places[order], values[order]
    falls = values[0] > values[-1]
    values = np.minimum.accumulate(values) if falls else np.minimum.accumulate(values[::-1])[::-1]
    return envelope(places, values)


def _split(curves: list[tuple[float, Curve]]) -> Curve:
    """K -> the least sum of w_g f_g(K_g) over all K_g of sum w_g K_g = K: segments by their slopes."""
    lengths = np.concatenate([weight * np.diff(places) for weight, (places, _) in curves])
    rises = np.concatenate([weight * np.diff(values) for weight, (_, values) in curves])
    order = np.argsort(rises / lengths)
    start = sum(weight * values[0] for weight, (_, values) in curves)
    return np.append(0.0, np.cumsum(lengths[order])), start + np.append(0.0, np.cumsum(rises[order]))
