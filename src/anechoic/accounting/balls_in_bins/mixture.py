"""A uniform mixture of Gaussians, given by the Gram matrix of its means: balls-in-bins sampling."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from anechoic._validate import Array
from anechoic.accounting.loss_distributions.importance_sampling import Tilt, TiltedPair

_UNIT = 2.0**-52


class _Draws(NamedTuple):
    noise: Array  # <m_i, z> for standard normal z, shape (count, b)
    start: int


class Mixture(TiltedPair):
    """P = (1/b) sum_i N(m_i, s^2 I) against Q = N(0, s^2 I): only <m_i, m_j> matters.

    Args:
        gram: <m_i, m_j>, shape (b, b), symmetric, positive semidefinite, entries >= 0.

    Raises:
        ValueError: if it is not such a matrix.
    """

    def __init__(self, gram: Array) -> None:
        gram = np.asarray(gram, dtype=np.float64)
        if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or not np.isfinite(gram).all():
            raise ValueError(f"gram has shape {gram.shape}; it must be a finite (b, b) array.")
        own = gram.diagonal()
        if not own.max() > 0 or own.min() < 0:
            raise ValueError(f"gram has the diagonal {own}: squared lengths, of which one is positive.")
        # entries are compared with the lengths of their own means: bins may differ in size by any factor
        lengths = np.sqrt(own)
        scales = np.where(lengths > 0, lengths, 1.0)
        unit = gram / scales / scales[:, None]
        if not np.allclose(unit, unit.T, rtol=0.0, atol=1e-9):
            raise ValueError("gram must be symmetric.")
        if unit.min() < -1e-12:
            raise ValueError(
                f"gram has an entry {gram.min()}: the reduction to a mixture needs means with inner products"
                " >= 0 (Lemma 3.2 of arXiv 2410.06266). Use a non-negative strategy."
            )
        values, vectors = np.linalg.eigh(np.maximum((unit + unit.T) / 2, 0.0))
        if values[0] < -1e-9 * len(gram):
            raise ValueError(
                f"gram, scaled to a unit diagonal, has the eigenvalue {values[0]}: it must be positive"
                " semidefinite."
            )
        self._factor = _factor_above(unit, values, vectors) * lengths[:, None]
        self.gram = self._factor @ self._factor.T
        self.largest = float(self.gram.diagonal().max())
        self.average = float(self.gram.diagonal().mean())
        self.shared = float(self.gram.mean())
        self.numbers = self.cycle = len(gram)

    def draw(self, rng: np.random.Generator, start: int, count: int) -> _Draws:
        normals = rng.standard_normal((count, self._factor.shape[1]))
        return _Draws(normals @ self._factor.T, start)

    def part(self, drawn: _Draws, count: int) -> _Draws:
        return _Draws(drawn.noise[:count], drawn.start)

    def pairs(self, drawn: _Draws, std: float, tilt: Tilt) -> tuple[Array, Array]:
        shifts, t = self.gram / std**2, tilt.amount
        own = shifts.diagonal() / 2
        x = drawn.noise / std
        if tilt.direction == "remove":
            # bins are taken in turn: independent, not identical, with the right average over whole cycles
            x += (t * shifts)[(drawn.start + np.arange(len(x))) % self.numbers]
            loss = _log_mean_exp(x - own)
            kept = loss > tilt.epsilon
            return loss[kept], _log_mean_exp(t * x[kept] - t**2 * own)
        x -= t * shifts.mean(axis=1)
        loss = _log_mean_exp(x - own)
        kept = loss < -tilt.epsilon
        return loss[kept], -t * x[kept].mean(axis=1) - t**2 * self.shared / (2 * std**2)


def _factor_above(unit: Array, values: Array, vectors: Array) -> Array:
    """F with (F F^T)_ij >= unit_ij for all i, j, also in exact arithmetic, and equal but for rounding.

    A Gram matrix that is larger entry by entry is never harder to tell apart: what is sampled dominates (see
    docs/proofs/amplification.md#mixtures). A product of rows of norm <= 1 is off by their length times 2^-53.

    Args:
        unit: a matrix of correlations, shape (b, b).
        values, vectors: of its eigendecomposition, as computed.
    """
    bins = len(unit)
    excess = 16 * _UNIT * bins + 2 * max(0.0, -float(values[0]))
    kept = np.maximum(values, 0.0)
    while True:
        shared = np.full((bins, 1), math.sqrt(excess))
        factor = np.hstack([vectors * np.sqrt(kept + excess), shared])
        if ((factor @ factor.T - unit) > (bins + 4) * _UNIT).all():
            return factor
        excess *= 2


def _log_mean_exp(x: Array) -> Array:
    """log of the mean of exp over the last axis; uses up `x`."""
    top = x.max(axis=1, initial=-math.inf)
    x -= top[:, None]
    np.exp(x, out=x)
    return np.asarray(top + np.log(x.mean(axis=1)))
