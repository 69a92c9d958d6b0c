"""Independent draws at every step with correlated noise: conditional composition.

An example takes part in each of m steps independently with probability p. For an entrywise non-negative,
lower-triangular E the run is dominated by P = N(E x, s^2 I), x ~ Bern(p)^m, against Q = N(0, s^2 I). Rows
are released in turn. Given the rows y before row i, let v = E[:i, j]. Whatever the other coordinates of x,
the odds of x_j = 1 are at most p / (1 - p) exp((2 <v, y> - |v|^2) / (2 s^2)), as E >= 0. Where
<v, y> <= t_ij for all j, the x_j are dominated by independent Bern(p_ij), and row i by

    N(sum_j Bern(p_ij) E_ij, s^2)    against    N(0, s^2),    p_ii = p.

Elsewhere the row is replaced by one that reveals nothing, at the price of the probability that this happens
(under P to remove an example, under Q to add one), which is a part of delta. The rows then compose. Proof:
docs/proofs/conditional-composition.md; after arXiv 2310.15526, whose union over the two parts of <v, y> is
replaced by the tail of their sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtri

from anechoic._validate import Array
from anechoic.accounting.laws.likelihood import Ratio, product_of
from anechoic.accounting.poisson.rows import RowLaw, bernoulli_row
from anechoic.accounting.poisson.tails import Tails
from anechoic.accounting.search import smallest_epsilon

#: Parts of delta that are tried for the probability that a threshold is exceeded.
SHARES = (0.05, 0.25)
DIRECTIONS = ("remove", "add")
MOST_STEPS = 64  # of a matrix that is not Toeplitz
MOST_COEFFICIENTS = 2048

_EXACT_LAGS = 48  # lags that are looked at one by one
_LAG_GROUPS = 60
_KINDS = 12  # kinds of rows of a Toeplitz matrix of about as many coefficients as rows
_STEADY = 6  # a matrix of this many times as many rows as coefficients is of one kind
_FINEST = 30  # grid points to one standard deviation of a row's likelihood ratio
_WIDEST = 0.02
_NARROWEST = 1e-10
_MOST_ATOMS = 40_000
_ROW_ATOMS = 6000
_HOPELESS = 120.0  # log of the second moment of the whole ratio, from which nothing is computed


@dataclass(frozen=True, eq=False)
class _Row:
    """`count` rows: E_ii, and the entries E_ij with the place of (i, j) among the pairs of the chain."""

    count: int
    fresh: float
    values: Array
    places: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class HistoryChain:
    """E, as kinds of rows; where rows or lags are grouped, by a matrix and histories that dominate.

    Attributes:
        rows: kinds of rows.
        overlaps: <v_ij, E[:i, j']> over j', shape (pairs, terms), padded with zeros.
        least: at most |v_ij|^2, shape (pairs,).
        largest: at least |v_ij|^2, shape (pairs,).
        exceptions: number of pairs (i, j), j < i, with E_ij > 0.
        rate: p in (0, 1).
    """

    rows: tuple[_Row, ...]
    overlaps: Array
    least: Array
    largest: Array
    exceptions: int
    rate: float

    @cached_property
    def _tails(self) -> Tails:
        return Tails(self.overlaps, self.least, self.largest, self.rate)

    def probabilities(self, std: float, failure: float, direction: str) -> Array:
        """p_ij of every pair; a pair exceeds its threshold with probability at most `failure`."""
        if not len(self.least):
            return np.empty(0)
        if direction == "remove":
            thresholds = self._tails.thresholds(std, failure)
        else:
            thresholds = -ndtri(failure) * std * np.sqrt(self.largest) * (1 + 1e-9)
        odds = math.log(self.rate) - math.log1p(-self.rate)
        found = expit(odds + (2 * thresholds - self.least) / (2 * std**2))
        return np.asarray(np.minimum(1.0, found * (1 + 1e-12)))

    def composed(self, std: float, exceeded: float, direction: str) -> Composed | None:
        """All rows, where some threshold fails with probability at most `exceeded`.

        None where there is so little noise that nothing would be shown.
        """
        found = self.probabilities(std, exceeded / max(1, self.exceptions), direction)
        laws = [(row.count, bernoulli_row(*_terms(row, self.rate, found), std)) for row in self.rows]
        ratio = composed_rows(laws, direction)
        return None if ratio is None else Composed(*ratio, exceeded if self.exceptions else 0.0, direction)

    def epsilon(self, delta: float, std: float, high: float) -> float:
        """An upper bound on epsilon in both directions; `high`, which is known, where none is below it."""
        shares = SHARES if self.exceptions else SHARES[:1]
        return worse_epsilon(lambda *at: self.composed(std, *at), shares, delta, high)


@dataclass(frozen=True)
class Composed:
    """delta as a function of epsilon, in one direction."""

    ratio: Ratio
    slack: float
    exceeded: float
    direction: str

    def delta(self, epsilon: float) -> float:
        """An upper bound on delta."""
        at = epsilon - self.slack
        remove = self.direction == "remove"
        found = math.exp(self.slack) * self.ratio.remove(at) if remove else self.ratio.add(at)
        return min(1.0, found + self.exceeded)


def worse_epsilon(
    composed: Callable[[float, str], Composed | None], shares: Iterable[float], delta: float, high: float
) -> float:
    """Epsilon of the worse direction, in each by the best of these shares of delta for the thresholds.

    Args:
        composed: (probability that a threshold fails, direction) -> what is composed; None without a bound.
        shares: in (0, 1).
        delta: in (0, 1).
        high: an epsilon that is known from elsewhere.
    """
    shares, worst = tuple(shares), 0.0
    for direction in DIRECTIONS:
        best = high
        for share in shares:
            found = composed(share * delta, direction)
            if found is None:
                return high
            best = min(best, smallest_epsilon(found.delta, delta, high))
        worst = max(worst, best)
        if worst >= high:
            return high
    return worst


def toeplitz_chain(coefficients: Array, steps: int, rate: float) -> HistoryChain:
    """E[i, j] = coefficients[i - j], `steps` x `steps`.

    Args:
        coefficients: >= 0, the first > 0.
        steps: m >= 1.
        rate: p in (0, 1).
    """
    c = coefficients[:steps]
    c = c[: int(np.flatnonzero(c)[-1]) + 1]
    b = len(c)
    ends = _ends(b, steps)
    bounds = _lag_bounds(b)
    tables = [(_earlier(c, last), _later(c, last)) for _, last in bounds]
    energy = np.append(0.0, np.cumsum(c**2))
    rows: list[_Row] = []
    overlaps: list[Array] = []
    least: list[float] = []
    largest: list[float] = []
    previous = -1
    for end in ends:
        values, places = [], []
        for (first, last), (earlier, later) in zip(bounds, tables, strict=True):
            if first > end:
                break
            here = np.zeros(2 * b)
            known = earlier[: max(0, end - first)]  # columns before j
            here[: len(known)] = known
            here[b : b + len(later)] = later
            here[-1] = energy[last]
            kept = min(last, end)
            values.append(c[first : kept + 1])
            places.append(np.full(kept + 1 - first, len(least)))
            overlaps.append(here)
            least.append(energy[first])
            largest.append(energy[last])
        rows.append(
            _Row(
                end - previous,
                float(c[0]),
                np.concatenate(values) if values else np.empty(0),
                np.concatenate(places) if places else np.empty(0, np.int64),
            )
        )
        previous = end
    lags = np.minimum(np.arange(steps), b - 1)
    return HistoryChain(
        tuple(rows),
        np.array(overlaps).reshape(len(least), 2 * b),
        np.array(least),
        np.array(largest),
        int(lags.sum()),
        rate,
    )


def dense_chain(matrix: Array, rate: float) -> HistoryChain:
    """Any lower-triangular E >= 0, row by row.

    Args:
        matrix: shape (m, m), entries >= 0, diagonal > 0.
        rate: p in (0, 1).
    """
    m = len(matrix)
    gram = np.zeros((m, m))
    rows: list[_Row] = []
    overlaps: list[Array] = []
    least: list[float] = []
    for i, row in enumerate(matrix):
        before = np.flatnonzero(row[:i] > 0)
        rows.append(_Row(1, float(row[i]), row[before], len(least) + np.arange(len(before))))
        overlaps.extend(gram[j, :i].copy() for j in before)
        least.extend(float(gram[j, j]) for j in before)
        gram += np.outer(row, row)
    padded = np.zeros((len(least), m))
    for k, overlap in enumerate(overlaps):
        padded[k, : len(overlap)] = overlap
    squared = np.array(least)
    return HistoryChain(tuple(rows), padded, squared, squared, len(least), rate)


def _terms(row: _Row, rate: float, found: Array) -> tuple[Array, Array]:
    return np.append(row.fresh, row.values), np.append(rate, found[row.places])


def composed_rows(laws: list[tuple[int, RowLaw]], direction: str) -> tuple[Ratio, float] | None:
    """(ratio of so many rows of each law, sum of the misses of their cells); None without a bound."""
    moments = [(count, law.second_moment) for count, law in laws]
    whole = sum(count * moment for count, moment in moments)
    if whole > _HOPELESS:
        return None
    spread = math.sqrt(sum(c * math.expm1(m) for c, m in moments) / sum(c for c, _ in moments))
    width = min(_WIDEST, spread / _FINEST)
    width = max(width, (20 * math.sqrt(whole) + 2 * whole) / _MOST_ATOMS)
    width = max(width, max(law.reach for _, law in laws) / _ROW_ATOMS, _NARROWEST)
    total, slack = None, 0.0
    for count, law in laws:
        one, miss = law.ratio(width, direction)
        slack += count * miss
        power = product_of(one, count)
        total = power if total is None else total.times(power)
    return None if total is None else (total, slack)


def _ends(bands: int, steps: int) -> list[int]:
    """Last row of each kind; its history dominates that of the earlier ones."""
    if bands == 1 or steps >= _STEADY * bands:
        return [steps - 1]
    ends = np.unique(np.ceil(np.linspace(0, steps, _KINDS + 1)[1:]))
    return [int(end) - 1 for end in ends]


def _lag_bounds(bands: int) -> list[tuple[int, int]]:
    """First and last lag of each group of lags 1 … bands - 1."""
    if bands - 1 <= _EXACT_LAGS:
        return [(lag, lag) for lag in range(1, bands)]
    edges = np.unique(np.round(np.geomspace(1, bands, _LAG_GROUPS + 1))).astype(int).tolist()
    return [(first, after - 1) for first, after in pairwise(edges)]


def _earlier(c: Array, lag: int) -> Array:
    """<v, column j - e> for e = 1, 2, …, where v is column j over its first `lag` rows."""
    return np.correlate(c, c[:lag], "full")[lag:]


def _later(c: Array, lag: int) -> Array:
    """<v, column j + e> for e = 1 … lag - 1, over the same rows."""
    return np.correlate(c[:lag], c[:lag], "full")[lag:]
