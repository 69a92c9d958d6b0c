"""Bounds of linear regression that do not need Gaussian covariates, and what they say about a finite run.

Paper 000 writes F without the factor 1/2 in Eq. (22) and with it in Eq. (8); everything here is in units of
Eq. (8), F(theta) = E(y - theta^T x)^2 / 2, as `LinearRegression` is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from anechoic._validate import Array, at_least, fraction, moderate, positive_int
from anechoic.strategies.endless import Endless
from anechoic.theory.learning import effective_dimension
from anechoic.theory.problems import LinearRegression
from anechoic.theory.spectra import spectrum
from anechoic.theory.suboptimality import MOST_STEPS, asymptotic_suboptimality, noise_std, trajectory_squares


@dataclass(frozen=True)
class RegressionBounds:
    """Bounds of F_inf for covariates of covariance H, of any law with the given moments.

    Attributes:
        lower: no law has less (it must have residuals of exactly the stated variance).
        upper: no law with these moments has more.
        smallest: what `lower` leaves to the best noise.
    """

    lower: float
    upper: float
    smallest: float


def regression_bounds(
    problem: LinearRegression,
    noise: Any,
    *,
    rho: float | None = None,
    clip_norm: float = 1.0,
    kurtosis: float = 3.0,
    fourth_moment: float | None = None,
) -> RegressionBounds:
    """Bound F_inf by moments, with every constant; for Gaussian covariates the exact value lies between.

    Args:
        problem: one example a step.
        noise, rho, clip_norm: as for `asymptotic_suboptimality`.
        kurtosis: C_kurt with E[x x^T H^-1/2 P H^-1/2 x x^T] <= C_kurt tr(P) H for every P >= 0 that commutes
            with H; >= 1, and 3 for Gaussian x.
        fourth_moment: R^2 with E[|x|^2 x x^T] <= R^2 H; at least tr(H), by default tr(H) + 2 max eigenvalue,
            that of Gaussian x.

    Raises:
        ValueError: for batches of more than one example, moments that no law has, or a learning rate of
            1 / R^2 or more.

    References:
        Paper 000, Theorems C.14, C.15 and C.18.
    """
    if problem.batch_size != 1:
        raise ValueError(f"batch_size={problem.batch_size}: the bounds are those of one example a step.")
    values, eta = np.asarray(problem.eigenvalues), problem.learning_rate
    kurtosis = moderate("kurtosis", kurtosis)
    trace = float(values.sum())
    moment = trace + 2.0 * float(values.max()) if fourth_moment is None else fourth_moment
    moderate("fourth_moment", moment)
    if kurtosis < 1.0 or moment < trace:
        raise ValueError(
            f"kurtosis={kurtosis}, fourth_moment={moment}: no law has a kurtosis below 1 or a fourth moment"
            f" below tr(H) = {trace:.6g} (Jensen)."
        )
    if eta * moment >= 1.0:
        raise ValueError(f"learning_rate={eta} must be below 1 / fourth_moment = {1.0 / moment:.6g}.")
    found = spectrum(noise)
    std = noise_std(noise, problem, found.gamma, rho, clip_norm)
    gaps = problem.gaps
    # the mean of |B|^2 h, h = sum_j lambda_j / |1 - a_j e^(i w)|^2
    collected = float((values / (gaps * (2.0 - gaps))) @ found.exposure(gaps))
    sampling, private = eta * problem.residual_std**2, eta**2 * std**2 * collected
    inverse = (1.0 - math.sqrt(eta * moment)) ** -2
    upper = (1.0 + inverse) * sampling * moment + (1.0 + kurtosis * inverse) * 2.0 * private
    lower = sampling * trace / 2.0 + private
    least = (2.0 * sampling + eta**2 * (std / found.gamma) ** 2) * trace / 4.0
    return RegressionBounds(lower / 2.0, upper / 2.0, least / 2.0)


def finite_time_bound(
    problem: LinearRegression,
    noise: Any,
    *,
    steps: int,
    displacement: ArrayLike,
    rho: float | None = None,
    clip_norm: float = 1.0,
) -> float:
    """Return (sqrt((L / mu) exp(-eta mu t) F_0) + sqrt(F_inf))^2, an upper bound of E[F(theta_t)] - F*.

    With the exact F_inf. `trajectory` gives the exact value for Gaussian covariates; this shows its shape.

    Args:
        problem: one example a step, with learning rate below 1 / R^2, R^2 = tr(H) + 2 max eigenvalue.
        noise, rho, clip_norm: as for `asymptotic_suboptimality`.
        steps: t, >= 1.
        displacement: theta_0 - theta*, shape (d,), along the eigenvectors.

    Raises:
        ValueError: if an argument is out of range.

    References:
        Paper 000, Theorem D.11; Theorem D.13 (c) is twice the sum of the squares.
    """
    values, eta = _small_steps(problem)
    start = problem.suboptimality(problem.start(displacement))
    limit = asymptotic_suboptimality(problem, noise, rho=rho, clip_norm=clip_norm).total
    smallest = float(values.min())
    decayed = (
        float(values.max()) / smallest * math.exp(-eta * smallest * positive_int("steps", steps)) * start
    )
    return (math.sqrt(decayed) + math.sqrt(limit)) ** 2


def clipping_probability(
    problem: LinearRegression,
    noise: Any,
    *,
    steps: int,
    clip_norm: float,
    displacement: ArrayLike | None = None,
    rho: float | None = None,
) -> float:
    """An upper bound of the probability that any of the first `steps` gradients is longer than `clip_norm`.

    Outside this event DP-FTRL is Noisy-FTRL, for which all else here holds. Exact second moments
    E|g_t|^2 = tr(H) E[d^T H d] + 2 E[d^T H^2 d] + sigma^2 tr(H), d = theta_t - theta*, Markov and a union:
    every constant is explicit, but the bound falls only as clip_norm^-2. The paper's Theorem D.4 falls
    exponentially, with a constant that it does not give: see `theorem_d13`.

    Args:
        problem: one example a step.
        noise, rho: as for `trajectory`; `clip_norm` scales the noise of a strategy too.
        steps: >= 1.
        clip_norm: G, > 0.
        displacement: theta_0 - theta*, shape (d,); by default 0.

    Returns:
        In [0, 1]; 1 says nothing.

    Raises:
        ValueError: if an argument is out of range, or batches have more than one example.
    """
    if problem.batch_size != 1:
        raise ValueError(
            f"batch_size={problem.batch_size}: single gradients are clipped; take one example a step."
        )
    values = np.asarray(problem.eigenvalues)
    trace, variance = float(values.sum()), problem.residual_std**2
    total = 0.0
    for squares in trajectory_squares(
        problem, noise, steps=steps, displacement=displacement, rho=rho, clip_norm=clip_norm
    )[:-1]:
        total += trace * float(values @ squares) + 2.0 * float(values**2 @ squares) + variance * trace
    return min(1.0, total / moderate("clip_norm", clip_norm) ** 2)


def half_exponential_decay(noise: Endless, *, steps: int, decay_rate: float) -> float:
    """The least C for which the first `steps` noise coefficients decay half-exponentially, Definition D.3.

    |beta_0| (1 - nu)^(tau / 2) + … + |beta_tau| <= C (1 - nu)^(tau / 2) for all tau, which says
    sum_k |beta_k| (1 - nu)^(-k / 2) <= C. Theorems D.4 and D.13 ask for a C that does not grow with
    the steps.

    Args:
        noise: without horizon.
        steps: T, >= 1.
        decay_rate: nu, in (0, 1).

    Raises:
        ValueError: if an argument is out of range.
    """
    n, kept = positive_int("steps", steps), math.log1p(-fraction("decay_rate", decay_rate))
    if n > MOST_STEPS:
        raise ValueError(
            f"steps={n} must be at most {MOST_STEPS:,}: take fewer, and see how C grows with them."
        )
    beta = spectrum(noise).noise.at(n).correlate(np.eye(1, n)[0])
    with np.errstate(divide="ignore", over="ignore"):
        return float(np.exp(np.log(np.abs(beta)) - 0.5 * kept * np.arange(n)).sum())


@dataclass(frozen=True)
class TheoremD13:
    """The clip norm and the largest learning rate of paper 000, Theorem D.13.

    Attributes:
        clip_norm: G, which no gradient exceeds with probability 1 - p.
        largest_learning_rate: of the theorem; the problem's own must not exceed it.
    """

    clip_norm: float
    largest_learning_rate: float


def theorem_d13(
    problem: LinearRegression,
    noise: Any,
    *,
    steps: int,
    probability: float,
    rho: float,
    displacement: ArrayLike,
    constant: float = 1.0,
    decay_rate: float | None = None,
) -> TheoremD13:
    """The event of Theorem D.13: with probability 1 - p no gradient of `steps` steps is clipped.

    It holds for noise with `half_exponential_decay`, which is not checked here, as its constant is not named.
    The theorem has an unnamed universal constant C, and c = 4 C: the numbers say how things scale, and no
    more, until a value of C is proven.

    Args:
        problem: one example a step.
        noise: without horizon.
        steps: T, >= 1.
        probability: p, in (0, 1).
        rho: > 0, of zCDP.
        displacement: theta_0 - theta*, shape (d,).
        constant: C, > 0.
        decay_rate: nu~ of half-exponential decay (Definition D.3), at most the smallest eigenvalue mu; by
            default mu.

    Raises:
        ValueError: if an argument is out of range.
    """
    values = np.asarray(problem.eigenvalues)
    smallest, moment = float(values.min()), float(values.sum() + 2.0 * values.max())
    rate = smallest if decay_rate is None else moderate("decay_rate", decay_rate)
    if rate > smallest:
        raise ValueError(f"decay_rate={rate} must be at most the smallest eigenvalue {smallest}.")
    constant = moderate("constant", constant)
    found = spectrum(noise)
    log = math.log(positive_int("steps", steps) / fraction("probability", probability))
    sigma, eta = problem.residual_std, problem.learning_rate
    distance = math.sqrt(float(problem.start(displacement).sum()))
    longest = max(distance, math.sqrt(eta * moment / smallest) * sigma, sigma / math.sqrt(moment))
    absolute = float(np.abs(found.noise.at(steps).correlate(np.eye(1, steps)[0])).sum())
    scale = 8.0 * constant**2 * moment**2 * len(values) * (found.gamma * absolute) ** 2 * log**5
    return TheoremD13(
        4.0 * constant * moment * longest * log**2.5,
        min(1.0 / (constant * moment * log), rate * moderate("rho", rho) / scale),
    )


def finite_time_rates(
    eigenvalues: ArrayLike, *, steps: int, rho: float, distance: float, residual_std: float
) -> tuple[float, float]:
    """Orders of E[F(theta_T)] - F* at the best learning rate: independent and nu-damped noise.

    kappa d_eff (d tr(H) D^2 / (rho T) + d sigma^2 / (rho T) + sigma^2 / T) and
    kappa d_eff (kappa d_eff tr(H) D^2 / (rho T^2) + kappa d_eff sigma^2 / (rho T^2) + sigma^2 / T), in
    units of ||H||, without constants, logarithms and terms that fall exponentially.

    Args:
        eigenvalues: of H, shape (d,), > 0.
        steps: T, >= 1.
        rho: > 0.
        distance: |theta_0 - theta*|, >= 0.
        residual_std: sigma_sgd, >= 0.

    References:
        Paper 000, Section 2.3 (b) and Corollaries D.14 and D.15.
    """
    effective, values = effective_dimension(eigenvalues), np.asarray(eigenvalues, dtype=np.float64)
    distance, residual_std = at_least("distance", distance), at_least("residual_std", residual_std)
    largest, d, rho = float(values.max()), len(values), moderate("rho", rho)
    condition = largest / float(values.min())
    t, signal = positive_int("steps", steps), float(values.sum()) * distance**2
    spread = (signal + residual_std**2) / (rho * t)
    own = residual_std**2 / t
    lead = condition * effective
    return lead * (d * spread + own), lead * (condition * effective / t * spread + own)


def _small_steps(problem: LinearRegression) -> tuple[Array, float]:
    values, eta = np.asarray(problem.eigenvalues), problem.learning_rate
    moment = float(values.sum() + 2.0 * values.max())
    if problem.batch_size != 1 or eta * moment >= 1.0:
        raise ValueError(
            f"learning_rate={eta} must be below 1 / (tr(H) + 2 max eigenvalue) = {1.0 / moment:.6g}, with one"
            " example a step: the theorem is not proven beyond. `trajectory` is exact there too."
        )
    return values, eta
