"""The best non-negative Toeplitz strategy for balls-in-bins sampling: least noise std times error."""

from __future__ import annotations

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
from anechoic.losses.kinds import LossKind
from anechoic.optimize.bins.families import BandedFamily, BandedInverseFamily, BLTFamily, Family
from anechoic.optimize.bins.objective import BinsNoise
from anechoic.optimize.result import Optimized
from anechoic.optimize.series.banded_toeplitz import banded_toeplitz
from anechoic.optimize.series.toeplitz_objective import ToeplitzObjective
from anechoic.strategies import ColumnNormalized, Identity
from anechoic.strategies.base import Strategy
from anechoic.workloads.base import Workload

FAMILIES = ("banded_toeplitz", "banded_inverse", "blt")
ACCOUNTINGS = ("deterministic", "verified")
LEAST_SAMPLES = 500
#: Numbers that the samples of one direction may take.
_NUMBERS = 2**24
_JUDGED_BY = 20_000  # fresh samples by which results are compared
_SURE = 0.99  # of what independent noise costs, at most: a quick bound of its noise is that close
_LARGEST = 1e3  # entry of C, over those of its diagonal
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
    family: str = "banded_toeplitz",
    loss: LossKind = "rms",
    accounting: str = "deterministic",
    samples: int = 2000,
    rounds: int = 3,
    seed: int = 0,
    progress: Callable[[int, float], None] | None = None,
) -> Optimized:
    """The non-negative Toeplitz strategy of least noise std times error under balls in bins.

    The noise std s(C) for (epsilon, delta) is where the privacy profile of the mixture of bins crosses
    delta, on samples that are drawn once a round (importance sampling, both directions, common to all C):
    a smooth function with an exact gradient, ds/dC = -(d delta / dC) / (d delta / ds). L-BFGS minimises
    log s + log error on it; the next round draws new samples around what was found. At the end what the
    rounds reached, where they began, both with columns normalised, and independent noise are compared.

    Guarantee: none about privacy: calibrate the strategy. By the accounting that is named it costs no more
    than independent noise. The bound without sampling error is up to a fifth above Monte Carlo where C is
    strongly correlated. Deterministic in `seed`. A local minimum.

    Args:
        workload: a Toeplitz workload, n steps, with learning rates as in `banded_toeplitz`.
        bins: b >= 2; an example takes part in steps i, i + b, ….
        epsilon: > 0.
        delta: in (0, 1).
        bands: bands of C, or of C^-1, or buffers; 1 <= bands <= n.
        family: "banded_toeplitz" (c >= 0), "banded_inverse" (C^-1 = 1 - r_1 x - … with r >= 0; two bands are
            one decay), or "blt" (scales >= 0).
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
    one_of("family", family, FAMILIES)
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
    families = _starts(workload, bands, family, loss)
    made: list[Strategy] = []
    evaluations = 0
    for place, chosen in enumerate(families):
        made.append(chosen.strategy(chosen.start))
        if len(chosen.start) == 0:
            continue
        x = chosen.start
        for turn in range(rounds):
            search = _Search(objective, chosen, n, bins, epsilon, delta, samples, (seed, place, turn), x)
            search.progress, search.evaluations = progress, evaluations
            found = scipy.optimize.minimize(
                search, x, jac=True, method="L-BFGS-B", bounds=chosen.bounds, options=_OPTIONS
            )
            x, evaluations = np.asarray(found.x), search.evaluations
        made.append(chosen.strategy(x))
    how = (bins, epsilon, delta, loss, accounting, seed)
    made += [ColumnNormalized(strategy) for strategy in made]
    judged = [(_noise_times_error(workload, c, *how), c) for c in made]
    value, strategy = min(judged, key=lambda pair: pair[0])
    independent = _noise_times_error(workload, Identity(n), *how)
    if value > _SURE * independent:
        value, strategy = independent, Identity(n)
    return Optimized(strategy, value, None, None, evaluations, time.perf_counter() - started)


def _starts(workload: Workload, bands: int, family: str, loss: LossKind) -> list[Family]:
    """The square root, and for banded Toeplitz the optimum without amplification."""
    if family == "banded_inverse":
        return [BandedInverseFamily(workload, bands)]
    if family == "blt":
        return [BLTFamily(workload, min(bands, workload.n - 1))]
    best = banded_toeplitz(workload, bands=bands, loss=loss).strategy
    return [BandedFamily(workload, bands, best.coefficients[:bands])]


class _Search:
    """log s + log error of the parameters of a family, and its gradient, on the samples of one round."""

    def __init__(
        self,
        objective: ToeplitzObjective,
        family: Family,
        n: int,
        bins: int,
        epsilon: float,
        delta: float,
        samples: int,
        seed: tuple[int, int, int],
        x: Array,
    ) -> None:
        self.objective, self.family = objective, family
        self.evaluations = 0
        self.progress: Callable[[int, float], None] | None = None
        column = family.column(x)
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
        column = self.family.column(x)
        if not np.abs(column).max() < _LARGEST:  # an inverse whose series grows: send the line search back
            return 1e10, np.zeros_like(x)
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
        return float(value), self.family.pullback(x, gradient)


def _noise_times_error(
    workload: Workload,
    strategy: Strategy,
    bins: int,
    epsilon: float,
    delta: float,
    loss: LossKind,
    accounting: str,
    seed: int,
) -> float:
    gram = bins_gram(strategy, bins)
    if accounting == "deterministic":
        std = BinsBound(gram).rough_noise_std(epsilon, delta)
    else:
        samples = max(LEAST_SAMPLES, min(_JUDGED_BY, _NUMBERS // (4 * bins)))
        std = Mixture(gram).noise_std(epsilon, delta, samples=samples, seed=seed + 1)
    return std * error(workload, strategy).of(loss)
