"""Noisy first and second moments of the same clipped vectors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from anechoic._validate import Array, fraction, one_of, positive_float
from anechoic.accounting import gaussian_epsilon, gaussian_mu
from anechoic.keys import checked_key, derive, new_key
from anechoic.losses.dispatch import error
from anechoic.losses.result import StepErrors
from anechoic.mechanism.calibrate import shown
from anechoic.mechanism.mechanism import Adjacency, Mechanism
from anechoic.noise import NoiseStream
from anechoic.participation.base import Participation
from anechoic.sensitivity.moments import MOVES_OTHERS, joint_sensitivity
from anechoic.sensitivity.result import Sensitivity
from anechoic.strategies.base import Strategy
from anechoic.workloads.base import Workload


@dataclass(frozen=True)
class MomentPairs:
    """Vectors with their squares, clipped together: contributions to any mechanism, in twice the dimension.

    A vector x becomes c x beside weight^1/2 (c x)^2 / clip_norm, with the largest c <= 1 for which both
    together have norm <= clip_norm. A mechanism of that clip norm then releases the sums of both, with the
    guarantee, the sampling and the noise that it has for x alone. What the squares take is signal: c falls
    as weight ||x||_4^4 grows against ||x||_2^2, which for x of m entries of one size is weight / m.

    Args:
        weight: > 0. The noise in second moments falls as weight^-1/2.
        clip_norm: of the mechanism, > 0.

    Raises:
        ValueError: for an argument out of range.

    Example:
        >>> import numpy as np
        >>> pairs = MomentPairs(weight=2.0, clip_norm=1.0)
        >>> round(float(np.linalg.norm(pairs.contributions([3.0, -4.0]))), 9)
        1.0

    References:
        docs/proofs/joint-moments.md. Another way to what arXiv 2502.06597 does, see `PairedMoments`.
    """

    weight: float
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", positive_float("weight", self.weight))
        object.__setattr__(self, "clip_norm", positive_float("clip_norm", self.clip_norm))

    def contributions(self, vectors: ArrayLike) -> Array:
        """Of vectors, shape (…, m): what is summed, shape (…, 2 m), of norm <= clip_norm.

        Raises:
            ValueError: for entries that are not finite.
        """
        x = np.asarray(vectors, dtype=np.float64)
        if not np.isfinite(x).all():
            raise ValueError("vectors hold an entry that is not finite: clipping cannot bound it.")
        size = np.maximum(np.abs(x).max(axis=-1, keepdims=True, initial=0.0), self.clip_norm)
        u = x / size  # squares of squares neither overflow nor vanish together
        with np.errstate(over="ignore"):
            largest = size / self.clip_norm  # infinite where float64 has no such number: not below the root
        a = np.square(u).sum(axis=-1, keepdims=True)
        b = self.weight * np.square(np.square(u)).sum(axis=-1, keepdims=True)
        # the root s = c^2 of b s^2 + a s = 1, without cancellation; c is in units of 1 / largest
        with np.errstate(divide="ignore"):
            root = np.sqrt(2 / (a + np.sqrt(a * a + 4 * b)))
        u = u * np.minimum(root, largest)
        pair = np.concatenate([u, np.sqrt(self.weight) * np.square(u)], axis=-1)
        norm = np.linalg.norm(pair, axis=-1, keepdims=True)
        return np.asarray(self.clip_norm * pair / np.maximum(norm, 1.0))  # rounding only

    def split(self, released: ArrayLike) -> tuple[Array, Array]:
        """First and second moments of a noisy sum or mean, both of shape (…, m); the second in squares."""
        first, second = np.split(np.asarray(released, dtype=np.float64), 2, axis=-1)
        return first, second * (self.clip_norm / np.sqrt(self.weight))

    def errors(
        self, mechanism: Mechanism, first: Workload, second: Workload | None = None
    ) -> tuple[StepErrors, StepErrors]:
        """Std of the noise in weighted sums of first and of second moments, per step.

        Args:
            mechanism: that releases the sums, of the same clip norm.
            first, second: workloads; None for the first one again.

        Raises:
            ValueError: where the clip norms differ.
        """
        if mechanism.clip_norm != self.clip_norm:
            raise ValueError(
                f"mechanism.clip_norm={mechanism.clip_norm} must be that of the pairs, {self.clip_norm}."
            )
        std = mechanism.noise_std * self.clip_norm
        of_first = error(first, mechanism.strategy)
        of_second = of_first if second is None else error(second, mechanism.strategy)
        return _times(of_first, std), _times(of_second, std * self.clip_norm / float(np.sqrt(self.weight)))


@dataclass(frozen=True)
class PairedMoments:
    """Two streams, C1 for clipped vectors x and C2 for their squares, without amplification.

    The sums of x get noise noise_std * clip_norm * C1^-1 Z, those of x^2 (by entries, or x x^T)
    noise_std * weight^-1/2 * clip_norm^2 * C2^-1 Z', with Z and Z' independent. Vectors are clipped to norm
    clip_norm alone. Where C1 = C2, squares of weight 1/2 cost nothing under replace-one, and
    (1 + weight)^1/2 in noise under zero-out, which `MomentPairs` avoids.

    Guarantee: all releases together are `gdp()`-GDP, for vectors that depend on earlier releases too.

    Args:
        first, second: C1 and C2 of as many steps; None for C2 = C1.
        participation: which steps one unit may touch, promised by the caller.
        noise_std, weight, clip_norm: > 0.
        adjacency: "zero_out" or "replace_one".
        delta: in (0, 1), at which `epsilon()` is given.

    Raises:
        ValueError, MismatchError, UnsupportedError: as `joint_sensitivity`.

    References:
        Kalinin, Upadhyay and Lampert (arXiv 2502.06597); docs/proofs/joint-moments.md.
    """

    first: Strategy
    second: Strategy | None
    participation: Participation
    noise_std: float
    weight: float = 0.5
    clip_norm: float = 1.0
    adjacency: Adjacency = "zero_out"
    delta: float = 1e-6

    def __post_init__(self) -> None:
        for name in ("noise_std", "weight", "clip_norm"):
            object.__setattr__(self, name, positive_float(name, getattr(self, name)))
        object.__setattr__(self, "delta", fraction("delta", self.delta))
        one_of("adjacency", self.adjacency, ("zero_out", "replace_one"), remedy=MOVES_OTHERS)
        _ = self.sensitivity  # refuses what no theorem covers

    @cached_property
    def sensitivity(self) -> Sensitivity:
        """Of both streams at once, under this adjacency, in clip norms."""
        return joint_sensitivity(
            self.first, self.second, self.participation, weight=self.weight, adjacency=self.adjacency
        )

    def gdp(self) -> float:
        """mu such that all releases of both streams are mu-GDP."""
        return self.sensitivity.value / self.noise_std

    def epsilon(self, delta: float | None = None) -> float:
        """Smallest epsilon at `delta`, by default the record's own."""
        return gaussian_epsilon(self.delta if delta is None else delta, self.gdp())

    def streams(
        self, dimension: int, *, key: bytes | None = None, **options: Any
    ) -> tuple[NoiseStream, NoiseStream]:
        """Noise rows of sums of vectors and of sums of their squares by entries, from independent keys.

        Args:
            dimension: m.
            key: of both, 32 bytes; by default from the operating system.
            options: of `NoiseStream`: backend, device, and so on.
        """
        both = new_key() if key is None else checked_key(key)
        keys = [derive(both, "moments", order, size=32) for order in (1, 2)]
        stds = (self.noise_std * self.clip_norm, self.noise_std * self.clip_norm**2 / self.weight**0.5)
        strategies = (self.first, self.second or self.first)
        one, two = (
            NoiseStream(strategy, dimension, std=std, key=key, **options)
            for strategy, std, key in zip(strategies, stds, keys, strict=True)
        )
        return one, two

    def errors(self, first: Workload, second: Workload | None = None) -> tuple[StepErrors, StepErrors]:
        """Std of the noise in weighted sums of first and of second moments, per step.

        Args:
            first, second: workloads; None for the first one again.
        """
        std = self.noise_std * self.clip_norm
        return (
            _times(error(first, self.first), std),
            _times(
                error(first if second is None else second, self.second or self.first),
                std * self.clip_norm / float(np.sqrt(self.weight)),
            ),
        )


def calibrate_moments(
    first: Strategy,
    second: Strategy | None = None,
    *,
    participation: Participation,
    epsilon: float,
    delta: float,
    weight: float = 0.5,
    clip_norm: float = 1.0,
    adjacency: Adjacency = "zero_out",
) -> PairedMoments:
    """`PairedMoments` of the least noise that gives (epsilon, delta).

    Args:
        first, second, participation, weight, clip_norm, adjacency: see `PairedMoments`.
        epsilon: > 0.
        delta: in (0, 1).

    Raises:
        ValueError, MismatchError, UnsupportedError: as `PairedMoments`.

    Example:
        >>> import numpy as np
        >>> from anechoic.participation import Single
        >>> from anechoic.strategies import BandedToeplitz
        >>> from anechoic.workloads import exponential_decay
        >>> C = BandedToeplitz(100, [1.0, 0.5, 0.25])
        >>> moments = calibrate_moments(C, participation=Single(), epsilon=2.0, delta=1e-6)
        >>> noise, of_squares = moments.streams(dimension=4)
        >>> state, of_squares_state = noise.init(), of_squares.init()
        >>> x = np.array([0.6, -0.2, 0.0, 0.1])  # in each step a sum of clipped vectors, and of their squares
        >>> row, state = noise.next(state)
        >>> row_of_squares, of_squares_state = of_squares.next(of_squares_state)
        >>> released, squares = x + row, x**2 + row_of_squares
        >>> in_a_step, _ = moments.errors(exponential_decay(100, 0.0))
        >>> round(in_a_step.rms, 2)
        3.52
    """
    found = joint_sensitivity(first, second, participation, weight=weight, adjacency=adjacency)
    std = found.value / gaussian_mu(epsilon, delta)

    def with_std(noise_std: float) -> PairedMoments:
        return PairedMoments(first, second, participation, noise_std, weight, clip_norm, adjacency, delta)

    return shown(with_std, std, epsilon)


def _times(errors: StepErrors, factor: float) -> StepErrors:
    return StepErrors(
        errors.n, factor * errors.max, factor * errors.rms, lambda: np.square(factor * errors.per_step)
    )
