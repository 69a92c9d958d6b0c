"""Privacy profiles known from above at some epsilons, as pairs that can be composed.

For a dominating pair (P, Q) the function K -> H_K(P || Q) = E_Q (R - K)_+ of K = e^epsilon in [0, inf) is
convex and falling, is 1 at K = 0, and H_{1/K}(P || Q) = 1 - 1/K + H_K(Q || P) / K. Upper bounds at some K
therefore bound it everywhere by their lower convex envelope, which is the profile of a pair that dominates
(P, Q), with the rest of the mass at infinity. dp-accounting composes such pairs (Doroshenko et al. 2022,
"Connect the Dots"), each direction apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from anechoic._validate import Array
from anechoic.accounting.gaussian import gaussian_delta

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

#: epsilon >= 0 -> upper bounds on (remove, add).
Bounds = Callable[[float], tuple[float, float]]

_KNOTS = 400
_LARGEST = 600.0  # epsilon: e^epsilon is held as a float64


@dataclass(frozen=True)
class Profile:
    """Upper bounds on both directions at epsilons 0 <= epsilon_1 < ….

    Attributes:
        epsilons: rising, >= 0, shape (knots,).
        remove, add: bounds at those, shape (knots,); `remove` is H(P || Q), P with the unit.
    """

    epsilons: Array
    remove: Array
    add: Array

    def pld(self, width: float) -> PrivacyLossDistribution:
        """A pair that dominates, on a grid of privacy losses of this width."""
        from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

        return PrivacyLossDistribution(
            _dots(self.epsilons, self.remove, self.add, width),
            _dots(self.epsilons, self.add, self.remove, width),
        )


def profile_of_bounds(
    curves: Iterable[Bounds], near: float, tail: float, also: Iterable[float] = ()
) -> Profile:
    """Return the profile of a pair that each of the `curves` bounds from above, at least one.

    Args:
        near: the epsilon about which it should be sharp, >= 0.
        tail: a delta that may be moved to infinity.
        also: epsilons at which a curve jumps.
    """
    curves = tuple(curves)

    def at(epsilon: float) -> tuple[float, float]:
        both = [curve(epsilon) for curve in curves]
        return min(pair[0] for pair in both), min(pair[1] for pair in both)

    near = min(1.5 * near + 1e-3, _LARGEST / 4)
    largest = 1.5 * near
    while max(at(largest)) > tail and largest < _LARGEST / 1.25:
        largest *= 1.25
    inner, outer = np.linspace(0.0, near, _KNOTS), np.linspace(near, largest, _KNOTS // 2)
    jumps = [epsilon for epsilon in also if epsilon <= largest]
    epsilons = np.unique(np.concatenate([inner, outer, jumps]))
    bounds = np.array([at(epsilon) for epsilon in epsilons.tolist()])
    falling = np.minimum.accumulate(np.minimum(bounds, 1.0), axis=0)
    return Profile(epsilons, falling[:, 0], falling[:, 1])


def profile_of_points(points: Iterable[tuple[float, float]]) -> Profile:
    """The profile of what is (epsilon, delta)-DP, in both directions, for each of the points.

    Points of infinite epsilon say nothing.
    """
    known = sorted((epsilon, delta) for epsilon, delta in points if epsilon <= _LARGEST)
    kept: dict[float, float] = {0.0: 1.0}
    for epsilon, delta in known:
        kept[epsilon] = min(delta, kept.get(epsilon, 1.0))
    epsilons = np.array(sorted(kept))
    deltas = np.minimum.accumulate(np.array([kept[epsilon] for epsilon in epsilons.tolist()]))
    return Profile(epsilons, deltas, deltas.copy())


def bound_of_points(points: Iterable[tuple[float, float]]) -> tuple[Bounds, list[float]]:
    """The law of what is (epsilon, delta)-DP, in both directions, for each point, and where it jumps."""
    profile = profile_of_points(points)

    def law(epsilon: float) -> tuple[float, float]:
        place = int(profile.epsilons.searchsorted(epsilon, side="right")) - 1
        return float(profile.remove[place]), float(profile.add[place])

    return law, profile.epsilons.tolist()


def gaussian_bound(mu: float) -> Bounds:
    """Both directions of a mu-GDP Gaussian."""

    def law(epsilon: float) -> tuple[float, float]:
        delta = gaussian_delta(epsilon, mu)
        return delta, delta

    return law


def curve(epsilons: Array, ahead: Array, behind: Array) -> tuple[Array, Array]:
    """The corners (K, bound on H_K) of one direction: `ahead` bounds it for K >= 1, `behind` the other one.

    Between them it is bounded by chords, and beyond the last one by the last bound.
    """
    small = np.exp(-epsilons[::-1])
    strikes = np.concatenate([[0.0], small, np.exp(epsilons)])
    bounds = np.concatenate([[1.0], 1.0 - small + small * behind[::-1], ahead])
    order = np.lexsort((bounds, strikes))
    return envelope(strikes[order], bounds[order])


def _dots(epsilons: Array, ahead: Array, behind: Array, width: float):  # type: ignore[no-untyped-def]
    """The probability masses of one direction, as `curve` bounds it."""
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap

    strikes, bounds = curve(epsilons, ahead, behind)
    lowest, highest = -math.floor(float(epsilons[-1]) / width), math.ceil(float(epsilons[-1]) / width)
    grid = np.exp(width * np.arange(lowest, highest + 1))
    deltas = np.interp(grid, strikes, bounds)  # beyond the last strike: the last bound
    deltas = np.clip(np.minimum.accumulate(deltas * (1 + 1e-13)), 0.0, 1.0)
    return create_pmf_pessimistic_connect_dots_fixed_gap(width, lowest, highest, deltas)


def envelope(x: Array, y: Array) -> tuple[Array, Array]:
    """The corners of the lower convex envelope of points sorted by x."""
    corners: list[tuple[float, float]] = []
    for point in zip(x.tolist(), y.tolist(), strict=True):
        if corners and point[0] == corners[-1][0]:
            continue  # the lower of two came first
        while len(corners) >= 2:
            (x0, y0), (x1, y1) = corners[-2:]
            if (y1 - y0) * (point[0] - x0) < (point[1] - y0) * (x1 - x0):
                break
            corners.pop()
        corners.append(point)
    return np.array([corner[0] for corner in corners]), np.array([corner[1] for corner in corners])
