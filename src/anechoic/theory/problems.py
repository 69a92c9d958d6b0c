"""Learning problems whose expected suboptimality is known exactly, for any causal Gaussian noise.

theta_{t+1} = theta_t - eta (g_t + w_t), w = s C^-1 Z, with g_t the mean gradient of a batch of fresh
examples, and nothing clipped (Noisy-FTRL of paper 000). Along each eigenvector of the Hessian the distance to
the minimiser is a mode that keeps a share a_j = 1 - gap_j of itself each step. In the limit

    F_inf = floor + s^2 sum_j weight_j q(a_j),     q(a) = sum_k a^|k| r_k,

with r_k the autocovariance of C^-1 Z: the noise enters through q alone (`Spectrum.exposure`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from anechoic import workloads
from anechoic._validate import Array, at_least, finite_array, moderate, positive_int
from anechoic.algebra.circle import Circle, circle, gap_power
from anechoic.strategies.endless_mixture_root import MixtureRoot
from anechoic.theory.trigonometric import minimum_phase
from anechoic.workloads.base import Workload

# More modes than this are merged where their gaps agree to MERGED, for the optimal noise only.
MODES, MERGED = 256, 0.03
# Least 1 - |a| of a mode: one that is slower is felt after 10^13 steps only, and is rounding of a solver.
SLOWEST = 1e-13
#: Of an estimated mean.
MOST_DIMENSIONS = 2**24


class LearningProblem(ABC):
    """Modes, weights and floor of a problem. Subclasses are final."""

    learning_rate: float  #: eta
    batch_size: float  #: examples whose mean gradient is one step, >= 1; the noise is divided by it too

    @property
    @abstractmethod
    def gaps(self) -> Array:
        """1 - a_j, shape (d,), in (0, 2): how fast gradients undo a displacement."""

    @property
    @abstractmethod
    def weights(self) -> Array:
        """Shape (d,), > 0: how much the suboptimality grows with q(a_j), per unit of s^2."""

    @property
    @abstractmethod
    def floor(self) -> float:
        """F_inf without privacy noise."""

    def start(self, displacement: ArrayLike | None) -> Array:
        """Squared displacements from the minimiser along each mode at step 0, shape (d,)."""
        modes = len(self.gaps)
        if displacement is None:
            return np.zeros(modes)
        return np.square(finite_array("displacement", displacement, length=modes))

    @abstractmethod
    def advance(self, squares: Array, noise: Array | float) -> Array:
        """E of the squared displacements one step later; `noise` is the part that C^-1 Z adds, shape (d,)."""

    @abstractmethod
    def suboptimality(self, squares: Array) -> float:
        """E[F] - F* from the expected squared displacements."""

    def density(self, half_sines: Array) -> Array:
        """Psi(w) = sum_j weight_j (1 - a_j^2) / |1 - a_j e^(i w)|^2 at sin^2(w / 2), shape of the argument.

        The privacy part of F_inf is s^2 times the mean of |B|^2 Psi over the circle: Psi says at which
        frequencies this learner minds noise.
        """
        gaps, scaled = self.gaps, self.weights * self.gaps * (2.0 - self.gaps)
        out = np.empty(half_sines.shape)
        flat, result = half_sines.ravel(), out.reshape(-1)
        step = max(1, (1 << 21) // len(gaps))
        for i in range(0, len(flat), step):
            result[i : i + step] = scaled @ (1.0 / gap_power(gaps[:, None], flat[None, i : i + step]))
        return out

    def points(self, *, widest: float = math.pi) -> Circle:
        """Angles on which means of Psi and of its powers are found."""

        def rows(angles: Array) -> Array:
            density = self.density(np.square(np.sin(angles / 2)))
            return np.stack([density, np.sqrt(density)])

        return circle(rows, self.slowest / 4, widest=widest)

    @property
    def slowest(self) -> float:
        """The least 1 - |a_j|: the angle below which Psi is flat."""
        return float(np.minimum(self.gaps, 2.0 - self.gaps).min())

    @cached_property
    def smallest_loss(self) -> float:
        """Mean of sqrt(Psi): no noise without horizon has gamma_inf sqrt(mean |B|^2 Psi) below it.

        Cauchy-Schwarz with gamma^2 = mean of 1 / |B|^2. It holds for every lower-triangular C in the average
        over many steps: 'Which noise for which learner'.
        """
        points = self.points()
        return float(points.mean(np.sqrt(self.density(points.half_sines))))

    @cached_property
    def optimal_strategy(self) -> MixtureRoot:
        """C = sqrt(f) with f the minimum-phase factor of Psi, |f|^2 = Psi: it reaches `smallest_loss`.

        f(x) = sum_j w_j / (1 - a_j x) with w_j > 0: the problem is a mixture of discounted sums, and C is the
        square root of that workload. A mode that overshoots (a gap above 1) has a_j < 0. Of more than 256
        modes those whose gaps agree to 3 % are merged, which changes the loss by less than 1e-6.
        """
        gaps, weights = _merged(self.gaps, self.weights)
        return MixtureRoot(minimum_phase(gaps, weights), 1.0 - gaps)

    def workload(self, n: int) -> Workload:
        """The discounted sums f(x) as a Toeplitz workload of n steps, in units of F.

        Its squared max loss for one participation tends to the privacy part of F_inf (for s = gamma = 1) as n
        grows, so that every optimiser of this library takes a learning problem:
        ``optimize.banded_toeplitz(problem.workload(n), participation=…, loss="max")``.
        """
        gaps, weights = _merged(self.gaps, self.weights)
        scale = float(minimum_phase(gaps, weights).sum())
        return workloads.from_coefficients(scale * self.optimal_strategy.mixture(positive_int("n", n)))


@dataclass(frozen=True, eq=False)
class MeanEstimation(LearningProblem):
    """The mean of a distribution by steps on (theta - z)^2 / 2 (paper 000, Section 2.1 and Theorem 2.1).

    Args:
        learning_rate: eta, in (0, 2); at most 1 in the paper.
        residual_std: std of one coordinate of one example, >= 0.
        dimension: coordinates, >= 1.
        batch_size: examples a step, >= 1.

    Raises:
        ValueError: if an argument is out of range.
    """

    learning_rate: float
    residual_std: float = 0.0
    dimension: int = 1
    batch_size: float = 1

    def __post_init__(self) -> None:
        eta = moderate("learning_rate", self.learning_rate)
        if eta >= 2.0:
            raise ValueError(f"learning_rate={eta} must be below 2: the error would grow for ever.")
        _common(self, eta, np.array([eta]))
        object.__setattr__(self, "dimension", positive_int("dimension", self.dimension))
        if self.dimension > MOST_DIMENSIONS:
            raise ValueError(f"dimension={self.dimension} must be at most {MOST_DIMENSIONS:,}: all alike.")

    @property
    def gaps(self) -> Array:
        return np.full(self.dimension, self.learning_rate)

    @property
    def weights(self) -> Array:
        return np.full(self.dimension, self.learning_rate / (2.0 * (2.0 - self.learning_rate)))

    @property
    def floor(self) -> float:
        return float(self.weights.sum()) * self.residual_std**2 / self.batch_size

    def advance(self, squares: Array, noise: Array | float) -> Array:
        keep, eta = 1.0 - self.learning_rate, self.learning_rate
        return np.asarray(keep * keep * squares + eta * eta * self.residual_std**2 / self.batch_size + noise)

    def suboptimality(self, squares: Array) -> float:
        return float(squares.sum()) / 2.0


@dataclass(frozen=True, eq=False)
class LinearRegression(LearningProblem):
    """Least squares with Gaussian covariates x ~ N(0, H) and residuals of variance residual_std^2, streaming.

    F(theta) = E(y - theta^T x)^2 / 2. Exact, with all multiplicative noise: E[x x^T S x x^T] = 2 H S H +
    tr(H S) H. With D_j = 2 - (1 + 1/B) eta lambda_j, for batches of B,

        2 F_inf = sum_j (eta lambda_j sigma^2 / B + eta s^2 q(1 - eta lambda_j)) / D_j  /  (1 - T),
        T = (eta / B) sum_j lambda_j / D_j,

    finite if and only if all D_j > 0 and T < 1; B = inf is gradient descent on a quadratic.

    Args:
        eigenvalues: of H, shape (d,), > 0. Equal ones may be repeated.
        learning_rate: eta, > 0.
        residual_std: sigma_sgd, >= 0.
        batch_size: examples a step, >= 1, or `math.inf`.

    Raises:
        ValueError: if an argument is out of range, or eta is too large for a limit to exist.

    Example:
        >>> round(LinearRegression([1.0, 0.5], learning_rate=0.1, residual_std=1.0).floor, 6)
        0.044586
    """

    eigenvalues: ArrayLike
    learning_rate: float
    residual_std: float = 0.0
    batch_size: float = 1

    def __post_init__(self) -> None:
        values = finite_array("eigenvalues", self.eigenvalues)
        if values.min() <= 0:
            j = int(np.argmin(values))
            raise ValueError(
                f"eigenvalues[{j}]={values[j]} must be > 0: H is to be positive definite. Leave out"
                " directions without data, whose noise never costs anything."
            )
        eta = moderate("learning_rate", self.learning_rate)
        object.__setattr__(self, "eigenvalues", values)
        _common(self, eta, eta * values)
        largest = float(values.max())
        if (1.0 + self._share) * eta * largest >= 2.0:
            raise ValueError(
                f"learning_rate={eta} must be below {2.0 / ((1.0 + self._share) * largest):.6g} ="
                " 2 / ((1 + 1/batch_size) max(eigenvalues)): beyond it E[F] grows."
            )
        if self.feedback >= 1.0:
            raise ValueError(
                f"learning_rate={eta} is too large: (eta / B) sum_j lambda_j / (2 - (1 + 1/B) eta lambda_j) ="
                f" {self.feedback:.6g} must be below 1, or E[F] grows for ever. Something below"
                f" {2.0 * self.batch_size / (values.sum() + (self.batch_size + 1.0) * largest):.4g} will do."
            )

    @property
    def _share(self) -> float:
        return 1.0 / self.batch_size

    @property
    def _lambda(self) -> Array:
        return cast("Array", self.eigenvalues)

    @cached_property
    def _damping(self) -> Array:
        return 2.0 - (1.0 + self._share) * self.gaps

    @cached_property
    def feedback(self) -> float:
        """T, the share of the suboptimality that the noise of the gradients feeds back; below 1."""
        return float((self.gaps / self._damping).sum()) * self._share

    @cached_property
    def gaps(self) -> Array:
        return self.learning_rate * self._lambda

    @cached_property
    def weights(self) -> Array:
        return np.asarray(self.learning_rate / (2.0 * (1.0 - self.feedback) * self._damping))

    @cached_property
    def floor(self) -> float:
        return self.residual_std**2 * self.feedback / (2.0 * (1.0 - self.feedback))

    def advance(self, squares: Array, noise: Array | float) -> Array:
        gaps, share = self.gaps, self._share
        kept = np.square(1.0 - gaps) + share * np.square(gaps)
        spread = share * self.learning_rate * gaps * (float(self._lambda @ squares) + self.residual_std**2)
        return np.asarray(kept * squares + spread + noise)

    def suboptimality(self, squares: Array) -> float:
        return float(self._lambda @ squares) / 2.0


def _common(problem: MeanEstimation | LinearRegression, eta: float, gaps: Array) -> None:
    object.__setattr__(problem, "learning_rate", eta)
    at_least("residual_std", problem.residual_std)
    batch: Any = problem.batch_size
    if batch != math.inf:
        at_least("batch_size", batch, 1.0, remedy="math.inf is gradient descent.")
    if gaps.min() < SLOWEST:
        j = int(np.argmin(gaps))
        raise ValueError(
            f"eigenvalues[{j}] times the learning rate is {gaps[j]:.3g}, below {SLOWEST:g}: no run is long"
            " enough to feel it, and solvers return such numbers for 0. Leave out directions without data, as"
            " with values[values > 1e-12 * values.max()]."
        )


def _merged(gaps: Array, weights: Array) -> tuple[Array, Array]:
    """Distinct gaps and their weights; of many, the mean of those in one bin of log(1 - |a|)."""
    distinct, place = np.unique(gaps, return_inverse=True)
    total = np.asarray(np.bincount(place, weights), dtype=np.float64)
    if len(distinct) <= MODES:
        return distinct, total
    bins = np.floor(np.log(np.minimum(distinct, 2.0 - distinct)) / MERGED)
    _, place = np.unique(np.where(distinct > 1.0, 1.0 - bins, bins), return_inverse=True)
    joint = np.asarray(np.bincount(place, total), dtype=np.float64)
    return np.asarray(np.bincount(place, total * distinct) / joint), joint
