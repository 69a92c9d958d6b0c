"""Composition of privacy loss distributions on a grid, with a tail that keeps its digits.

The T-th power of a discrete Fourier transform is off by some T 2^-52 of the *total* mass. Next to a delta
of 1e-12 that is not small, and it may be on either side. Here the masses are tilted first,
q_i = p_i e^(t l_i) / M with M = sum p_i e^(t l_i), so that the composed loss is likely to be where delta is
decided; the power is taken of q, and p = M^T e^(-t l) q afterwards. An error e of a mass of q is then one of
e M^T e^(-t l) of p, which for the t of Chernoff's bound is about e times delta. It is charged: the errors of
all N points have a 2-norm of at most _ROUNDING 2^-52 T log2(N) |q|_2 (Higham 2002, Section 24.1, and T
factors), and delta sums them with weights of at most M^T e^(-t l).

The transform folds what lies outside the N points into them, where it only adds mass. What it lacks where it
was counts towards delta(epsilon) only for losses l > epsilon, and there, at either end, its P-mass is at most
M^T e^(-t epsilon) times its q-mass, which Chernoff's inequality bounds by _OUTSIDE: twice that is charged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import scipy
from scipy.fft import irfft, next_fast_len, rfft

from anechoic._validate import Array
from anechoic.accounting.search import smallest

if TYPE_CHECKING:
    from dp_accounting.pld.pld_pmf import PLDPmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

_UNIT = 2.0**-52
_ROUNDING = 8.0  # of one transform and its inverse, in units and for each doubling of the points
_EXPONENTS = 64.0  # of a tilted mass, in units: what exp and log of numbers up to 100 lose
_OUTSIDE = 1e-16  # q-mass that may be left out at either end: less than rounding is charged for
_TILTS = np.geomspace(1e-6, 1e6, 57)
_STEEPEST = 15.0  # tilt times the largest loss: what it lifts rounding by
_REACHES = np.geomspace(0.5, 200.0, 40)
_MOST_POINTS = 2**24  # of the composed loss: beyond them nothing is shown
_MOST_FLAT = 2**22  # the same for a second tilt, where the first shows something
_NEGLIGIBLE = 1e-3  # of delta, where it is charged for rounding
_SKETCHED = 2**14  # points of one loss from which the tilt and the window are chosen on fewer


def composed_epsilon(parts: Sequence[tuple[PrivacyLossDistribution, int]], delta: float) -> float:
    """Return an epsilon >= 0 of pairs that are composed, each so many times: the larger of both directions.

    Args:
        parts: (pair, how often), all on grids of one width.
        delta: in (0, 1).

    Returns:
        An upper bound; inf where none is shown.
    """
    found = direction_epsilon([(_losses(pair._pmf_remove), count) for pair, count in parts], delta)
    if all(pair._symmetric for pair, _ in parts):
        return found
    return max(found, direction_epsilon([(_losses(pair._pmf_add), count) for pair, count in parts], delta))


@dataclass(frozen=True, eq=False)
class PrivacyLosses:
    """Masses of a privacy loss at width * places, and at infinity; those of mass 0 are left out."""

    width: float
    places: Array
    logs: Array
    infinite: float

    @classmethod
    def of(cls, width: float, first: int, masses: Array, infinite: float) -> PrivacyLosses:
        """From masses at every place from `first` on, and at infinity."""
        kept = np.flatnonzero(masses > 0.0)
        return cls(width, (first + kept).astype(np.float64), np.log(masses[kept]), infinite)

    @cached_property
    def losses(self) -> Array:
        return self.width * self.places

    def log_moment(self, tilt: float) -> float:
        """log of the mean of e^(tilt loss)."""
        x = self.logs + tilt * self.losses
        top = float(x.max())
        x -= top
        return top + math.log(float(np.exp(x, out=x).sum()))

    @cached_property
    def sketch(self) -> PrivacyLosses:
        """About the same on fewer points, on which no bound rests."""
        if len(self.places) <= _SKETCHED:
            return self
        starts = np.arange(0, len(self.places), -(-len(self.places) // 4096))
        masses = np.exp(self.logs)
        sums = np.add.reduceat(masses, starts)
        kept = sums > 0.0
        means = np.add.reduceat(masses * self.places, starts)[kept] / sums[kept]
        return PrivacyLosses(self.width, means, np.log(sums[kept]), self.infinite)


def _losses(pmf: PLDPmf) -> PrivacyLosses:
    dense = pmf.to_dense_pmf()
    return PrivacyLosses.of(
        dense._discretization, dense._lower_loss, dense._probs, float(dense._infinity_mass)
    )


def direction_epsilon(parts: list[tuple[PrivacyLosses, int]], delta: float) -> float:
    """`composed_epsilon` of one direction."""
    escaped = -math.expm1(sum(n * math.log1p(-min(one.infinite, 1 - 1e-15)) for one, n in parts))
    left = delta - escaped * (1 + 1e-12)
    if left <= 0.0 or any(not len(one.places) for one, _ in parts):
        return math.inf

    def chernoff(tilt: float) -> float:
        return (sum(n * one.sketch.log_moment(tilt) for one, n in parts) - math.log(left)) / tilt

    best = int(np.argmin([chernoff(tilt) for tilt in _TILTS]))
    around = np.log(_TILTS[[max(best - 1, 0), min(best + 1, len(_TILTS) - 1)]])
    nearest = scipy.optimize.minimize_scalar(lambda x: chernoff(math.exp(x)), bounds=around, method="bounded")
    steep = math.exp(nearest.x)
    found, charged = _at(parts, steep, left, _MOST_POINTS)
    top = sum(n * float(one.losses[-1]) for one, n in parts)
    most = max(0.0, top) * (1 + 1e-12)  # no loss lies above
    if steep * top <= _STEEPEST or charged <= _NEGLIGIBLE * left:
        return min(found, most)
    # epsilon may lie close below the largest loss: there a tilt is too steep, and much is charged
    points = _MOST_FLAT if found < math.inf else _MOST_POINTS
    return min(found, most, _at(parts, _STEEPEST / top, left, points)[0])


def _at(parts: list[tuple[PrivacyLosses, int]], tilt: float, delta: float, most: int) -> tuple[float, float]:
    """Epsilon by this tilt, and what of delta is charged for rounding; inf beyond so many points."""
    found = _Composed.of(parts, tilt, most)
    if found is None:
        return math.inf, math.inf
    epsilon = found.epsilon(delta)
    return epsilon, found.charge(epsilon)


#: A loss, how often it is taken, the logarithm of its moment at the tilt, and its tilted masses.
_Tilted = tuple[PrivacyLosses, int, float, Array]


class _Composed:
    """The composed loss, tilted, on the points that matter."""

    @classmethod
    def of(cls, parts: list[tuple[PrivacyLosses, int]], tilt: float, most: int) -> _Composed | None:
        """None where it would take that many points."""
        tilted = []
        for one, count in parts:
            moment = one.log_moment(tilt)
            tilted.append((one, count, moment, np.exp(one.logs + tilt * one.losses - moment)))
        low, high = _window(tilted, tilt)
        return None if high - low >= most else cls(tilted, tilt, low, high)

    def __init__(self, tilted: list[_Tilted], tilt: float, low: int, high: int) -> None:
        self._width, self._tilt = tilted[0][0].width, tilt
        self._log_scale = sum(count * moment for _, count, moment, _ in tilted)
        self._count = sum(count for _, count, _, _ in tilted)
        points = next_fast_len(high - low + 1, real=True)
        transform, largest, start = 1.0 + 0.0j, 0.0, 0
        for one, count, _, masses in tilted:
            first = int(one.places[0])
            folded = np.bincount((one.places.astype(np.int64) - first) % points, masses, points)
            transform = transform * rfft(folded) ** count
            largest, start = max(largest, float(np.linalg.norm(folded))), start + count * first
        # index 0 stands for the sum of the first losses, modulo the number of points
        power = np.roll(irfft(transform, points), -((low - start) % points))
        self._masses = np.maximum(power, 0.0)
        self._losses: Array = self._width * (low + np.arange(points, dtype=np.float64))
        self._error = _ROUNDING * _UNIT * self._count * math.log2(max(points, 2)) * largest

    def charge(self, epsilon: float) -> float:
        """What rounding, and what is outside of the points, may hide of delta(epsilon)."""
        above = len(self._losses) - int(np.searchsorted(self._losses, epsilon, side="right"))
        weights = 1.0 / -math.expm1(-2.0 * self._tilt * self._width)  # sum of e^(-2 tilt width i)
        error = self._error * math.sqrt(min(weights, above)) + 2.0 * _OUTSIDE
        return error * _exp(self._log_scale - self._tilt * epsilon)

    def epsilon(self, delta: float) -> float:
        """The least epsilon >= 0 on these points at which the bound is at most `delta`."""
        start = int(np.searchsorted(self._losses, 0.0, side="right"))
        losses, masses = self._losses[start:], self._masses[start:]
        with np.errstate(divide="ignore"):
            values = np.exp(np.minimum(np.log(masses) + self._log_scale - self._tilt * losses, 0.0))
        relative = 1.0 + _EXPONENTS * _UNIT * (self._count + 1)

        def bound(epsilon: float) -> float:
            above = int(np.searchsorted(losses, epsilon, side="right"))
            mass = float(values[above:] @ -np.expm1(epsilon - losses[above:]))
            return (mass + self.charge(epsilon)) * relative

        # sums over all larger losses tell nearly the same, without a pass over them
        sums = np.append(np.cumsum(values[::-1])[::-1], 0.0)
        shrunk = np.append(np.cumsum((values * np.exp(-losses))[::-1])[::-1], 0.0)

        def nearly(epsilon: float) -> float:
            above = int(np.searchsorted(losses, epsilon, side="right"))
            mass = float(sums[above]) - _exp(epsilon) * float(shrunk[above])
            return (mass + self.charge(epsilon)) * relative

        if bound(0.0) <= delta:
            return 0.0
        low, high = 0.0, max(float(self._losses[-1]), 0.0)
        if bound(high) > delta:
            return math.inf
        near = smallest(lambda epsilon: nearly(epsilon) <= delta, low, high, 1e-10, 1e-3)
        for width in 4e-11 * max(near, 1e-3) * np.array([1.0, 30.0, 1e3, 1e5]):
            below, above = max(near - width, low), min(near + width, high)
            if bound(below) > delta >= bound(above):
                low, high = below, above
                break
        return smallest(lambda epsilon: bound(epsilon) <= delta, low, high, 1e-10, 1e-3)


def _window(tilted: list[_Tilted], tilt: float) -> tuple[int, int]:
    """(lowest, highest) index that is kept: beyond each, the sum has at most the q-mass _OUTSIDE."""
    variance, width = 0.0, tilted[0][0].width
    for one, count, _, masses in tilted:
        variance += count * float(masses @ np.square(one.losses - masses @ one.losses))
    spread, ends = max(math.sqrt(variance), width), []

    def reached(step: float, *, exact: bool) -> float:
        moments = (
            n * ((one if exact else one.sketch).log_moment(tilt + step) - moment)
            for one, n, moment, _ in tilted
        )
        return (sum(moments) - math.log(_OUTSIDE)) / abs(step)

    largest = max(max(abs(float(one.losses[0])), abs(float(one.losses[-1]))) for one, *_ in tilted)
    for sign in (-1.0, 1.0):
        steps = sign * _REACHES / spread
        step = min(steps, key=lambda step: reached(step, exact=False))
        if reached(step, exact=False) >= _MOST_POINTS * width:  # rare losses far beyond the spread
            step = min(sign * _REACHES / largest, key=lambda step: reached(step, exact=False))
        ends.append(sign * reached(step, exact=True))  # Chernoff's bound, for whatever step
    low = max(ends[0], sum(n * float(one.losses[0]) for one, n, _, _ in tilted))
    high = min(ends[1], sum(n * float(one.losses[-1]) for one, n, _, _ in tilted))
    return math.floor(low / width), math.ceil(high / width)


def _exp(x: float) -> float:
    return math.exp(min(x, 700.0))
