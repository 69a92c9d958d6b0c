"""Expected suboptimality of learning with correlated noise: its limit, and exactly at every step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from anechoic._validate import Array, moderate, positive_int, steps_within
from anechoic.errors import UnsupportedError
from anechoic.mechanism.endless import EndlessMechanism
from anechoic.mechanism.mechanism import Mechanism
from anechoic.strategies.base import Strategy
from anechoic.strategies.endless import Endless
from anechoic.theory.problems import LearningProblem
from anechoic.theory.spectra import spectrum

#: Of a trajectory.
MOST_STEPS = 2**24


@dataclass(frozen=True)
class Suboptimality:
    """F_inf, the limit of E[F(theta_t)] - F*, in its two parts.

    Attributes:
        without_privacy: what sampling alone costs.
        privacy: what the noise of the mechanism adds.
        per_mode: what each eigendirection contributes to `privacy` before gradients mix them, shape (d,):
            s^2 weight_j q(a_j). Paper 000's Remark C.16 reads off which directions gain.
    """

    without_privacy: float
    privacy: float
    per_mode: Array

    @property
    def total(self) -> float:
        """F_inf."""
        return self.without_privacy + self.privacy

    def __float__(self) -> float:
        return self.total


def asymptotic_suboptimality(
    problem: LearningProblem, noise: Any, *, rho: float | None = None, clip_norm: float = 1.0
) -> Suboptimality:
    """Return F_inf of `problem` under `noise`, exactly: one mean over the circle, O(d) for d modes.

    Nothing is clipped (Noisy-FTRL): `clip_norm` only scales the noise. For Lipschitz losses, or in the event
    of `theory.regression.clipping_probability`, that is the private algorithm.

    Args:
        problem: `LinearRegression`, `MeanEstimation`.
        noise: an `EndlessMechanism`, which knows its noise, or a strategy without horizon with `rho`.
        rho: > 0, of zCDP, for one participation and zero-out adjacency; for a strategy only.
        clip_norm: G, > 0, for a strategy only.

    Raises:
        ValueError: for bad arguments, or noise that is not square-summable.
        UnsupportedError: for noise with a horizon: see `trajectory`.

    Example:
        >>> from anechoic.strategies import endless
        >>> from anechoic.theory import LinearRegression
        >>> problem = LinearRegression([1.0, 0.5, 0.25], learning_rate=0.1, residual_std=0.3)
        >>> round(float(asymptotic_suboptimality(problem, endless.damped(0.05), rho=0.5)), 5)
        0.0303

    References:
        Closed form of this library; orders in paper 000, Theorems 2.1 and 2.2.
    """
    found = spectrum(noise)
    std = noise_std(noise, problem, found.gamma, rho, clip_norm)
    per_mode = std**2 * problem.weights * found.exposure(problem.gaps)
    return Suboptimality(problem.floor, float(per_mode.sum()), per_mode)


def trajectory(
    problem: LearningProblem,
    noise: Any,
    *,
    steps: int | None = None,
    displacement: ArrayLike | None = None,
    rho: float | None = None,
    clip_norm: float = 1.0,
) -> Array:
    """Return E[F(theta_t)] - F* for t = 0 … steps, exactly.

    Modes evolve by themselves but for the noise of gradients, which feeds F back into each. In O(steps d) for
    Toeplitz C, in O(steps^2 d) for others (trees, column-normalised and restarted strategies, …).

    Args:
        problem: `LinearRegression`, `MeanEstimation`.
        noise: an `EndlessMechanism` or `Mechanism`, which know their noise, or a strategy with `rho`.
        steps: >= 1; by default the n of a strategy, at most n.
        displacement: theta_0 - theta* along the eigenvectors, shape (d,); by default 0.
        rho: > 0, of zCDP, for one participation and zero-out adjacency; for a strategy only. A strategy
            without horizon gets the noise that gamma_T of these steps needs.
        clip_norm: G, > 0, for a strategy only.

    Returns:
        Shape (steps + 1,).

    Raises:
        ValueError: for bad arguments.
    """
    run = _squares(problem, noise, steps, displacement, rho, clip_norm)
    return np.array([problem.suboptimality(squares) for squares in run])


def trajectory_squares(
    problem: LearningProblem,
    noise: Any,
    *,
    steps: int | None = None,
    displacement: ArrayLike | None = None,
    rho: float | None = None,
    clip_norm: float = 1.0,
) -> Array:
    """E of squared displacements along each mode at t = 0 … steps, shape (steps + 1, d): see `trajectory`."""
    return np.array(list(_squares(problem, noise, steps, displacement, rho, clip_norm)))


def _squares(
    problem: LearningProblem,
    noise: Any,
    steps: int | None,
    displacement: ArrayLike | None,
    rho: float | None,
    clip_norm: float,
) -> Iterator[Array]:
    if steps is not None and positive_int("steps", steps) > MOST_STEPS:
        raise ValueError(f"steps={steps} must be at most {MOST_STEPS:,}: take asymptotic_suboptimality.")
    strategy = leading(noise, steps)
    std = noise_std(noise, problem, strategy.largest_column_norm(), rho, clip_norm)
    squares = problem.start(displacement)
    yield squares
    unit = (problem.learning_rate * std) ** 2
    make = _toeplitz_noise if strategy.structure.toeplitz else _general_noise
    for added in make(strategy, 1.0 - problem.gaps):
        squares = problem.advance(squares, unit * added)
        yield squares


def _toeplitz_noise(strategy: Strategy, keep: Array) -> Iterator[Array]:
    """For each step, what unit noise adds to the squares of modes that keep shares `keep`, over eta^2.

    theta_t holds -eta sum_k g_k w_{t-1-k} with g_k = a g_{k-1} + beta_k, so that its covariance with the
    next injected row is -eta sum_{k<t} g_k beta_{k+1}.
    """
    n = strategy.n
    beta = strategy.correlate(np.eye(1, n)[0])
    energy, response, shared = 0.0, np.zeros(len(keep)), np.zeros(len(keep))
    for t in range(n):
        if t:
            response = keep * response + beta[t - 1]
            shared = shared + response * beta[t]
        energy += beta[t] ** 2
        yield energy + 2.0 * keep * shared


def _general_noise(strategy: Strategy, keep: Array) -> Iterator[Array]:
    """The same for any decoder rows, with the response of every mode to every noise row."""
    rows = strategy.correlate(np.eye(strategy.rows))
    response = np.zeros((len(keep), strategy.rows))
    for row in rows:
        yield float(row @ row) + 2.0 * keep * (response @ row)
        response = keep[:, None] * response + row


@singledispatch
def leading(noise: Any, steps: int | None) -> Strategy:
    """The strategy of the first `steps` steps of `noise`."""
    raise UnsupportedError(f"noise={noise!r} is no strategy or mechanism.")


@leading.register
def _(noise: Endless, steps: int | None) -> Strategy:
    if steps is None:
        raise ValueError("steps=None: give a number of steps, as this noise has no horizon.")
    return noise.at(positive_int("steps", steps))


@leading.register
def _(noise: EndlessMechanism, steps: int | None) -> Strategy:
    return leading(noise.strategy, steps)


@leading.register
def _(noise: Strategy, steps: int | None) -> Strategy:
    return noise if steps is None else noise.truncate(steps_within(noise.n, steps))


@leading.register
def _(noise: Mechanism, steps: int | None) -> Strategy:
    return leading(noise.strategy, steps)


@singledispatch
def _injected(noise: Any) -> tuple[float, float] | None:
    """Std of an entry of Z in units of the summed gradient, and the batch size; None for a strategy."""
    return None


@_injected.register
def _(noise: EndlessMechanism) -> tuple[float, float]:
    return noise.noise_std * noise.clip_norm, noise.batch_size


@_injected.register
def _(noise: Mechanism) -> tuple[float, float]:
    return noise.noise_std * noise.clip_norm, noise.expected_batch_size


def noise_std(
    noise: Any, problem: LearningProblem, gamma: float, rho: float | None, clip_norm: float
) -> float:
    """s: the std of an entry of Z in units of the mean gradient."""
    known = _injected(noise)
    if known is None:
        if rho is None:
            raise ValueError(
                "rho=None: a strategy does not say how much noise there is: give rho, or pass a mechanism."
            )
        if not math.isfinite(problem.batch_size):
            raise ValueError(
                "batch_size=inf has no noise per example: pass a mechanism, whose own batch size divides it."
            )
        gamma *= moderate("clip_norm", clip_norm)
        return gamma / math.sqrt(2.0 * moderate("rho", rho)) / problem.batch_size
    if rho is not None:
        raise ValueError(f"rho={rho} beside a mechanism: it has its noise already. Leave rho out.")
    std, batch = known
    if math.isfinite(problem.batch_size) and not math.isclose(batch, problem.batch_size, rel_tol=1e-12):
        raise ValueError(
            f"batch_size={problem.batch_size:g} of the problem is not the {batch:g} of the mechanism: give"
            " both the same (the gradients' own noise and the privacy noise shrink with it)."
        )
    return std / batch
