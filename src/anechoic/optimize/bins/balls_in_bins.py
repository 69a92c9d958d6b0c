"""The best non-negative Toeplitz strategy for balls-in-bins sampling: least noise std times error."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import scipy

from anechoic._validate import Array, fraction, one_of, positive_float, positive_int
from anechoic.accounting.accountant import refuse_any_noise
from anechoic.accounting.balls_in_bins.bound import BinsBound, bins_gram
from anechoic.accounting.balls_in_bins.mixture import Mixture
from anechoic.accounting.gaussian import gaussian_mu
from anechoic.algebra.threads import on_one_thread
from anechoic.losses.dispatch import error
from anechoic.losses.norms import LossNorm
from anechoic.optimize.bins.objective import BinsNoise
from anechoic.optimize.result import Optimized
from anechoic.optimize.series.banded_toeplitz import banded_toeplitz
from anechoic.optimize.series.toeplitz_objective import ToeplitzObjective
from anechoic.strategies import BandedToeplitz, ColumnNormalized, Identity
from anechoic.strategies.base import Strategy
from anechoic.workloads.base import Workload

ACCOUNTINGS = ("deterministic", "verified")
LEAST_SAMPLES = 500
#: Numbers that the samples of one direction may take.
_NUMBERS = 2**24
_JUDGED_BY = 20_000  # fresh samples by which results are compared
_SURE = 0.99  # of what independent noise costs, at most: a quick bound of its noise is that close
_RATIO, _LOWEST = 1.7, -12.0  # of neighbouring knots; log of a coefficient, over that of the diagonal
_AIMS = 20  # times that the law to sample from is adapted, at most
_LESS = 0.8  # of the noise, where no sample counts
_OPTIONS = {"maxiter": 25, "maxfun": 40, "ftol": 1e-6, "gtol": 1e-5}


@on_one_thread
def balls_in_bins(
    workload: Workload,
    *,
    bins: int,
    epsilon: float,
    delta: float,
    bands: int,
    loss: LossNorm = "rms",
    accounting: str = "deterministic",
    samples: int = 2000,
    rounds: int = 3,
    seed: int = 0,
    progress: Callable[[int, float], None] | None = None,
) -> Optimized:
    """Return the non-negative banded Toeplitz strategy of least noise std times error under balls in bins.

    The noise std s(C) for (epsilon, delta) is where the privacy profile of the mixture of bins crosses
    delta, on samples that are drawn once a round (importance sampling, both directions, common to all C):
    a smooth function with an exact gradient, ds/dC = -(d delta / dC) / (d delta / ds). L-BFGS minimises
    log s + log error on it; the next round draws new samples around what was found. At the end what the
    rounds reached, where they began, both with columns normalised, and independent noise are compared.

    Guarantee: none about privacy: calibrate the strategy. By the accounting that is named it costs no more
    than independent noise. The bound without sampling error is up to a fifth above Monte Carlo where C is
    strongly correlated.
    Deterministic in `seed`. A local minimum.

    Args:
        workload: a Toeplitz workload, n steps, with learning rates as in `banded_toeplitz`.
        bins: b >= 2; an example takes part in steps i, i + b, ….
        epsilon: > 0.
        delta: in (0, 1).
        bands: of C, whose coefficients are >= 0; 1 <= bands <= n.
        loss: "rms", "max" or "last" over the steps, or weights.
        accounting: by which the results are compared, as in `calibrate`: "deterministic", whose noise `loss`
            then bounds, or "verified", for which `loss` holds an estimate by 20,000 fresh samples.
        samples: of each direction, >= 500; fewer are drawn where they would not fit into memory.
        rounds: >= 1.
        seed: of the samples.
        progress: called with the number of evaluations and s times error.

    Returns:
        The strategy, with s times its error as `loss`; no bound is known.

    Raises:
        ValueError: for an argument out of range, or delta at least the probability of taking part at all.
        UnsupportedError: for a workload without Toeplitz factor, or more bins than can be held.

    References:
        arXiv 2410.06266, Section 4; 2601.22334.
    """
    started = time.perf_counter()
    epsilon, delta = positive_float("epsilon", epsilon), fraction("delta", delta)
    one_of("accounting", accounting, ACCOUNTINGS)
    bins = positive_int("bins", bins, minimum=2)
    bands = positive_int("bands", bands)
    objective = ToeplitzObjective(workload, (workload.n, 1), loss)  # refuses other workloads
    n = workload.n
    refuse_any_noise(delta, min(1.0, n / bins))
    if bands > n:
        raise ValueError(f"bands={bands} must be at most n={n}.")
    samples = positive_int("samples", samples, minimum=LEAST_SAMPLES)
    rounds = positive_int("rounds", rounds)
    # the square root, or what is best without amplification, to begin with
    best = banded_toeplitz(workload, bands=bands, loss=loss).strategy.coefficients[:bands]
    knots = _Knots(bands)
    x, evaluations = knots.of(best), 0
    made: list[Strategy] = [BandedToeplitz(n, knots.column(x))]
    if bands > 1:
        for turn in range(rounds):
            search = _Search(objective, knots, n, bins, epsilon, delta, samples, (seed, 0, turn), x)
            search.progress, search.evaluations = progress, evaluations
            bounds = [(_LOWEST, 1.0)] * len(x)
            found = scipy.optimize.minimize(
                search, x, jac=True, method="L-BFGS-B", bounds=bounds, options=_OPTIONS
            )
            x, evaluations = np.asarray(found.x), search.evaluations
        made.append(BandedToeplitz(n, knots.column(x)))
    made += [ColumnNormalized(strategy) for strategy in made]

    def noise_times_error(strategy: Strategy) -> float:
        gram = bins_gram(strategy, bins)
        if accounting == "deterministic":
            std = BinsBound(gram).rough_noise_std(epsilon, delta)
        else:
            drawn = max(LEAST_SAMPLES, min(_JUDGED_BY, _NUMBERS // (4 * bins)))
            std = Mixture(gram).noise_std(epsilon, delta, samples=drawn, seed=seed + 1)
        return std * error(workload, strategy).of(loss)

    judged = [(noise_times_error(c), c) for c in made]
    value, strategy = min(judged, key=lambda pair: pair[0])
    independent = noise_times_error(Identity(n))
    if value > _SURE * independent:
        value, strategy = independent, Identity(n)
    return Optimized(strategy, value, None, None, evaluations, time.perf_counter() - started)


class _Knots:
    """c_0 = 1 and c_1, …, c_{p-1} > 0, their logarithms linear in log t between t = 1, 2, 4, …, p - 1.

    With every coefficient free a minimiser fits the samples: on 2000 of them it gained a tenth that fresh
    ones did not confirm.
    """

    def __init__(self, bands: int) -> None:
        most = max(bands - 1, 1)
        knots = np.geomspace(1, most, 1 + round(math.log(most) / math.log(_RATIO)))
        self._at = np.unique(np.rint(knots).astype(int))[: bands - 1]
        # row t - 1: what every knot adds to log c_t
        units, t = np.eye(len(self._at)), np.log(np.arange(1, bands))
        rows = [np.interp(t, np.log(self._at), unit) for unit in units]
        self._shares = np.stack(rows, axis=1) if rows else np.zeros((0, 0))

    def of(self, coefficients: Array) -> Array:
        """The logarithms at the knots."""
        return np.asarray(np.log(np.maximum(coefficients[self._at] / coefficients[0], np.exp(_LOWEST))))

    def column(self, x: Array) -> Array:
        """c, shape (p,)."""
        return np.append(1.0, np.exp(self._shares @ x))

    def pullback(self, x: Array, by_column: Array) -> Array:
        """The gradient by the logarithms, from that by c."""
        return np.asarray((by_column[1:] * np.exp(self._shares @ x)) @ self._shares)


class _Search:
    """log s + log error of the coefficients at the knots, and its gradient, on the samples of one round."""

    def __init__(
        self,
        objective: ToeplitzObjective,
        knots: _Knots,
        n: int,
        bins: int,
        epsilon: float,
        delta: float,
        samples: int,
        seed: tuple[int, int, int],
        x: Array,
    ) -> None:
        self.objective, self.knots = objective, knots
        self.evaluations = 0
        self.progress: Callable[[int, float], None] | None = None
        column = knots.column(x)
        count = max(LEAST_SAMPLES, min(samples, _NUMBERS // (len(column) + bins)))
        number = int(np.random.SeedSequence(seed).generate_state(1)[0])
        self.noise = BinsNoise(n, bins, len(column), epsilon, delta, samples=count, seed=number)
        # from the noise without sampling; the tilts depend on s, which they help to find
        std = self.noise.longest(column) / gaussian_mu(epsilon, delta)
        settled = 0
        for _ in range(_AIMS):
            self.noise.aim(column, std)
            found = self.noise.noise_std(column)
            std = std * _LESS if found is None else found[0]
            settled += found is not None
            if settled == 2:
                break
        self.noise.aim(column, std)

    def __call__(self, x: Array) -> tuple[float, Array]:
        self.evaluations += 1
        column = self.knots.column(x)
        found = self.noise.noise_std(column)
        if found is None:
            return 1e10, np.zeros_like(x)
        std, by_noise = found
        value, gradient = self.objective(column)
        squared = float(column @ column)
        value += np.log(std) - 0.5 * np.log(squared)  # the objective holds the column norm too
        gradient = gradient - column / squared + by_noise
        if self.progress is not None:
            self.progress(self.evaluations, float(np.exp(value)))
        return float(value), self.knots.pullback(x, gradient)
