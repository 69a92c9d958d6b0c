"""Law of a likelihood ratio on a geometric grid, always more spread out than the true one.

For a pair (P, Q) of output distributions let R = dP/dQ under Q. Both directions of the hockey-stick
divergence are expectations of convex functions of R,

    H(P || Q) = E_Q[(R - e^epsilon)_+] + P(R = inf),        H(Q || P) = E_Q[(1 - e^epsilon R)_+],

so that a law with E[R' | R] = R (a mean-preserving spread) gives upper bounds in both directions, and
stays one under sums and products of independent ratios and under composition (Blackwell's order; Jensen's
inequality). Every rounding below splits an atom between its two neighbours on the grid so that its mean is
kept; what exceeds the grid keeps its Q-mass at the top and sends the rest of its mean to infinity. The
error is of second order in the width of the grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from scipy.linalg import norm
from scipy.special import erfcx, log_ndtr, ndtr, ndtri

from anechoic._validate import Array
from anechoic.algebra import toeplitz

TAIL, _SHARE = 1e-18, 1e-4  # what a trim may move, at most, and as a part of a delta not decided by it
_LEAST_TAIL = 1e-110  # products of masses are held as float64
_TRIMS = 100.0  # tails by which every bound is raised, for what is lost in floating point
ROUNDING = 1e-10  # relative excess by which a bound exceeds what was summed in floating point
REACH = 9.0  # standard deviations of a Gaussian privacy loss kept on the grid, at least
_FINEST_SPREAD = 24  # grid points to one standard deviation of the ratio, at least
_WIDEST = 0.02
_HIGHEST = 350.0  # log R of a factor; that of a product of two is still in the range of a float64
_MOST_POINTS = 6000  # a grid of more is not refined further
_FINEST = 2**18  # points of a law that is brought to the grid of another
_FAR = 30.0  # standard deviations beyond which a normal tail is nothing beside 1
_LONGEST = 2**15  # points of a factor of a product; a longer one goes to a coarser grid


@dataclass(frozen=True)
class Ratio:
    """R: atoms at exp(width * (first + i)) of Q-mass `mass[i]`, at 0 of `zero`, and `infinite` in mean.

    Attributes:
        width: of the grid of log R, > 0.
        first: index of the first atom.
        mass: Q-masses, shape (atoms,).
        zero: Q-mass of R = 0.
        infinite: E_Q[R; R = inf], which is P(R = inf) where E R = 1.
        tail: mass that one trim may move to 0, and mean that it may move to infinity (relative).
    """

    width: float
    first: int
    mass: Array
    zero: float = 0.0
    infinite: float = 0.0
    tail: float = TAIL

    @property
    def logs(self) -> Array:
        """log R of the atoms."""
        return np.asarray(self.width * np.arange(self.first, self.first + len(self.mass), dtype=np.float64))

    @property
    def mean(self) -> float:
        """E R, with what lies at infinity."""
        return float(np.exp(self.logs) @ self.mass) + self.infinite

    @property
    def spread(self) -> float:
        """Relative standard deviation of R."""
        values, finite = np.exp(self.logs), self.mean - self.infinite
        # a norm does not square what is large
        return float(norm((values / finite - 1) * np.sqrt(np.maximum(self.mass, 0.0))))

    def trimmed(self) -> Ratio:
        """Without atoms of next to no mass at the two ends."""
        logs, mass = self.logs, self.mass
        values = np.exp(logs)
        allowed = self.tail * self.mean
        lowest = int(np.searchsorted(np.cumsum(mass), self.tail))
        above = np.cumsum((values * mass)[::-1])
        highest = len(mass) - 1 - int(np.searchsorted(above, allowed))
        lowest, highest = min(lowest, len(mass) - 1), max(highest, 0)
        if lowest >= highest:
            return self
        kept = mass[lowest : highest + 1].copy()
        below, beyond = mass[:lowest], mass[highest + 1 :]
        up = float(below @ np.exp(logs[:lowest] - logs[lowest]))
        kept[0] += up
        kept[-1] += float(beyond.sum())
        moved = float(beyond @ (values[highest + 1 :] - values[highest]))
        zero = self.zero + max(0.0, float(below.sum()) - up)
        return Ratio(self.width, self.first + lowest, kept, zero, self.infinite + moved, self.tail)

    def _capped(self) -> Ratio:
        """With what lies above e^350 between there and infinity, so that a product stays in range."""
        highest = max(0, int(np.searchsorted(self.logs, _HIGHEST, side="right")) - 1)
        beyond = self.mass[highest + 1 :]
        if not len(beyond):
            return self
        values, kept = np.exp(self.logs[highest:]), self.mass[: highest + 1].copy()
        kept[-1] += float(beyond.sum())
        moved = float(beyond @ (values[1:] - values[0]))
        return replace(self, mass=kept, infinite=self.infinite + moved)

    def refined(self) -> Ratio:
        """The same law on a grid of half the width."""
        mass = np.zeros(2 * len(self.mass) - 1)
        mass[::2] = self.mass
        return replace(self, width=self.width / 2, first=2 * self.first, mass=mass)

    def coarsened(self) -> Ratio:
        """On a grid of twice the width: atoms between its points are split among their neighbours."""
        mass = np.pad(self.mass, (self.first % 2, 2))
        mass = mass[: len(mass) // 2 * 2 - 1] if len(mass) % 2 == 0 else mass
        up = 1.0 / (1.0 + math.exp(self.width))  # keeps the mean
        kept, between = mass[::2].copy(), mass[1::2]
        kept[:-1] += (1.0 - up) * between
        kept[1:] += up * between
        return replace(self, width=2 * self.width, first=(self.first - self.first % 2) // 2, mass=kept)

    def fine_enough(self, share: float = 1.0) -> Ratio:
        """On a grid that resolves the spread, also of a sum in which this is a `share` of the mean."""
        ratio, spread = self, self.spread * share
        while ratio.width * _FINEST_SPREAD > spread and len(ratio.mass) < _MOST_POINTS:
            ratio = ratio.refined()
        return ratio

    def plus(self, other: Ratio) -> Ratio:
        """The sum of independent ratios (not of mean 1: divide by the number of terms)."""
        a, b = _on_one_grid(self, other)
        first, mass, zero = _sum_masses(a, b)
        return Ratio(a.width, first, mass, zero, a.infinite + b.infinite, self.tail).trimmed()

    def times(self, other: Ratio) -> Ratio:
        """The product of independent ratios of mean 1: composition."""
        a, b = self._capped(), other._capped()
        a, b = _on_one_grid(a, b)
        while max(len(a.mass), len(b.mass)) > _LONGEST:
            a, b = a.coarsened(), b.coarsened()
        mass = np.convolve(a.mass, b.mass)
        zero = a.zero + b.zero - a.zero * b.zero
        infinite = a.infinite * b.mean + b.infinite * a.mean - a.infinite * b.infinite
        return Ratio(a.width, a.first + b.first, mass, zero, infinite, self.tail).trimmed()

    def over(self, count: int) -> Ratio:
        """R / count, rounded to the grid."""
        shift = -math.log(count) / self.width
        whole = math.floor(shift)
        step = math.expm1(self.width)
        up = math.expm1((shift - whole) * self.width) / step
        mass = np.pad(self.mass * (1 - up), (0, 1)) + np.pad(self.mass * up, (1, 0))
        return replace(self, first=self.first + whole, mass=mass, infinite=self.infinite / count)

    def among(self, made: int, count: int) -> Ratio:
        """(R + count - made) / count for a sum R of `made` ratios, on a grid that resolves it.

        What is added may be many times the spread: logarithms are taken of the small difference to 1.
        """
        logs = np.log1p(np.expm1(self.logs - math.log(made)) * (made / count))
        fine = min(self.width, self.spread * made / count / _FINEST_SPREAD)
        fine = max(fine, float(logs[-1] - logs[0]) / _MOST_POINTS)
        # grids of different laws stay comparable: halves of one width
        width = self.width * 2.0 ** math.floor(math.log2(fine / self.width))
        places = logs / width
        whole = np.floor(places).astype(np.int64)
        up = np.expm1((places - whole) * width) / math.expm1(width)
        first, mass = int(whole[0]), np.zeros(int(whole[-1] - whole[0]) + 2)
        np.add.at(mass, whole - first, (1.0 - up) * self.mass)
        np.add.at(mass, whole - first + 1, up * self.mass)
        # R = 0 gives 1 - made / count, which lies below the second point: split between that and 0
        low = self.zero * min(1.0, (1.0 - made / count) * math.exp(-width * (first + 1)))
        mass[1] += low
        return Ratio(width, first, mass, self.zero - low, self.infinite / count, self.tail)

    def remove(self, epsilon: float, mu: float = 0.0) -> float:
        """An upper bound on H(P || Q) of the pair composed with a mu-GDP Gaussian."""
        logs = self.logs
        deltas = gaussian_deltas(epsilon - logs, mu)
        return self._rounded(float((self.mass * np.exp(logs)) @ deltas) + self.infinite)

    def add(self, epsilon: float, mu: float = 0.0) -> float:
        """An upper bound on H(Q || P) of the pair composed with a mu-GDP Gaussian."""
        return self._rounded(float(self.mass @ gaussian_deltas(epsilon + self.logs, mu)) + self.zero)

    def delta(self, epsilon: float, mu: float = 0.0) -> float:
        """The larger of the two directions."""
        return max(self.remove(epsilon, mu), self.add(epsilon, mu))

    def _rounded(self, delta: float) -> float:
        return min(1.0, delta * (1 + ROUNDING) + _TRIMS * self.tail)


def tail_of(delta: float) -> float:
    """The `tail` of ratios that are to show this delta."""
    return max(_LEAST_TAIL, min(TAIL, _SHARE * delta))


def gaussian_ratio(noise_multiplier: float, tail: float = TAIL) -> Ratio:
    """dN(1, s^2)/dN(0, s^2) under N(0, s^2): log-normal, rounded to a grid that resolves it."""
    loss_std = 1.0 / noise_multiplier
    width, reach = min(_WIDEST, loss_std / _FINEST_SPREAD), max(REACH, -float(ndtri(tail)))
    mean = -0.5 * loss_std**2
    first = math.floor((mean - reach * loss_std) / width)
    last = math.ceil((-mean + reach * loss_std) / width)
    edges: Array = width * np.arange(first, last + 1, dtype=np.float64)
    q = normal_cells((edges - mean) / loss_std)  # Q-mass of each cell
    p = normal_cells((edges + mean) / loss_std)  # its mean: E_Q[R; cell] = P(cell)
    # shares of a cell at its upper edge, so that q and p are both kept
    up = (p * np.exp(-edges[:-1]) - q) / math.expm1(width)
    up = np.clip(up, 0.0, q)
    mass = np.append(q - up, 0.0) + np.append(0.0, up)
    # what lies below the grid is split between 0 and its lowest point, what lies above between its
    # highest and infinity
    low, high = (edges[0] - mean) / loss_std, (edges[-1] - mean) / loss_std
    lowest = float(ndtr(low - loss_std)) * math.exp(-edges[0])
    mass[0] += lowest
    mass[-1] += float(ndtr(-high))
    infinite = float(ndtr(loss_std - high)) - float(ndtr(-high)) * math.exp(edges[-1])
    return Ratio(width, first, mass, max(0.0, float(ndtr(low)) - lowest), max(0.0, infinite), tail)


def _on_one_grid(a: Ratio, b: Ratio) -> tuple[Ratio, Ratio]:
    """Both on the finer of two grids, of which one is a power of two as wide; or as fine as can be held."""
    if math.frexp(a.width)[0] != math.frexp(b.width)[0]:
        raise ValueError(f"grids of widths {a.width} and {b.width}: no power of two lies between them.")
    while a.width > b.width:
        a, b = (a.refined(), b) if 2 * len(a.mass) <= _FINEST else (a, b.coarsened())
    while b.width > a.width:
        a, b = (a, b.refined()) if 2 * len(b.mass) <= _FINEST else (a.coarsened(), b)
    return a, b


def sum_of(ratio: Ratio, count: int) -> Ratio:
    """The sum of `count` independent copies."""
    return _doubled(ratio, count, Ratio.plus, Ratio.fine_enough)


def product_of(ratio: Ratio, count: int) -> Ratio:
    """The composition of `count` independent copies."""
    return _doubled(ratio, count, Ratio.times, lambda power: power)


def _doubled(
    ratio: Ratio, count: int, combine: Callable[[Ratio, Ratio], Ratio], prepare: Callable[[Ratio], Ratio]
) -> Ratio:
    """`count` >= 1 copies combined by doubling; each power is prepared before it is combined with itself."""
    powers, power = [], ratio
    for place in range(count.bit_length()):
        if place:
            power = prepare(power)
            power = combine(power, power)
        if count >> place & 1:
            powers.append(power)
    return reduce(combine, powers)


def _sum_masses(a: Ratio, b: Ratio) -> tuple[int, Array, float]:
    """The sum of two independent ratios on one grid: its first index, its masses, and the mass at 0.

    Each pair of atoms is rounded to its two neighbours. Only pairs that exist are looked at: the work does
    not depend on how far apart the two laws lie.
    """
    width, lasts = a.width, [ratio.first + len(ratio.mass) - 1 for ratio in (a, b)]
    near = math.ceil(-math.log(math.expm1(width)) / width) + 1
    apart = max(b.first - lasts[0], a.first - lasts[1], 0)  # the least distance of two atoms
    farthest = max(lasts[1] - a.first, lasts[0] - b.first)
    distances: Array = np.arange(apart, max(apart, min(farthest + 1, near)), dtype=np.float64)
    places, ups = _above(distances, width)
    lowest = max(a.first, b.first) + (int(places[-1]) if farthest < near else 0)
    highest = max(lasts) + (int(places[0]) if len(places) else 0) + 1
    out = np.zeros(highest - lowest + 1)
    # for each place above the larger atom at once: `places` fall by at most one from distance to distance
    targets = np.arange(places[-1], places[0] + 2) if len(places) else places
    starts = np.searchsorted(-places, -targets)
    stops = np.searchsorted(-places, 1 - targets, side="right")
    for turn, (larger, smaller) in enumerate(((a, b),) if a is b else ((a, b), (b, a))):
        often = np.full(len(places), 2.0 if a is b else 1.0)  # a pair of equal atoms is met once
        if apart == 0:
            often[:1] = 0.0 if turn else 1.0
        for target, start, stop in zip(targets.tolist(), starts.tolist(), stops.tolist(), strict=True):
            at, up = places[start:stop] == target, ups[start:stop]
            sums = np.convolve(smaller.mass, often[start:stop] * np.where(at, 1.0 - up, up))
            first = smaller.first + apart + start  # of `sums`
            low = max(larger.first, first)
            high = min(larger.first + len(larger.mass), first + len(sums))
            if low < high:
                out[low + target - lowest : high + target - lowest] += (
                    larger.mass[low - larger.first : high - larger.first] * sums[low - first : high - first]
                )
    for larger, smaller in ((a, b), (b, a)):  # `near` points above: the smaller adds less than one point
        reach = np.arange(len(larger.mass)) + (larger.first - smaller.first - near)
        start, end = int(np.searchsorted(reach, 0)), len(smaller.mass) - 1
        if start == len(reach):
            continue
        reach = reach[start:]
        inside = np.minimum(reach, end)
        count = np.cumsum(smaller.mass)[inside]
        # sum over j <= i of mass[j] exp(-width (i - j))
        decayed = toeplitz.divided(smaller.mass, np.array([1.0, -math.exp(-width)]))
        total = decayed[inside] * np.exp(-width * (reach - inside))
        share = total * math.exp(-near * width) / math.expm1(width)  # its mean decides
        place = larger.first + start - lowest
        out[place : place + len(reach)] += larger.mass[start:] * (count - share)
        out[place + 1 : place + 1 + len(reach)] += larger.mass[start:] * share
    zero = a.zero * b.zero
    for ratio, other in ((a, b), (b, a)):  # where one is 0 the sum is the other
        zero += _put(out, lowest, ratio, other.zero)
    return lowest, out, zero


def _above(lags: Array, width: float) -> tuple[Array, Array]:
    """How many points sums of two atoms so far apart lie above the larger, and their shares above that."""
    values = 1.0 + np.exp(-width * lags)
    places = np.floor(np.log(values) / width)
    ups = (values * np.exp(-places * width) - 1.0) / math.expm1(width)
    return places.astype(np.int64), np.clip(ups, 0.0, 1.0)


def _put(out: Array, lowest: int, ratio: Ratio, share: float) -> float:
    """Add a share of a law to masses from index `lowest` on; what is lower is split with 0: returned."""
    below = max(0, min(lowest - ratio.first, len(ratio.mass)))
    low = share * ratio.mass[:below]
    up = low * np.exp(-ratio.width * (lowest - ratio.first - np.arange(below)))
    out[0] += float(up.sum())
    first = ratio.first + below - lowest
    out[first : first + len(ratio.mass) - below] += share * ratio.mass[below:]
    return float(low.sum()) - float(up.sum())


def normal_cells(z: Array) -> Array:
    """Standard normal mass of each cell along the last axis, from the side on which it is small."""
    low, high = z[..., :-1], z[..., 1:]
    sign = np.where(low > 0, -1.0, 1.0)
    return np.asarray(sign * (ndtr(sign * high) - ndtr(sign * low)))


def gaussian_deltas(epsilon: Array, mu: float) -> Array:
    """H(N(mu, 1) || N(0, 1)) at each real epsilon."""
    if mu == 0.0:
        return np.asarray(-np.expm1(np.minimum(epsilon, 0.0)))
    # Phi(a) - e^epsilon Phi(b) at b = a - mu, where phi(a) = e^epsilon phi(b): one density, and Mills ratios
    a = mu / 2 - epsilon / mu
    near = np.minimum(a, _FAR)
    ratios = erfcx(near * -math.sqrt(0.5)) - erfcx((near - mu) * -math.sqrt(0.5))
    found = 0.5 * np.exp(-0.5 * near * near) * np.maximum(ratios, 0.0)
    far = a > _FAR  # where Phi(a) is 1
    found[far] = -np.expm1(np.minimum(log_ndtr(a[far] - mu) + epsilon[far], 0.0))
    return np.asarray(found)
