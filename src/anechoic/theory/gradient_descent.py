"""Gradient descent with linearly correlated noise on smooth objectives: what a factorisation costs.

x_{t+1} = x_t - gamma (grad f(x_t) + (b_{t+1} - b_t)^T Z), with b_t the rows of B = A_pre C^-1 counted from 1,
b_0 = 0, and rows of Z of E|z|^2 <= sigma^2 (paper 004, Eq. 8). Restarts of a virtual sequence every
tau = 1 / (gamma L) steps, up to logarithms, show that only differences of rows within tau steps count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from anechoic import workloads
from anechoic._validate import Array, at_least, moderate, positive_int
from anechoic.losses.dispatch import error
from anechoic.strategies import BandedToeplitz, FullTree, Identity, Output, Tree
from anechoic.strategies.base import Strategy
from anechoic.theory.problems import LinearRegression
from anechoic.theory.suboptimality import trajectory_squares


@dataclass(frozen=True)
class RestartTerms:
    """Sums of squared differences of rows of B, and what the theorems make of them.

    Attributes:
        steps: T.
        period: tau.
        within: sum_t |b_t - b_s|^2 with s the last restart up to t.
        across: sum over restarts t of |b_t - b_{t - tau}|^2.
        last: |b_s|^2 at the last restart; 0 if there is none.
        total: sum_t |b_t|^2, the squared Frobenius norm of B.
    """

    steps: int
    period: int
    within: float
    across: float
    last: float
    total: float

    @property
    def restart(self) -> float:
        """|Lambda_tau B|_F^2 = within / tau + across, the objective of DP-MF+ (Eq. 15)."""
        return self.within / self.period + self.across

    def nonconvex(self, sigma: float = 1.0) -> float:
        """The noise term of Theorem 4.6 (average squared gradient), without its constant."""
        return sigma**2 * self.restart / (self.steps * self.period)

    def convex(self, smoothness: float, sigma: float = 1.0) -> float:
        """The noise term of Theorem 4.7 (average suboptimality), without its constant and logarithms."""
        return sigma**2 * (self.restart + self.last) / (self.steps * smoothness * self.period)

    def online(self, rate: float, lipschitz: float, sigma: float = 1.0) -> float:
        """The noise term of inequality (5), gamma sigma L~ |B|_F / sqrt(T): what DP-MF minimises."""
        return rate * sigma * lipschitz * math.sqrt(self.total / self.steps)


def restart_terms(strategy: Strategy, period: int) -> RestartTerms:
    """The terms for any strategy, square or not; sensitivity is left to sigma (sigma = sens * zeta).

    Args:
        strategy: C, of T steps.
        period: tau, >= 1.

    Raises:
        ValueError: if `period` is not an integer >= 1.

    References:
        Paper 004, Theorems 4.6 and 4.7, Eqs. (5) and (15).
    """
    period, n = positive_int("period", period), strategy.n
    sums = workloads.prefix_sum(n)
    per_step = np.square(error(workloads.restart_differences(sums, period=period), strategy).per_step)
    plain = np.square(error(sums, strategy).per_step)
    ends = np.arange(1, n + 1) % period == 0
    restarts = n // period
    return RestartTerms(
        n,
        period,
        float(per_step[~ends].sum()) * period,
        float(per_step[ends].sum()),
        float(plain[restarts * period - 1]) if restarts else 0.0,
        float(plain.sum()),
    )


def nonconvex_bound(
    strategy: Strategy, *, smoothness: float, period: int, start_gap: float, sigma: float
) -> float:
    """Theorem 4.6 with its constants: mean over t <= T of E|grad f(x_t)|^2 is at most this.

    8 (f(x_0) - f*) / (gamma (T + 1)) + sigma^2 (4 gamma^2 L^2 within + 40 gamma L across) / (T + 1), for
    gamma = 1 / (L tau) (Appendix C.2).

    Args:
        strategy: C, of T steps.
        smoothness: L, > 0.
        period: tau >= 4; the learning rate is 1 / (L tau).
        start_gap: f(x_0) - f*, >= 0.
        sigma: sens(C) times the root of E|z|^2, >= 0.

    Raises:
        ValueError: if an argument is out of range.
    """
    smoothness = moderate("smoothness", smoothness)
    period = positive_int("period", period, minimum=4, remedy="The theorem has gamma <= 1 / (4 L).")
    start_gap, sigma = at_least("start_gap", start_gap), at_least("sigma", sigma)
    terms, rate = restart_terms(strategy, period), 1.0 / (smoothness * period)
    noise = 4.0 * (rate * smoothness) ** 2 * terms.within + 40.0 * rate * smoothness * terms.across
    return (8.0 * start_gap / rate + sigma**2 * noise) / (strategy.n + 1)


def convex_bound(
    strategy: Strategy, *, smoothness: float, period: int, distance: float, sigma: float
) -> float:
    """Theorem 4.7 with its constants: mean over t <= T of E f(x_t) - f* is at most this, for convex f.

    4 (|x_0 - x*|^2 / gamma + 3 gamma sigma^2 (L gamma within + across + last)) / (T + 1) for
    gamma = 1 / (8 L tau log2 T) (Appendix C.3; its steps need gamma <= 1 / (8 L), and a restart more than
    once).

    Args:
        strategy: C, of T >= 2 steps.
        smoothness: L, > 0.
        period: tau, >= 1; the learning rate follows.
        distance: |x_0 - x*|, >= 0.
        sigma: sens(C) times the root of E|z|^2, >= 0.

    Raises:
        ValueError: if an argument is out of range.
    """
    smoothness = moderate("smoothness", smoothness)
    positive_int("steps", strategy.n, minimum=2)
    distance, sigma = at_least("distance", distance), at_least("sigma", sigma)
    terms, rate = restart_terms(strategy, period), convex_rate(strategy.n, smoothness, period)
    noise = smoothness * rate * terms.within + terms.across + terms.last
    return 4.0 * (distance**2 / rate + 3.0 * rate * sigma**2 * noise) / (strategy.n + 1)


def convex_rate(steps: int, smoothness: float, period: int) -> float:
    """gamma = 1 / (8 L tau log2 T), of `convex_bound`."""
    return 1.0 / (8.0 * smoothness * period * max(1.0, math.log2(steps)))


def pgd_bound(*, steps: int, smoothness: float, rate: float, distance: float, sigma: float) -> float:
    """Proposition 4.4 with its constants: |x_0 - x*|^2 / (gamma (T + 1)) + gamma sigma^2, B = S.

    Mean over t <= T of E f(x_t) - f* for convex, L-smooth f and independent noise of E|z|^2 <= sigma^2.

    Args:
        steps: T, >= 1.
        smoothness: L, > 0.
        rate: gamma, > 0, at most 1 / (2 L).
        distance: |x_0 - x*|, >= 0.
        sigma: >= 0.

    Raises:
        ValueError: if an argument is out of range.
    """
    start = _start(steps, smoothness, rate, distance, 2.0)
    return start + rate * at_least("sigma", sigma) ** 2


def anti_pgd_bound(*, steps: int, smoothness: float, rate: float, distance: float, sigma: float) -> float:
    """Proposition 4.5 with its constants: 2 |x_0 - x*|^2 / (gamma (T + 1)) + 4 L gamma^2 sigma^2, B = I.

    For gamma at most 1 / (4 L), as the proof in Appendix D needs (printed: 1 / (2 L), errata P17).
    Arguments as for `pgd_bound`.
    """
    start = _start(steps, smoothness, rate, distance, 4.0)
    return 2.0 * start + 4.0 * smoothness * rate**2 * at_least("sigma", sigma) ** 2


def _start(steps: int, smoothness: float, rate: float, distance: float, factor: float) -> float:
    steps, limit = positive_int("steps", steps), 1.0 / (factor * moderate("smoothness", smoothness))
    if moderate("rate", rate) > limit * (1.0 + 1e-12):
        raise ValueError(f"rate={rate} must be at most {limit:.6g} = 1 / ({factor:g} smoothness).")
    return at_least("distance", distance) ** 2 / (rate * (steps + 1))


def named_factorizations(n: int) -> dict[str, Strategy]:
    """The examples of paper 004: PGD, Anti-PGD, Chess-PGD, and trees with both of Honaker's estimators.

    Chess-PGD has B = sqrt(2) (1, 0, 1, 0, …), so that C = (1 + x) / sqrt(2). Its loss equals PGD's in the
    limit only ('Errata', P4).

    Args:
        n: steps, >= 2.
    """
    positive_int("n", n, minimum=2)
    return {
        "PGD": Identity(n),
        "Anti-PGD": Output(workloads.prefix_sum(n)),
        "Chess-PGD": BandedToeplitz(n, np.array([1.0, 1.0]) / math.sqrt(2.0)),
        "tree, online": Tree(n),
        "tree, full": FullTree(n),
    }


def gradient_norms(
    problem: LinearRegression, noise: Any, *, steps: int | None = None, displacement: ArrayLike | None = None
) -> Array:
    """E|grad F(theta_t)|^2 for t = 0 … steps, exactly: what paper 004 draws, without sampling.

    Args:
        problem: `LinearRegression` with batch_size=math.inf for exact gradients of a quadratic. Directions of
            eigenvalue 0 have no gradient: leave them out.
        noise, steps, displacement: as for `trajectory`, with the noise of a mechanism.

    Returns:
        Shape (steps + 1,).
    """
    squares = trajectory_squares(problem, noise, steps=steps, displacement=displacement)
    return np.asarray(squares @ np.square(np.asarray(problem.eigenvalues)))
