"""A uniform mixture of Gaussians against one Gaussian: what balls-in-bins sampling comes down to.

P = (1/b) sum_i N(m_i, s^2 I) against Q = N(0, s^2 I) depends on the means through their Gram matrix alone.
With u_i = <m_i, y> / s^2 and L = log dP/dQ = logsumexp_i(u_i - G_ii / (2 s^2)) - log b,

    removing an example:  delta = E_P[(1 - exp(epsilon - L))_+],    u ~ N(G_i / s^2, G / s^2) given bin i
    adding one:           delta = E_Q[(1 - exp(epsilon + L))_+],    u ~ N(0, G / s^2)

Values lie in [0, 1], so that a sample mean has a confidence bound (`accounting.confidence`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array, fraction, positive_float, positive_int
from anechoic.accounting.confidence import upper_mean

DIRECTIONS = ("remove", "add")
CHUNK = 2**22  # numbers in one block of samples
SLACK = 1e-3  # by which single-precision rounding may move a privacy loss; measured below 1e-4

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Estimate:
    """A Monte Carlo estimate of delta at one epsilon, in the worse direction.

    Attributes:
        delta: sample mean; no guarantee.
        upper: bound that fails with probability at most `failure` over the key, both directions together.
        failure: see `upper`; 0 < failure < 1.
        samples: of each direction.
        direction: the one with the larger `upper`.
    """

    delta: float
    upper: float
    failure: float
    samples: int
    direction: str

    @property
    def guaranteed(self) -> float:
        """A delta that holds whatever the key: `upper` plus the probability that it fails."""
        return min(1.0, self.upper + self.failure)


class Mixture:
    """The pair (P, Q) for means with a given Gram matrix; s, the noise std, is given with each question.

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
                " >= 0. Use |C| in their place (Lemma 3.2 of arXiv 2410.06266)."
            )
        self.gram = (gram + gram.T) / 2
        values, vectors = np.linalg.eigh(self.gram)
        if values[0] < -1e-9 * values[-1]:
            raise ValueError(f"gram has the eigenvalue {values[0]}: it must be positive semidefinite.")
        kept = values > 1e-14 * values[-1]
        self._factor = (vectors[:, kept] * np.sqrt(values[kept])).astype(np.float32)  # G = F F^T

    @property
    def bins(self) -> int:
        """b, the number of components."""
        return len(self.gram)

    def delta(
        self,
        epsilon: float,
        std: float,
        *,
        samples: int,
        failure: float,
        seed: int = 0,
        progress: Callable[[int], None] | None = None,
    ) -> Estimate:
        """delta(epsilon) by sampling, with its confidence bound.

        Args:
            epsilon: >= 0.
            std: s > 0.
            samples: of each direction, >= 1.
            failure: probability with which `upper` may fail, in (0, 1).
            seed: of the samples. A bound is valid for a seed that was fixed before anything was computed
                with it: calibrate with one seed, verify with another.
            progress: called with the samples done so far.
        """
        std, samples = positive_float("std", std), positive_int("samples", samples)
        failure = fraction("failure", failure)
        found = []
        for place, direction in enumerate(DIRECTIONS):
            total, done = 0.0, 0
            for values in self._values(epsilon - SLACK, std, direction, samples, (seed, place)):
                total += float(values.sum(dtype=np.float64))
                done += len(values)
                if progress is not None:
                    progress(done)
            mean = min(1.0, total / samples)
            found.append(Estimate(mean, upper_mean(mean, samples, failure / 2), failure, samples, direction))
        return max(found, key=lambda estimate: estimate.upper)

    def _values(
        self, epsilon: float, std: float, direction: str, samples: int, seed: tuple[int, int]
    ) -> Iterator[Floats]:
        """(1 - exp(epsilon -/+ L))_+ of fresh samples, block by block; bins are taken in turn."""
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))
        block = max(1, CHUNK // self.bins)
        for start in range(0, samples, block):
            noise = self._noise(rng, min(block, samples - start))
            yield _exceeding(self._losses(noise, std, direction, start), epsilon, direction)

    def _noise(self, rng: np.random.Generator, count: int) -> Floats:
        """<m_i, z> for standard normal z, shape (count, b)."""
        normals = rng.standard_normal((count, self._factor.shape[1]), dtype=np.float32)
        return np.asarray(normals @ self._factor.T)

    def _losses(self, noise: Floats, std: float, direction: str, start: int) -> Floats:
        """L of the samples whose noise is given, for the noise std `std`; uses up no array but its own."""
        u = noise * np.float32(1.0 / std)
        if direction == "remove":
            shifts = (self.gram / std**2).astype(np.float32)
            u += shifts[(start + np.arange(len(u))) % self.bins]
        u -= (self.gram.diagonal() / (2 * std**2)).astype(np.float32)
        top = u.max(axis=1)
        u -= top[:, None]
        np.exp(u, out=u)
        return np.asarray(top + np.log(u.sum(axis=1)) - np.float32(math.log(self.bins)))

    def noise_std(
        self, epsilon: float, delta: float, *, samples: int = 200_000, seed: int = 1, tolerance: float = 1e-4
    ) -> float:
        """A point estimate of the least s with delta(epsilon) <= delta: the same samples at every s.

        It carries no guarantee; `delta` with another seed verifies it.

        Args:
            epsilon: > 0.
            delta: in (0, 1).
            samples: of each direction.
        """
        epsilon, delta = positive_float("epsilon", epsilon), fraction("delta", delta)
        noise = {}
        for place, direction in enumerate(DIRECTIONS):
            rng = np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, place))))
            noise[direction] = self._noise(rng, positive_int("samples", samples))

        def largest(std: float) -> float:
            means = []
            for direction in DIRECTIONS:
                total = 0.0
                for start in range(0, samples, CHUNK // self.bins + 1):
                    part = noise[direction][start : start + CHUNK // self.bins + 1]
                    losses = self._losses(part, std, direction, start)
                    total += float(_exceeding(losses, epsilon, direction).sum(dtype=np.float64))
                means.append(total / samples)
            return max(means)

        size = math.sqrt(float(self.gram.diagonal().max()))
        low = high = size
        while largest(high) > delta:
            low, high = high, 2 * high
        while largest(low) <= delta:
            low, high = low / 2, low
        while high > low * (1 + tolerance):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if largest(middle) <= delta else (middle, high)
        return high


def _exceeding(losses: Floats, epsilon: float, direction: str) -> Floats:
    signed = losses if direction == "remove" else -losses
    return np.maximum(-np.expm1(np.minimum(np.float32(epsilon) - signed, np.float32(0))), np.float32(0))
