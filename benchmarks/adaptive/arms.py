"""Optimisers on noisy gradients of single examples: what each releases, and the step it makes of that.

Tensors have shape (seeds, rates, m); gradients of examples (seeds, rates, batch, m).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from anechoic import Mechanism

FIRST, SECOND, EPS = 0.9, 0.999, 1e-8


@dataclass(frozen=True, eq=False)
class Noise:
    """Of one run.

    Attributes:
        rows: noise std times C^-1, shape (n, n).
        batch_size: the divisor of sums.
        reference: std of independent noise in a mean gradient, at the same guarantee.
        streams: of the gradients and of their squares, each (n, seeds, 1, m).
    """

    rows: np.ndarray
    batch_size: float
    reference: float
    streams: tuple[Tensor, Tensor]

    def mean_of_variances(self, t: int, decay: float = 0.0) -> float:
        """Their running mean over the steps 0 .. t, or that of `variances` at another decay."""
        weights = SECOND ** np.arange(t, -1, -1.0)
        return float(weights @ self.variances(decay)[: t + 1] / weights.sum())

    @cache  # noqa: B019 - one of each run
    def variances(self, decay: float) -> np.ndarray:
        """Of one entry of the noise in the bias-corrected running means of gradients, shape (n,)."""
        mean, found = np.zeros(self.rows.shape[1]), []
        for t, row in enumerate(self.rows):
            mean = decay * mean + (1 - decay) * row
            found.append(float(np.square(mean / (1 - decay ** (t + 1))).sum()) / self.batch_size**2)
        return np.array(found)

    def of_running_mean(self, t: int) -> float:
        """Std of the running mean of the noise in means, over the steps 0 .. t."""
        weights = SECOND ** np.arange(t, -1, -1.0)
        return float(np.linalg.norm(weights @ self.rows[: t + 1]) / weights.sum()) / self.batch_size


def made(mechanism: Mechanism, reference: float, seeds: int, dimension: int, squares: bool) -> Noise:
    """Noise of all seeds; that of squares only where an arm releases them."""
    n = mechanism.steps
    rows = mechanism.noise_std * mechanism.strategy.correlate(np.eye(n))
    factor = torch.from_numpy(rows.astype(np.float32))

    def stream(base: int) -> Tensor:
        drawn = [
            torch.randn(n, dimension, generator=torch.Generator().manual_seed(base + s)) for s in range(seeds)
        ]
        return torch.stack([factor @ z for z in drawn], 1)[:, :, None]

    second = stream(5000) if squares else torch.zeros(n, 1, 1, 1)
    return Noise(rows, float(mechanism.expected_batch_size), reference, (stream(100), second))


def clipped(gradients: Tensor) -> Tensor:
    """Each to norm 1."""
    return gradients * gradients.norm(dim=-1, keepdim=True).clamp(min=1.0).reciprocal()


class Arm(ABC):
    """One optimiser; state is made at the first step."""

    independent = False  # whether its noise is independent
    squares = False  # whether it releases second moments too
    aware = False  # whether the plan is for its momentum and the schedule

    def __init__(self, noise: Noise, shapes: tuple[tuple[int, ...], ...]) -> None:
        self.noise = noise
        self.shapes = shapes
        self.mean: Tensor | float = 0.0
        self.square: Tensor | float = 0.0

    @abstractmethod
    def direction(self, t: int, gradients: Tensor) -> Tensor:
        """The step at learning rate 1; empty places of a batch have gradient 0."""

    def released(self, t: int, gradients: Tensor) -> Tensor:
        """The noisy mean of clipped gradients."""
        return (clipped(gradients).sum(-2) + self.noise.streams[0][t]) / self.noise.batch_size

    def first(self, t: int, released: Tensor) -> Tensor:
        self.mean = FIRST * self.mean + (1 - FIRST) * released
        return self.mean / (1 - FIRST ** (t + 1))

    def second(self, t: int, squares: Tensor) -> Tensor:
        self.square = SECOND * self.square + (1 - SECOND) * squares
        return self.square / (1 - SECOND ** (t + 1))


class Momentum(Arm):
    def direction(self, t: int, gradients: Tensor) -> Tensor:
        self.mean = FIRST * self.mean + self.released(t, gradients)
        return self.mean


class IndependentMomentum(Momentum):
    independent = True


class PlannedMomentum(Momentum):
    aware = True


class Adam(Arm):
    def direction(self, t: int, gradients: Tensor) -> Tensor:
        released = self.released(t, gradients)
        return self.first(t, released) / (self.second(t, released.square()).sqrt() + EPS)


class IndependentAdam(Adam):
    independent = True


class Corrected(Arm):
    """As torch.CorrectedAdam."""

    def direction(self, t: int, gradients: Tensor) -> Tensor:
        released = self.released(t, gradients)
        second = self.second(t, released.square()) - self.noise.mean_of_variances(t)
        return self.first(t, released) / (second.clamp(min=0.0) + self.noise.reference**2).sqrt()


class PlannedCorrected(Corrected):
    aware = True


class Buffered(Arm):
    """CorrectedAdam whose second moment is of the momentum buffer, where planned noise cancels already."""

    aware = True

    def direction(self, t: int, gradients: Tensor) -> Tensor:
        mean = self.first(t, self.released(t, gradients))
        second = self.second(t, mean.square()) - self.noise.mean_of_variances(t, FIRST)
        return mean / (second.clamp(min=0.0) + self.noise.reference**2).sqrt()


class Muon(Arm):
    """Momentum, then every matrix made orthogonal by five steps of Newton and Schulz; vectors get norm 1.

    Matrices are multiplied by the root of outputs over inputs where that exceeds 1 (Jordan et al. 2024).
    """

    def direction(self, t: int, gradients: Tensor) -> Tensor:
        self.mean = FIRST * self.mean + self.released(t, gradients)
        parts = torch.split(self.mean, [math.prod(shape) for shape in self.shapes], dim=-1)
        steps = [orthogonal(part, shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return torch.cat(steps, -1)


class IndependentMuon(Muon):
    independent = True


class PlannedMuon(Muon):
    aware = True


def orthogonal(flat: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The nearest matrix with orthonormal rows or columns, to some tenths of its singular values.

    Args:
        flat: matrices of this shape, with their last two axes as one.
    """
    matrix = flat.unflatten(-1, shape if len(shape) == 2 else (1, *shape))
    tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if tall else matrix
    x = x / (x.flatten(-2).norm(dim=-1)[..., None, None] + 1e-12)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    scale = max(1.0, matrix.shape[-1] / matrix.shape[-2]) ** 0.5
    return scale * (x.mT if tall else x).flatten(-2)


class Joint(Arm):
    """Second moments of single gradients as a paired stream, (g, weight^1/2 g^2) clipped together to norm 1.

    The root of the second moment is of max(v, 0) + the std of the noise in v.
    """

    squares = True
    share = 0.01  # the weight over m

    def direction(self, t: int, gradients: Tensor) -> Tensor:
        weight = self.share * gradients.shape[-1]
        both = joint_clip(gradients, weight)
        released = (both.sum(-2) + self.noise.streams[0][t]) / self.noise.batch_size
        squares = both.square_().sum(-2) + self.noise.streams[1][t] / weight**0.5
        second = self.second(t, squares / self.noise.batch_size)
        floor = self.noise.of_running_mean(t) / weight**0.5
        return self.first(t, released) / (second.clamp(min=0.0) + floor).sqrt()


class PaperJoint(Joint):
    """As published: g clipped to norm 1, weight 1/2; under zero-out that costs (1 + weight)^1/2 in noise."""

    def direction(self, t: int, gradients: Tensor) -> Tensor:
        weight, cost = 0.5, 1.5**0.5
        each = clipped(gradients)
        released = (each.sum(-2) + cost * self.noise.streams[0][t]) / self.noise.batch_size
        squares = each.square_().sum(-2) + cost * self.noise.streams[1][t] / weight**0.5
        second = self.second(t, squares / self.noise.batch_size)
        floor = cost * self.noise.of_running_mean(t) / weight**0.5
        return self.first(t, released) / (second.clamp(min=0.0) + floor).sqrt()


def joint_clip(gradients: Tensor, weight: float) -> Tensor:
    """c g with the largest c <= 1 for which (c g, weight^1/2 c^2 g^2) has norm at most 1."""
    a = gradients.square().sum(-1, keepdim=True)
    b = weight * gradients.square().square_().sum(-1, keepdim=True)
    # c^2 = 2 / (a + sqrt(a^2 + 4 b)) solves b c^4 + a c^2 = 1
    factor = (2 / (a + (a.square() + 4 * b).sqrt()).clamp(min=2.0)).sqrt_()
    return gradients * torch.where(a + b <= 1, 1.0, factor.clamp(max=1.0))


class Scaled(Arm):
    """Scale, then privatise (arXiv 2507.01129, Algorithm 8): clipping and noise in the geometry of Adam.

    Gradients are multiplied by s = 1 / (root of the second moment of what was released so far), of which the
    mean of 1 / s^2 is made 1, then clipped; what is released is divided by s.
    """

    damping = 0.5  # added to the root, in units of its RMS; without it much is lost

    def direction(self, t: int, gradients: Tensor) -> Tensor:
        scale = self.scale(t)
        released = self.released(t, gradients * scale[..., None, :]) / scale
        return self.first(t, released) / (self.second(t, released.square()).sqrt() + EPS)

    def scale(self, t: int) -> Tensor:
        if t == 0:
            return torch.ones(1, 1, 1)
        root = torch.as_tensor(self.square).sqrt()
        size = root.square().mean(-1, keepdim=True).sqrt()
        inverse = root / size + self.damping
        return inverse.square().mean(-1, keepdim=True).sqrt() / inverse


ARMS: dict[str, type[Arm]] = {
    "momentum, independent": IndependentMomentum,
    "momentum": Momentum,
    "momentum, planned for": PlannedMomentum,
    "Adam, independent": IndependentAdam,
    "Adam": Adam,
    "CorrectedAdam": Corrected,
    "CorrectedAdam, planned for": PlannedCorrected,
    "Adam of the buffer": Buffered,
    "Muon, independent": IndependentMuon,
    "Muon": Muon,
    "Muon, planned for": PlannedMuon,
    "joint moments": Joint,
    "joint, as published": PaperJoint,
    "scaled": Scaled,
}
