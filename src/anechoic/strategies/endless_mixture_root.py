"""Endless square root of a mixture of geometric sequences: the optimal noise of a learning problem."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from anechoic._serialize import serializable
from anechoic._validate import Array, finite_array, positive_int
from anechoic.algebra import toeplitz
from anechoic.algebra.circle import away_from_one, circle
from anechoic.strategies.base import StoredArray, store_fields
from anechoic.strategies.endless import Endless
from anechoic.strategies.toeplitz import Toeplitz

BLOCK = 1 << 20  # entries of one block of powers
ROUNDING = 1e-10  # relative excess that covers the quadrature (12 points an octave: below 1e-15) and rounding


@serializable
@dataclass(frozen=True, eq=False, repr=False)
class MixtureRoot(Endless):
    """C(x)^2 = sum_j weight_j / (1 - decay_j x), without horizon; one decay gives the damped square root.

    Where all decays are positive C is the root of a Stieltjes function: its coefficients are moments of a
    positive measure on (0, max decay], so that they are positive and fall. One participation has the norm of
    the first column. The zeros and branch points are real and of modulus above 1, so that noise and
    sensitivity stay bounded.

    Args:
        weight: shape (d,), > 0; scaled to sum 1, so that c_0 = 1.
        decay: shape (d,), in (-1, 1), pairwise distinct.

    Raises:
        ValueError: if an entry is out of range, or two decays are equal.
    """

    weight: ArrayLike
    decay: ArrayLike

    def __post_init__(self) -> None:
        decay = finite_array("decay", self.decay)
        weight = finite_array("weight", self.weight, length=len(decay))
        if np.abs(decay).max() >= 1 or len(np.unique(decay)) < len(decay):
            raise ValueError(
                f"decay={np.array2string(decay, threshold=6)} must be distinct numbers strictly between -1"
                " and 1: add the weights of equal ones; with a decay of 1, C is not square-summable."
            )
        if weight.min() <= 0:
            j = int(np.argmin(weight))
            raise ValueError(f"weight[{j}]={weight[j]} must be > 0: leave out parts without weight.")
        scaled = weight / weight.sum()
        scaled.setflags(write=False)
        store_fields(self, decay=decay, weight=scaled)

    _weight = StoredArray("weight")
    _decay = StoredArray("decay")

    def mixture(self, n: int) -> Array:
        """First n coefficients of C^2: the workload of which C is the square root, shape (n,)."""
        weight, decay = self._weight, self._decay
        out = np.empty(positive_int("n", n))
        step = max(1, BLOCK // len(decay))
        for start in range(0, n, step):
            t = np.arange(start, min(n, start + step))[:, None]
            out[start : start + step] = decay**t @ weight
        return out

    def at(self, n: int) -> Toeplitz:
        root = toeplitz.sqrt(self.mixture(n), n)
        if self._decay.min() < 0:
            return Toeplitz(n, root)
        # rounding must not hide that they fall and stay positive: theorems of sensitivity ask for it
        return Toeplitz(n, np.minimum.accumulate(np.maximum(root, 0.0)))

    @cached_property
    def limiting_norm(self) -> float:
        weight, decay = self._weight, self._decay
        gap = 1.0 - decay

        def modulus(angles: Array) -> Array:
            over = gap[:, None] + decay[:, None] * away_from_one(angles)  # 1 - decay x
            return np.abs(weight @ (1.0 / over))[None, :]

        points = circle(modulus, float(np.minimum(gap, 2.0 - gap).min()) / 4)
        return math.sqrt(float(points.mean(modulus(points.angles))[0])) * (1.0 + ROUNDING)

    def describe(self) -> str:
        return f"root of a mixture of {len(self._weight)} geometric sequences (without horizon)"
