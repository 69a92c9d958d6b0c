"""A uniform mixture of Gaussians, given by the Gram matrix of its means: balls-in-bins sampling."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from anechoic._validate import Array
from anechoic.accounting.tilted import Tilt, TiltedPair


class _Drawn(NamedTuple):
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
        size = float(gram.diagonal().max())
        if size <= 0 or not np.allclose(gram, gram.T, atol=1e-9 * size):
            raise ValueError("gram must be symmetric with a positive diagonal.")
        if gram.min() < -1e-12 * size:
            raise ValueError(
                f"gram has an entry {gram.min()}: the reduction to a mixture needs means with inner products"
                " >= 0 (Lemma 3.2 of arXiv 2410.06266). Use a non-negative strategy."
            )
        self.gram = (gram + gram.T) / 2
        values, vectors = np.linalg.eigh(self.gram)
        if values[0] < -1e-9 * values[-1]:
            raise ValueError(f"gram has the eigenvalue {values[0]}: it must be positive semidefinite.")
        kept = values > 1e-14 * values[-1]
        self._factor = vectors[:, kept] * np.sqrt(values[kept])  # G = F F^T
        self.largest = size
        self.average = float(self.gram.diagonal().mean())
        self.shared = float(self.gram.mean())
        self.numbers = self.cycle = len(gram)

    @property
    def bins(self) -> int:
        """b, the number of components."""
        return len(self.gram)

    def draw(self, rng: np.random.Generator, start: int, count: int) -> _Drawn:
        normals = rng.standard_normal((count, self._factor.shape[1]))
        return _Drawn(normals @ self._factor.T, start)

    def part(self, drawn: _Drawn, count: int) -> _Drawn:
        return _Drawn(drawn.noise[:count], drawn.start)

    def pairs(self, drawn: _Drawn, std: float, tilt: Tilt) -> tuple[Array, Array]:
        shifts, t = self.gram / std**2, tilt.amount
        own = shifts.diagonal() / 2
        x = drawn.noise / std
        if tilt.direction == "remove":
            # bins are taken in turn: independent, not identical, with the right average over whole cycles
            x += (t * shifts)[(drawn.start + np.arange(len(x))) % self.bins]
            loss = _log_mean_exp(x - own)
            kept = loss > tilt.epsilon
            return loss[kept], _log_mean_exp(t * x[kept] - t**2 * own)
        x -= t * shifts.mean(axis=1)
        loss = _log_mean_exp(x - own)
        kept = loss < -tilt.epsilon
        return loss[kept], -t * x[kept].mean(axis=1) - t**2 * self.shared / (2 * std**2)


def _log_mean_exp(x: Array) -> Array:
    """log of the mean of exp over the last axis; uses up `x`."""
    top = x.max(axis=1, initial=-math.inf)
    x -= top[:, None]
    np.exp(x, out=x)
    return np.asarray(top + np.log(x.mean(axis=1)))
