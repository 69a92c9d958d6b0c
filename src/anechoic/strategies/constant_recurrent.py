"""Constant-recurrent strategies: c_0, and c_t = u^T A^(t-1) v (monograph, Section 2.9, Theorem 2.28)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from anechoic._serialize import serializable
from anechoic._validate import Array, finite_array, positive_float, positive_int, steps_within
from anechoic.algebra.systems import PowerSums, power_sums, realisation, sequence
from anechoic.noise.recurrence import Recurrence, StateSpace
from anechoic.strategies.base import SequenceStrategy, StoredArray, Structure, store_fields
from anechoic.strategies.blt import BLT

# Up to this many steps, signs and monotony are read off the coefficients.
READABLE = 10**6


@serializable
@dataclass(frozen=True, eq=False, repr=False)
class ConstantRecurrent(SequenceStrategy):
    """A Toeplitz matrix with a rational generating function; noise costs `d` rows of memory.

    c_0 = first and c_t = readout^T transition^(t-1) input. Decays may be negative or come in complex pairs
    (real 2 x 2 blocks [[a, -b], [b, a]] of the transition), and may coincide. A BLT is the case of a
    diagonal transition, a banded Toeplitz matrix that of a nilpotent one.

    Structure: C counts as non-negative, or non-increasing, where the coefficients are so as computed in
    float64 (n <= 10**6), or where the state is a positive system: u, A, v >= 0 entrywise, and for falling
    coefficients (I - A) v >= 0 or u^T (I - A) >= 0 besides.

    Args:
        n: steps, >= 1.
        readout: u, shape (d,), finite.
        transition: A, shape (d, d), of spectral radius below 1.
        input: v, shape (d,), finite.
        first: c_0 > 0.

    Raises:
        ValueError: if a shape or a range is wrong, or the coefficients overflow.

    Example:
        >>> turning = [[0.0, -0.8], [0.8, 0.0]]  # decays 0.8i and -0.8i
        >>> ConstantRecurrent(5, [0.5, 0.0], turning, [1.0, 0.0]).coefficients.round(4).tolist()
        [1.0, 0.5, 0.0, -0.32, 0.0]

    References:
        Monograph, Definition 2.27, Theorem 2.28 (the powers here begin one step later, as for BLT).
    """

    readout: ArrayLike
    transition: ArrayLike
    input: ArrayLike
    first: float = 1.0

    def __post_init__(self) -> None:
        readout = finite_array("readout", self.readout)
        d = len(readout)
        transition = finite_array("transition", self.transition, ndim=2)
        if transition.shape != (d, d):
            raise ValueError(f"transition has shape {transition.shape}; readout has {d} entries: ({d}, {d}).")
        radius = float(np.abs(np.linalg.eigvals(transition)).max())
        if radius >= 1.0:
            raise ValueError(
                f"transition has spectral radius {radius}, which must be below 1: a state that does not fade"
                " is a prefix sum. Use Output, or scale the transition."
            )
        entry = finite_array("input", self.input, length=d)
        first = positive_float("first", self.first, remedy="It is the diagonal of C.")
        store_fields(self, n=positive_int("n", self.n), readout=readout, transition=transition)
        store_fields(self, input=entry, first=first)
        with np.errstate(over="ignore", invalid="ignore"):
            norm = self.largest_column_norm()
        if not np.isfinite(norm):
            raise ValueError(f"the coefficients of this strategy overflow: the column norm is {norm}.")

    _u = StoredArray("readout")
    _a = StoredArray("transition")
    _v = StoredArray("input")

    @classmethod
    def from_rational(cls, n: int, numerator: ArrayLike, denominator: ArrayLike) -> ConstantRecurrent:
        """C with the generating function p(x) / q(x) (Theorem 2.28 b, c_0 included).

        Args:
            n: steps.
            numerator: p_0, p_1, …, lowest power first.
            denominator: q_0, q_1, …, with p_0 / q_0 > 0 and all zeros of q outside the unit circle.

        Raises:
            ValueError: if q_0 = 0, or as the constructor.

        Example:
            >>> ConstantRecurrent.from_rational(4, [1.0, -0.5], [1.0, -0.9]).coefficients.round(4).tolist()
            [1.0, 0.4, 0.36, 0.324]
        """
        p, q = finite_array("numerator", numerator), finite_array("denominator", denominator)
        if q[0] == 0.0:
            raise ValueError("denominator[0]=0 must not be zero: p / q has no power series then.")
        system = realisation(p, q)
        return cls(n, system.readout, system.transition, system.entry, system.direct)

    @classmethod
    def from_blt(cls, blt: BLT) -> ConstantRecurrent:
        """The same matrix with readout alpha, transition diag(lambda) and input 1."""
        decay = np.asarray(blt.decay)
        return cls(blt.n, blt.scale, np.diag(decay), np.ones(len(decay)))

    def inverse(self) -> ConstantRecurrent:
        """The strategy whose matrix is C^-1: transition A - v u^T / c_0 (Lemma 2.16, without diagonalising).

        Raises:
            ValueError: if that transition has a spectral radius of 1 or more: C^-1 is then not stable.
        """
        readout, entry = -self._u / self.first, self._v / self.first
        return ConstantRecurrent(self.n, readout, self._inverse_transition, entry, 1.0 / self.first)

    @property
    def _inverse_transition(self) -> Array:
        return self._a - np.outer(self._v, self._u) / self.first

    @cached_property
    def structure(self) -> Structure:
        u, a, v = self._u, self._a, self._v
        positive = bool((u >= 0).all() and (a >= 0).all() and (v >= 0).all())
        shrinking = bool((a @ v <= v).all() or (u @ a <= u).all())
        falling = positive and shrinking and float(u @ v) <= self.first
        if self.n <= READABLE:
            c = self.coefficients
            positive = positive or bool((c >= 0).all())
            falling = falling or (positive and bool((np.diff(c) <= 0).all()))
        return Structure(self.n, self.n, toeplitz=True, nonnegative=positive, nonincreasing=falling)

    @property
    def coefficients(self) -> Array:
        return np.concatenate([[self.first], sequence(self._u, self._a, self._v, self.n - 1)])

    def largest_column_norm(self) -> float:
        return float(np.sqrt(self.first**2 + self._v @ self._observed(self.n - 1).once @ self._v))

    def comb_norm_squared(self, separation: int, count: int) -> float:
        """O(count d^2 + d^3 log n): between two teeth the column sum follows from the state at the first."""
        inner = self._observed(separation - 1)
        last = self._observed(self.n - (count - 1) * separation - 1)
        hop = np.eye(len(self._u)) + inner.power.T  # A^(separation - 1)
        state, total = np.zeros(len(self._u)), 0.0
        for tooth in range(count):
            head = self.first + float(self._u @ state)
            after = self._a @ state + self._v
            seen = (last if tooth == count - 1 else inner).once
            total += head**2 + float(after @ seen @ after)
            state = hop @ after
        return total

    def _observed(self, terms: int) -> PowerSums:
        """Sums over t < terms of (u^T A^t)^T (u^T A^t); `power` is that of the transposed transition."""
        return power_sums(self._a.T - np.eye(len(self._u)), self._u, terms)

    def recurrence(self) -> Recurrence:
        return StateSpace(self.n, readout=self._u, transition=self._a, input=self._v, first=float(self.first))

    def truncate(self, steps: int) -> ConstantRecurrent:
        return ConstantRecurrent(steps_within(self.n, steps), self._u, self._a, self._v, self.first)

    def describe(self) -> str:
        return f"ConstantRecurrent(n={self.n}, order={len(self._u)})"
