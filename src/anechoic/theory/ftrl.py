"""Private convex optimisation by follow-the-regularised-leader on noisy prefix sums of gradients.

w_{t+1} = argmin over W of <noisy sum of g_0 … g_t, w> + Psi(w) / eta_t. The noisy sums are what a mechanism
releases, and everything after them is post-processing: the guarantee of the mechanism covers *all* iterates,
for every loss, smooth or not. (Paper 001 claims more for the last iterate, with independent noise; that is
false: 'Errata', P1. What holds for the last iterate alone is `last_iterate_rho`.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import digamma

from anechoic._validate import Array, at_least, finite_array, moderate, positive_int
from anechoic.mechanism.mechanism import Mechanism
from anechoic.theory.lq_noise import LqMechanism
from anechoic.theory.mirror import AllSpace, Domain, Euclidean, Potential, mirror_step

# Relative excess of a gradient over the promised bound that rounding may bring about.
ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class FTRLRun:
    """What a run released.

    Attributes:
        iterates: w_0 … w_T, shape (T + 1, d); covered as a whole by the mechanism's guarantee.
        average: mean of w_0 … w_{T-1}, the point that regret bounds speak of.
        clipped: share of contributions that were longer than the clip norm.
    """

    iterates: Array
    average: Array
    clipped: float


@dataclass(frozen=True, eq=False)
class PrivateFTRL:
    """The algorithm, for any mechanism of this library.

    Guarantee: that of `mechanism`, for all iterates together, adaptively: each gradient may depend on all
    earlier iterates. `mechanism.report()` says it; whoever gives the gradients promises the participation.

    Args:
        mechanism: a `Mechanism`, or an `LqMechanism` for gradients bounded in l_q. Its `expected_batch_size`
            divides the noisy sums; strategies.Identity is the paper's Algorithm 1, independent noise in the
            gradients, and strategies.Output has it in the prefix sums.
        rate: eta, > 0, or a function of the step t = 0, 1, … for anytime step sizes. It must fall or stay.
        potential, domain: of `mirror_step`.
        step: in place of `mirror_step`, a function of the noisy sum and the rate that gives the next iterate,
            of the dimension of the sum or another; it is post-processing, and must not see data.
            ``lambda y, rate: theory.l1_step(y, rate, radius)`` stays in an l_1 ball.
        lipschitz: if given, a gradient longer than this is refused instead of clipped: the loss breaks what
            was promised of it.

    Raises:
        ValueError: if an argument is out of range.
    """

    mechanism: Mechanism | LqMechanism
    rate: float | Callable[[int], float]
    potential: Potential = Euclidean()  # noqa: RUF009 - without state
    domain: Domain = AllSpace()  # noqa: RUF009 - without state
    lipschitz: float | None = None
    step: Callable[[Array, float], ArrayLike] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, Mechanism | LqMechanism):
            raise ValueError(
                f"mechanism={self.mechanism!r} is no Mechanism: make one with anechoic.calibrate."
            )
        if not callable(self.rate):
            moderate("rate", self.rate)
        if self.lipschitz is not None:
            moderate("lipschitz", self.lipschitz)
        if isinstance(self.mechanism, Mechanism) and self.mechanism.grid_bits is not None:
            raise ValueError(
                f"grid_bits={self.mechanism.grid_bits}: sums here are floating-point numbers. Calibrate the"
                " mechanism without grid_bits."
            )

    def run(
        self,
        gradients: Callable[[int, Array], ArrayLike],
        *,
        dimension: int,
        steps: int | None = None,
        **options: Any,
    ) -> FTRLRun:
        """Run `steps` steps.

        Args:
            gradients: called with t and w_t, gives the gradients of the units of batch t, shape
                (units, dimension) or (dimension,) for one. Each is clipped to the mechanism's clip norm.
            dimension: d.
            steps: at most the mechanism's n, and by default all.
            options: of the noise stream, such as `key`; `seed` for an `LqMechanism`.

        Raises:
            ValueError: if gradients have another shape, are not finite, or break the Lipschitz promise.
        """
        positive_int("dimension", dimension)
        n = self.mechanism.steps if steps is None else positive_int("steps", steps)
        if n > self.mechanism.steps:
            raise ValueError(
                f"steps={n} exceeds the mechanism's {self.mechanism.steps}: its noise ends there."
            )
        noise, batch = self._noise(dimension, options)
        total = np.zeros(dimension)
        rate = self._rate(0, math.inf)
        iterates = [self._stepped(total, rate)]
        long = units = 0
        for t in range(n):
            given = np.atleast_2d(np.asarray(gradients(t, iterates[-1].copy()), dtype=np.float64))
            clipped, count = self._clipped(t, given, dimension)
            long, units = long + count, units + len(given)
            total = total + (clipped + next(noise)) / batch
            rate = self._rate(t, rate)
            iterates.append(self._stepped(total, rate))
        all_of_them = np.array(iterates)
        return FTRLRun(all_of_them, all_of_them[:-1].mean(axis=0), long / max(1, units))

    def _noise(self, dimension: int, options: dict[str, Any]) -> tuple[Iterator[Array], float]:
        """The rows to be added to sums of clipped gradients, and what divides the sums."""
        if isinstance(self.mechanism, LqMechanism):
            return iter(self.mechanism.rows(dimension, **options)), 1.0
        stream = self.mechanism.stream(dimension, **options)

        def rows() -> Iterator[Array]:
            state = stream.init()
            while True:
                row, state = stream.next(state)
                yield np.asarray(row)

        return rows(), self.mechanism.expected_batch_size

    def _stepped(self, total: Array, rate: float) -> Array:
        if self.step is None:
            return mirror_step(total, rate, self.potential, self.domain)
        return finite_array("step(y, rate)", self.step(total.copy(), rate))

    def _rate(self, t: int, before: float) -> float:
        rate = moderate("rate", self.rate(t) if callable(self.rate) else self.rate)
        if rate > before * (1.0 + ROUNDING):
            raise ValueError(
                f"rate={rate:.6g} at step {t} is above the {before:.6g} before it: it must not rise."
            )
        return rate

    def _clipped(self, t: int, given: Array, dimension: int) -> tuple[Array, int]:
        if given.shape[1] != dimension or not np.isfinite(given).all():
            raise ValueError(
                f"gradients of step {t} have shape {given.shape} or entries that are not finite:"
                f" ({dimension},) or (units, {dimension}) is needed."
            )
        lq = self.mechanism if isinstance(self.mechanism, LqMechanism) else None
        norms = np.linalg.norm(given, ord=lq.noise.q if lq else 2.0, axis=1)
        largest = float(norms.max(initial=0.0))
        if self.lipschitz is not None and largest > self.lipschitz * (1.0 + ROUNDING):
            raise ValueError(
                f"a gradient of step {t} has norm {largest:.6g}, more than lipschitz={self.lipschitz:g}: the"
                " loss is not Lipschitz with that constant. Give the right one, or leave it out to clip."
            )
        clip = lq.norm if lq else self.mechanism.clip_norm  # type: ignore[union-attr]
        if lq and len(given) > 1:
            raise ValueError(f"step {t} has {len(given)} gradients: an LqMechanism takes one a step.")
        factors = np.minimum(1.0, clip / np.maximum(norms, 1e-300))
        return np.asarray(factors @ given), int((norms > clip * (1.0 + ROUNDING)).sum())


def last_iterate_rho(
    *, steps: int, position: int, smoothness: float, rate: float, lipschitz: float, noise_std: float
) -> float:
    """rho of zCDP of releasing only the last iterate of projected noisy SGD: amplification by iteration.

    w_{t+1} = Proj(w_t - eta (grad f(w_t, z_t) + noise_std N(0, I))), one example a step, independent noise.
    For convex beta-smooth losses and eta <= 2 / beta a step without noise does not expand distances, so that
    the difference that one example made, at most 2 eta L, can be spread evenly over the noise of its own and
    all later steps: D_alpha <= alpha (2 L)^2 / (2 noise_std^2 (steps - position)).

    Guarantee: for replacing the example of step `position` by another, and for that example only; the last
    step has no amplification. Earlier noise is not counted: it need not survive ('Errata', P1).

    Args:
        steps: T, >= 1.
        position: t of the example, 0 … T - 1.
        smoothness: beta, > 0, of every loss.
        rate: eta, > 0, at most 2 / beta.
        lipschitz: L, > 0: the norm of every gradient, which is not clipped (clipping breaks smoothness).
        noise_std: std of one coordinate of the noise added to a gradient, > 0.

    Raises:
        ValueError: if an argument is out of range, or the step may expand distances.

    References:
        Feldman, Mironov, Talwar and Thakurta, Privacy Amplification by Iteration (FOCS 2018), Theorem 23.
    """
    steps = positive_int("steps", steps)
    place = positive_int("position", position, minimum=0)
    if place >= steps:
        raise ValueError(f"position={place} must be below steps={steps}.")
    beta, eta = moderate("smoothness", smoothness), moderate("rate", rate)
    if eta > 2.0 / beta * (1.0 + 1e-12):
        raise ValueError(
            f"rate={eta} must be at most 2 / smoothness = {2.0 / beta:.6g}: beyond it a step may"
            " expand distances,"
            " and nothing is known of the last iterate alone. Account for all iterates with a Mechanism."
        )
    shift = 2.0 * moderate("lipschitz", lipschitz)
    return shift**2 / (2.0 * moderate("noise_std", noise_std) ** 2 * (steps - place))


def contraction_rho(*, steps: int, fade: float, sensitivity: float, noise_std: float) -> float:
    """rho of the *last* example for quadratics, exactly: why noise of the past must not be counted.

    Gradients beta w + z: theta_{t+1} = a theta_t - eta (z_t + noise), a = fade = 1 - eta beta. If the last z
    moves by `sensitivity`, the state moves by eta times that, with the variance
    eta^2 noise_std^2 sum_{k < steps} a^(2k). Paper 001 claims 4 L^2 / (steps noise_std^2) alpha, which is
    right for a = 1 only (errata P1).

    Args:
        steps: >= 1.
        fade: a, in [0, 1].
        sensitivity: how far the last gradient moves, > 0.
        noise_std: > 0.
    """
    if not at_least("fade", fade) <= 1.0:
        raise ValueError(f"fade={fade} must lie in [0, 1]: it is 1 - eta beta.")
    steps = positive_int("steps", steps)
    kept = (
        float(steps)
        if fade == 1.0
        else -math.expm1(2 * steps * math.log(fade)) / (1 - fade**2)
        if fade
        else 1.0
    )
    return moderate("sensitivity", sensitivity) ** 2 / (2.0 * moderate("noise_std", noise_std) ** 2 * kept)


def last_iterate_excess(
    steps: int, *, gradient_bound: float, distance: float, rate: float | None = None
) -> float:
    """E F(w_T) - F(w*) of FTRL for convex F, smooth or not, at most: Theorem A.3 of paper 001.

    eta G^2 (1 + H_{T-1}) / 2 + D^2 / (T eta), H the harmonic numbers (printed: log T, errata P16).
    Gradients are fresh and unbiased given the past, and noise counts as a part of them: for independent noise
    of std s in each of d entries G^2 = L^2 + d s^2.

    Args:
        steps: T, >= 1.
        gradient_bound: G, > 0, root of the largest E|g_t|^2 in the dual norm.
        distance: D, > 0, root of Psi(w*) - Psi(w_1), Psi 1-strongly convex and least at w_1.
        rate: eta, > 0, of every step; None for D / (G sqrt(T)).

    Raises:
        ValueError: if an argument is out of range.
    """
    return _excess(steps, gradient_bound, distance, rate, last=True)


def average_excess(steps: int, *, gradient_bound: float, distance: float, rate: float | None = None) -> float:
    """The mean of E F(w_t) - F(w*) over all steps, and E F - F(w*) at the average iterate, at most.

    eta G^2 / 2 + D^2 / (T eta): Eq. (4) of paper 001. Arguments as for `last_iterate_excess`.
    """
    return _excess(steps, gradient_bound, distance, rate, last=False)


def _excess(steps: int, gradient_bound: float, distance: float, rate: float | None, *, last: bool) -> float:
    t, bound = positive_int("steps", steps), moderate("gradient_bound", gradient_bound)
    away = moderate("distance", distance)
    eta = away / (bound * math.sqrt(t)) if rate is None else moderate("rate", rate)
    harmonic = float(digamma(t) + np.euler_gamma) if last else 0.0
    return eta * bound**2 * (1.0 + harmonic) / 2.0 + away**2 / (t * eta)


def anytime_excess(steps: int, *, gradient_bound: float, distance: float) -> float:
    """The **order** G D log(T) / sqrt(T) of E F(w_T) - F(w*) at every T at once, for rates D / (G sqrt(t)).

    Theorem A.4 of paper 001 names no constant; D^2 bounds Psi(u) - Psi(v) over the domain. With
    `last_iterate_excess` it is Theorem 5.1. Arguments as there, steps >= 2.
    """
    t = positive_int("steps", steps, minimum=2)
    scale = moderate("gradient_bound", gradient_bound) * moderate("distance", distance)
    return scale * math.log(t) / math.sqrt(t)


def population_risk_orders(
    n: int, dimension: int, epsilon: float, *, lipschitz: float = 1.0, diameter: float = 1.0
) -> dict[str, float]:
    """Table 1 of paper 001: **orders** of the excess population risk for convex losses, without logarithms.

    Args:
        n: samples, >= 1.
        dimension: d, >= 1.
        epsilon: > 0.
        lipschitz, diameter: L, D > 0.

    Returns:
        "best known", L D max(1 / sqrt(n), sqrt(d) / (epsilon n)), of smooth and non-smooth losses: that of
        Feldman et al. (2019), Bassily et al. (2019) and, in linear time, of the paper, whose proof of privacy
        does not hold (errata, P1); and "noisy SGD, sampled", of Bassily et al. (2014).
    """
    n, d = positive_int("n", n), positive_int("dimension", dimension)
    epsilon = moderate("epsilon", epsilon)
    scale = moderate("lipschitz", lipschitz) * moderate("diameter", diameter)
    return {
        "best known": scale * max(1.0 / math.sqrt(n), math.sqrt(d) / (epsilon * n)),
        "noisy SGD, sampled": scale**2 * d**0.25 / math.sqrt(n * epsilon),
    }
