"""Means over the unit circle of real, even functions that may change fast near the point 1.

With a pole or a zero of distance g from the circle a function changes within an angle of g. Panels that
double from `finest` to pi carry Gauss-Legendre points; a panel is halved until its halves agree with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.polynomial.legendre import leggauss
from numpy.typing import NDArray

from anechoic._validate import Array

POINTS = 12
TOLERANCE = 1e-13  # of the mean of the modulus, for each panel
DEEPEST = 60  # halvings
MOST = 1 << 13  # panels that wait to be halved: more of them are rounding that no halving resolves


@dataclass(frozen=True, eq=False)
class Circle:
    """Angles in (0, pi) and weights of sum 1, so that `mean` is (1 / 2 pi) times the integral over a turn.

    Attributes:
        angles, weights: shape (points,).
    """

    angles: Array
    weights: Array

    @property
    def half_sines(self) -> Array:
        """sin^2(angle / 2), in which |1 - a e^(i angle)|^2 = (1 - a)^2 + 4 a sin^2 is exact for a near 1."""
        return np.square(np.sin(self.angles / 2))

    def mean(self, values: Array) -> Array:
        """Mean over the circle of values at `angles`, along the last axis."""
        return np.asarray(values @ self.weights)


def away_from_one(angles: Array) -> NDArray[np.complex128]:
    """1 - e^(i angle), to full relative accuracy near the angle 0."""
    return np.asarray(2.0 * np.square(np.sin(angles / 2)) - 1j * np.sin(angles))


def gap_power(gap: Array | float, half_sines: Array) -> Array:
    """|1 - a e^(i w)|^2 for a = 1 - gap, at sin^2(w / 2), without cancellation."""
    return np.asarray(gap * gap + 4.0 * (1.0 - gap) * half_sines)


def circle(functions: Callable[[Array], Array], finest: float, *, widest: float = math.pi) -> Circle:
    """Points on which the means of all rows of functions(angles) are found to about 1e-12.

    Args:
        functions: takes angles of shape (k,) and gives values of shape (rows, k).
        finest: > 0, angle below which the functions are smooth; a guess, as panels are halved as needed.
        widest: largest width of a panel at the start, for functions that oscillate.

    Raises:
        ArithmeticError: if a function is not integrable to this accuracy in float64.
    """
    x, w = leggauss(POINTS)
    x, w = (x + 1.0) / 2.0, w / 2.0
    doublings = max(1, math.ceil(math.log2(math.pi / min(finest, math.pi / 2))))
    edges = math.pi * np.append(0.0, 2.0 ** -np.arange(doublings, -1.0, -1.0))
    pieces = np.maximum(1, np.ceil(np.diff(edges) / widest)).astype(int)
    starts = np.concatenate(
        [np.linspace(a, b, k, endpoint=False) for a, b, k in zip(edges, edges[1:], pieces, strict=False)]
    )
    widths = np.repeat(np.diff(edges) / pieces, pieces)

    def evaluate(starts: Array, widths: Array) -> tuple[Array, Array]:
        angles = starts[:, None] + widths[:, None] * x
        values = functions(angles.ravel())
        return angles, np.reshape(values, (len(values), *angles.shape)) @ w * widths

    angles, sums = evaluate(starts, widths)
    kept_angles, kept_weights = list[Array](), list[Array]()
    total = np.abs(sums).sum(axis=1)
    for _ in range(DEEPEST):
        if len(starts) > MOST or not np.isfinite(total).all():
            break
        halves = np.stack([starts, starts + widths / 2], axis=1).ravel()
        half_widths = np.repeat(widths / 2, 2)
        half_angles, half_sums = evaluate(halves, half_widths)
        both = half_sums.reshape(len(sums), -1, 2).sum(axis=2)
        total = total + (np.abs(both) - np.abs(sums)).sum(axis=1)
        done = (np.abs(both - sums) <= TOLERANCE * np.abs(total)[:, None]).all(axis=0)
        kept_angles.append(angles[done].ravel())
        kept_weights.append(np.outer(widths[done], w).ravel())
        if done.all():
            order = np.argsort(all_angles := np.concatenate(kept_angles))
            return Circle(all_angles[order], np.concatenate(kept_weights)[order] / math.pi)
        again = np.repeat(~done, 2)
        starts, widths, angles = halves[again], half_widths[again], half_angles[again]
        sums = half_sums[:, again]
    raise ArithmeticError(
        f"a mean over the unit circle does not settle near the angle {float(starts[0]):.6g}: a zero or a pole"
        " is too near to the circle, or numbers leave the range of float64. Damp it."
    )
