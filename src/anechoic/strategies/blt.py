"""Buffered linear Toeplitz strategies: c_0 = 1, c_t = sum_i scale_i decay_i^(t-1) (monograph, 2.5)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from anechoic._serialize import serializable
from anechoic._validate import Array, finite_array, positive_int, steps_within
from anechoic.algebra import exponentials as blt_sums
from anechoic.errors import UnsupportedError
from anechoic.noise.recurrence import Buffered, Recurrence
from anechoic.strategies.base import SequenceStrategy, StoredArray, Structure, store_fields


@serializable
@dataclass(frozen=True, eq=False, repr=False)
class BLT(SequenceStrategy):
    """A Toeplitz matrix with exponentially fading coefficients; noise costs `buffers` rows of memory.

    Args:
        n: steps, >= 1; 10**9 costs what 10**3 costs.
        scale: shape (d,), finite: $c_0 = 1$, $c_t = sum_i scale_i decay_i^(t-1)$ (monograph: alpha).
        decay: shape (d,), pairwise distinct, in [0, 1) (monograph: lambda).

    Raises:
        ValueError: for an argument out of range, or equal decays.
    """

    scale: ArrayLike
    decay: ArrayLike

    def __post_init__(self) -> None:
        scale = finite_array("scale", self.scale)
        decay = finite_array("decay", self.decay, length=len(scale))
        if decay.min() < 0 or decay.max() >= 1:
            worst = decay.max() if decay.max() >= 1 else decay.min()
            raise ValueError(
                f"decay={worst} must lie in [0, 1): a buffer that does not fade is a prefix sum."
            )
        if len(np.unique(decay)) < len(decay):
            raise ValueError(f"decay={decay.tolist()} has equal entries: merge them by adding their scales.")
        store_fields(self, n=positive_int("n", self.n), scale=scale, decay=decay)

    @classmethod
    def from_poles(cls, n: int, decay: ArrayLike, inverse_decay: ArrayLike) -> BLT:
        """The BLT with these decays whose inverse has those decays (Lemma 4.13).

        Where they interlace, decay_1 > inverse_1 > decay_2 > … > inverse_d, all scales are positive
        (Lemma 4.14, which also asks for inverse_d > 0; here it may be negative).

        Args:
            n: steps.
            decay: of C, shape (d,), in [0, 1), pairwise distinct.
            inverse_decay: of C^-1, shape (d,), finite, pairwise distinct and distinct from every decay.

        Raises:
            ValueError: if a condition above fails.

        Example:
            >>> BLT.from_poles(8, [0.9, 0.5], [0.7, 0.2]).scale.round(4).tolist()
            [0.35, 0.15]
        """
        lam = finite_array("decay", decay)
        hat = finite_array("inverse_decay", inverse_decay, length=len(lam))
        if len(np.unique(np.concatenate([lam, hat]))) < 2 * len(lam):
            raise ValueError(
                f"decay={lam.tolist()} and inverse_decay={hat.tolist()} must be pairwise distinct: a decay"
                " that both have cancels, so leave it out of both."
            )
        return cls(n, blt_sums.interlaced_scales(lam, hat), lam)

    @cached_property
    def inverse_decay(self) -> Array:
        """Decays of C^-1, falling, one for each scale that is not 0 (Lemma 2.16; arXiv 2504.21413).

        Raises:
            UnsupportedError: if they are complex, which takes a negative scale.
        """
        kept = self._alpha != 0
        alpha, lam = self._alpha[kept], self._lambda[kept]
        if (alpha >= 0).all():
            return 1.0 - blt_sums.inverse_poles(alpha, lam)[1]
        values = np.linalg.eigvals(np.diag(lam) - alpha)  # every row of 1 alpha^T is alpha
        if np.iscomplexobj(values):
            raise UnsupportedError(
                f"C^-1 has the complex decays {values.tolist()}, so it is no BLT: use"
                " ConstantRecurrent.from_blt(strategy).inverse()."
            )
        return np.asarray(np.sort(values)[::-1])

    def inverse(self) -> BLT:
        """The BLT whose matrix is C^-1, in O(d^3) (Lemma 2.16).

        Decays nearer to 1 than about 1e-9 lose digits of their distance to it, as any float does.

        Raises:
            UnsupportedError: if the decays of C^-1 are complex, coincide, or do not all lie in [0, 1).
        """
        hat = self.inverse_decay
        if not len(hat):
            return BLT(self.n, np.zeros(1), np.zeros(1))
        if hat.min() < 0 or hat.max() >= 1 or len(np.unique(hat)) < len(hat):
            raise UnsupportedError(
                f"C^-1 has the decays {hat.tolist()}: a BLT has distinct ones in [0, 1). For those in (-1, 1)"
                " use ConstantRecurrent.from_blt(strategy).inverse()."
            )
        kept = self._alpha != 0
        alpha, lam = self._alpha[kept], self._lambda[kept]
        if (alpha >= 0).all():
            return BLT(self.n, -blt_sums.inverse_poles(alpha, lam)[0], hat)
        return BLT(self.n, -1.0 / (alpha / np.square(hat[:, None] - lam)).sum(axis=1), hat)

    _alpha = StoredArray("scale")
    _lambda = StoredArray("decay")

    @cached_property
    def structure(self) -> Structure:
        # sufficient conditions only: scales of mixed sign may still give a falling sequence
        nonnegative = bool((self._alpha >= 0).all())
        falling = nonnegative and float(self._alpha.sum()) <= 1.0
        return Structure(self.n, self.n, toeplitz=True, nonnegative=nonnegative, nonincreasing=falling)

    @property
    def coefficients(self) -> Array:
        t = np.arange(self.n - 1, dtype=np.float64)
        tail = np.zeros(self.n - 1)
        for scale, decay in zip(self._alpha, self._lambda, strict=True):
            tail += scale * decay**t
        return np.concatenate([[1.0], tail])

    def largest_column_norm(self) -> float:
        return float(np.sqrt(blt_sums.column_norm_squared(self._alpha, self._lambda, self.n)))

    def comb_norm_squared(self, separation: int, count: int) -> float:
        return blt_sums.comb_norm_squared(self._alpha, self._lambda, self.n, separation, count)

    def recurrence(self) -> Recurrence:
        return Buffered(self.n, scale=self._alpha, decay=self._lambda)

    def truncate(self, steps: int) -> BLT:
        return BLT(steps_within(self.n, steps), self._alpha, self._lambda)

    def describe(self) -> str:
        return f"BLT(n={self.n}, buffers={len(self._alpha)})"
