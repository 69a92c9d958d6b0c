"""The best noise for a learning problem, and the best member of each practical class, against one bound.

The privacy part of F_inf is s^2 = (clip_norm / batch)^2 / (2 rho) times loss^2, with
loss = gamma_inf sqrt(mean |B|^2 Psi): sensitivity times error, as everywhere in this library.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
from scipy.optimize import OptimizeResult, minimize, minimize_scalar

from anechoic._validate import Array, moderate, positive_int
from anechoic.algebra.circle import Circle, gap_power
from anechoic.lower_bounds.result import Bound
from anechoic.optimize.result import Optimized
from anechoic.strategies import BLT, BandedInverse, BandedToeplitz, endless, make_endless
from anechoic.strategies.endless import Endless
from anechoic.strategies.endless_mixture_root import MixtureRoot
from anechoic.theory.problems import LearningProblem
from anechoic.theory.spectra import Spectrum, poisson_means, spectrum
from anechoic.theory.trigonometric import best_power, spectral_factor

BOUND = "Cauchy-Schwarz by frequency: gamma^2 is the mean of 1/|B|^2"
COVERS = "every causal Toeplitz noise without horizon; every C, in the average over many steps"
# Spread of the dampings tried before the best one is refined.
GRID = 25
# A decay of C and one of C^-1 that are nearer than this cancel.
CANCEL = 1e-10


@dataclass(frozen=True)
class OptimizedNoise(Optimized):
    """An optimised strategy without horizon; `strategy.at(n)` is the one of n steps.

    Attributes:
        strategy: `Endless`, taken by `EndlessMechanism` and `calibrate_endless`.
        loss: gamma_inf sqrt(mean |B|^2 Psi), root scale: see `suboptimality`.
        problem: what it was optimised for.
    """

    strategy: Endless  # type: ignore[assignment]
    problem: LearningProblem | None = None

    def suboptimality(self, rho: float, clip_norm: float = 1.0) -> float:
        """F_inf at rho-zCDP, with the floor of the problem."""
        if self.problem is None:
            raise ValueError("problem=None: give the learning problem that the noise was optimised for.")
        scale = moderate("clip_norm", clip_norm) / self.problem.batch_size
        return self.problem.floor + scale**2 * self.loss**2 / (2.0 * moderate("rho", rho))


def asymptotic_loss(problem: LearningProblem, noise: Endless) -> float:
    """gamma_inf sqrt(mean |B|^2 Psi): sensitivity times stationary error, root scale."""
    found = spectrum(noise)
    return found.gamma * math.sqrt(float(problem.weights @ found.exposure(problem.gaps)))


def optimal_noise(problem: LearningProblem) -> OptimizedNoise:
    """Return the noise of least F_inf, in closed form: |B|^4 is proportional to 1 / Psi, B minimum phase.

    C is the square root of the mixture of discounted sums that the problem is (`LearningProblem.workload`).
    Its memory grows with the steps; `blt_noise` is the practical form.

    Args:
        problem: any.

    Returns:
        A `MixtureRoot`; the gap is that of rounding, or of merging more than 256 modes.

    Example:
        >>> from anechoic import calibrate_endless
        >>> from anechoic.theory import LinearRegression
        >>> best = optimal_noise(LinearRegression([1.0, 0.5, 0.25], learning_rate=0.1))
        >>> mechanism = calibrate_endless(best.strategy, batch_size=1, epsilon=1.0, delta=1e-6)
        >>> best.gap < 1e-9
        True
    """
    started = time.perf_counter()
    return _finish(problem, problem.optimal_strategy, 1, started)


def damped_noise(problem: LearningProblem) -> OptimizedNoise:
    """The damped square root (nu-DP-FTRL, paper 000, Eq. 7) of the best damping nu.

    Where steps overshoot (a gap above 1) nu above 1 is tried too: C = (1 - (1 - nu) x)^(-1/2) alternates.
    """
    return _one_parameter(
        problem, lambda nu: endless.damped(nu) if nu < 1.0 else MixtureRoot([1.0], [1.0 - nu])
    )


def anti_pgd_noise(problem: LearningProblem) -> OptimizedNoise:
    """Damped Anti-PGD, beta = (1, -(1 - nu)), of the best nu (paper 000, Table 2 and Proposition C.24)."""
    return _one_parameter(problem, lambda nu: make_endless(BandedInverse(2, [1.0, nu - 1.0])))


def independent_noise(problem: LearningProblem) -> OptimizedNoise:
    """C = I (Noisy-SGD), measured like the others."""
    started = time.perf_counter()
    return _finish(problem, make_endless(BandedInverse(1, [1.0])), 1, started)


def blt_noise(problem: LearningProblem, *, buffers: int = 6) -> OptimizedNoise:
    """Return the best BLT with `buffers` buffers: a noise stream that needs as many rows of memory.

    Decays of C and of C^-1 interlace, and log loss is minimised over their logarithms by L-BFGS with its
    gradient by frequency. It may stop in a local optimum: `gap` says how far from the best of all noise.
    Buffers have decays in [0, 1). For steps that overshoot (gaps near 2) take `banded_inverse_noise`.

    Args:
        problem: any.
        buffers: 1 to 20.

    Raises:
        ValueError: if `buffers` is out of range.
    """
    started = time.perf_counter()
    points = problem.points()
    slowest = problem.slowest
    strategy, _, evaluations = best_blt(points, problem.density(points.half_sines), slowest, buffers)
    return _finish(problem, strategy, evaluations, started)


def best_blt(points: Circle, density: Array, slowest: float, buffers: int) -> tuple[Endless, Array, int]:
    """The BLT of least mean(density |B|^2) mean(1 / |B|^2) that L-BFGS finds, its rates, and evaluations.

    Args:
        points: of the circle.
        density: > 0 at the points.
        slowest: > 0, the angle below which `density` is flat.
        buffers: 1 to 20.
    """
    if positive_int("buffers", buffers) > 20:
        raise ValueError(f"buffers={buffers} must be at most 20: more than about 8 gain nothing in float64.")
    weights, half = points.weights, points.half_sines
    evaluations = 0

    def objective(theta: Array) -> tuple[float, Array]:
        nonlocal evaluations
        evaluations += 1
        rates = np.cumsum(np.exp(theta))
        decay = np.exp(-rates)
        powers = gap_power(-np.expm1(-rates)[:, None], half)
        slopes = (-2.0 * (1.0 - decay)[:, None] + 4.0 * half) / powers * -decay[:, None]  # d log / d rate
        signs = np.where(np.arange(len(rates)) % 2 == 0, 1.0, -1.0)  # C has the even ones, C^-1 the odd
        power = np.exp(signs @ np.log(powers))
        error, norm = weights * power * density, weights / power
        value = math.log(error.sum()) + math.log(norm.sum())
        by_rate = signs * (slopes @ (error / error.sum() - norm / norm.sum()))
        return value, np.cumsum(by_rate[::-1])[::-1] * np.exp(theta)

    def descent(low: float, high: float) -> OptimizeResult:
        rates = np.geomspace(low * slowest, max(high, 2 * low * slowest), 2 * buffers)
        start = np.log(np.diff(rates, prepend=0.0))
        options = {"maxiter": 2000, "ftol": 1e-14, "gtol": 1e-10}
        bounds = [(-40.0, 5.0)] * len(start)
        return minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)

    starts = ((0.3, 2.0), (1.0, 1.0), (0.3, 5.0))
    best = min((descent(low, high) for low, high in starts), key=lambda found: found.fun)
    rates = np.cumsum(np.exp(best.x))
    return blt_of(rates), rates, evaluations


def blt_of(rates: Array) -> Endless:
    """The BLT of rates that rise: decays e^-rate of C and of C^-1 by turns. Neighbours that agree cancel."""
    kept: list[float] = []
    for decay in np.exp(-rates).tolist():
        if kept and kept[-1] - decay <= CANCEL:
            kept.pop()
        else:
            kept.append(decay)
    if not kept:
        return make_endless(BandedInverse(1, [1.0]))
    return make_endless(BLT.from_poles(1, kept[::2], kept[1::2]))


def banded_noise(problem: LearningProblem, *, bands: int) -> OptimizedNoise:
    """The best banded C: the global optimum, as the mean of Psi / R is convex in the power R = |C|^2.

    That it is the optimum is proven to 1e-7 by duality each time, or an error is raised: `best_power`.

    Args:
        problem: any.
        bands: coefficients of C, 1 to 256.

    Raises:
        ValueError: if `bands` is out of range.
    """
    return _moving_average(problem, bands, lambda c: make_endless(BandedToeplitz(len(c), c)), inverse=False)


def banded_inverse_noise(problem: LearningProblem, *, bands: int) -> OptimizedNoise:
    """Return the best noise of finite memory, C^-1 with `bands` bands: the global optimum, convex in |B|^2.

    Args:
        problem: any.
        bands: coefficients beta of C^-1, 1 to 256. Two of them are `anti_pgd_noise`.

    Raises:
        ValueError: if `bands` is out of range.
    """
    return _moving_average(problem, bands, lambda c: make_endless(BandedInverse(len(c), c)), inverse=True)


def _moving_average(
    problem: LearningProblem, bands: int, make: Callable[[Array], Endless], *, inverse: bool
) -> OptimizedNoise:
    started = time.perf_counter()
    bands = positive_int("bands", bands)
    if bands > 256:
        raise ValueError(f"bands={bands} must be at most 256: blt_noise reaches back with less memory.")

    def rows(angles: Array) -> tuple[Array, Array]:
        density = problem.density(np.square(np.sin(angles / 2)))
        return (density, np.ones_like(density)) if inverse else (np.ones_like(density), density)

    power, evaluations = best_power(bands, rows, problem.slowest / 4, 2.0 * math.pi / bands)
    factor = spectral_factor(power)
    return _finish(problem, make(factor / factor[0]), evaluations, started)


def _one_parameter(problem: LearningProblem, make: Callable[[float], Endless]) -> OptimizedNoise:
    started = time.perf_counter()
    gaps = problem.gaps
    points = problem.points()
    evaluations = 0

    def log_loss(log_nu: float, over: bool) -> float:
        nonlocal evaluations
        evaluations += 1
        try:
            found = Spectrum(made(log_nu, over))
            error = problem.weights @ poisson_means(gaps, points, found.power(points.angles))
            return math.log(found.gamma) + 0.5 * math.log(float(error))
        except ArithmeticError:
            if over:  # alternates for longer than any points of the circle resolve
                return math.inf
            raise

    def made(log_nu: float, over: bool) -> Endless:
        return make(2.0 - math.exp(log_nu) if over else math.exp(log_nu))

    # the points of the problem resolve dampings that are not far below the slowest mode
    grid = np.linspace(math.log(problem.slowest / 30.0), math.log1p(-1e-6), GRID)
    tried = []
    for over in (False, True) if gaps.max() > 1.0 else (False,):
        tried.append((*least_near(partial(log_loss, over=over), grid, within=1e-8), over))
    _, best, over = min(tried)
    return _finish(problem, made(best, over), evaluations, started)


def least_near(function: Callable[[float], float], grid: Array, *, within: float) -> tuple[float, float]:
    """The least value on a grid, or between the neighbours of that point, and where."""
    values = [function(float(x)) for x in grid]
    i = int(np.argmin(values))
    ends = (grid[max(i - 1, 0)], grid[min(i + 1, len(grid) - 1)])
    found = minimize_scalar(function, bounds=ends, method="bounded", options={"xatol": within})
    return min((values[i], float(grid[i])), (float(found.fun), float(found.x)))


def _finish(problem: LearningProblem, strategy: Endless, evaluations: int, started: float) -> OptimizedNoise:
    loss = asymptotic_loss(problem, strategy)
    bound = Bound(problem.smallest_loss, BOUND, COVERS)
    found = OptimizedNoise(
        strategy, loss, None, None, evaluations, time.perf_counter() - started, problem=problem
    )
    return cast("OptimizedNoise", found.against(bound))
