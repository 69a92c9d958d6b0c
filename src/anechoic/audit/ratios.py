"""The most powerful score where sampling is secret: the log-likelihood ratio over what was sampled.

The auditor knows C, the noise and the group of the unit, as the proof gives them away, but not the batches
it was in. With y_t = <C[:, t], Y g> and e_t = (2 y_t - ||C[:, t]||^2) / (2 s^2), where columns that one unit
can touch together are orthogonal:

* cyclic Poisson sampling: L = sum over the steps of the group of log(1 - q + q exp(e_t));
* random allocation: L = sum over epochs of log mean_t exp(e_t);
* min-sep sampling: f_t = (1 - p) f_{t+1} + p exp(e_t) f_{t+b}, L = log of the stationary
  mean of f_0 … f_{b-1}.

Where columns overlap that a unit of (cyclic) Poisson sampling can touch together, participations interact:
|sum of columns|^2 has products of any two. The sum over all patterns goes from step to step with the last few
participations as its state, as many as interact; beyond `MOST_STATES` older ones are left out, and the score,
which is then no likelihood ratio, is a valid one still: bounds hold for any.

Balls in bins, whatever C: L = log mean_i exp((2 <m_i, Y g> - ||m_i||^2) / (2 s^2)), with m_i the sum of bin
i's columns.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from anechoic._validate import Array, positive_float
from anechoic.audit.hazards import Mask, draw_units
from anechoic.audit.observation import inverted
from anechoic.errors import UnsupportedError
from anechoic.sampling import (
    BallsInBins,
    CyclicPoisson,
    MinSepSampling,
    Poisson,
    RandomAllocation,
    Sampling,
)
from anechoic.strategies import Strategy
from anechoic.strategies.base import warn_dense

#: Participations that the state of an overlapping chain holds, at most.
MOST_STATES = 8


def likelihood_ratios(
    strategy: Strategy,
    sampling: Sampling,
    rows: ArrayLike,
    noise_std: float,
    *,
    possible: ArrayLike | None = None,
    opposite: bool = False,
) -> Array:
    """Log-likelihood ratio of "put in" against "left out" for every canary, shape (m,).

    Args:
        strategy: C, square.
        sampling: any amplified scheme.
        rows: released sums along the canaries' directions, in clip norms, shape (n, m).
        noise_std: std of one entry of Z, over the clip norm.
        possible: steps at which a canary could be sampled (those of its group), shape (n, m); None for all.
        opposite: whether "left out" means replaced by the opposite contribution (replace-one adjacency).

    Raises:
        UnsupportedError: for another scheme, or where columns overlap that the formula needs apart (random
            allocation, min-sep sampling).
    """
    variance = positive_float("noise_std", noise_std) ** 2
    y = inverted(strategy, rows)
    warn_dense(strategy.n, "likelihood_ratios")
    dense = strategy.to_dense()
    gram = dense.T @ dense
    overlapping = _overlap(gram, sampling)
    products = dense.T @ y / variance
    energy = np.square(dense).sum(axis=0)[:, None] / (2 * variance)
    allowed = np.ones(y.shape, bool) if possible is None else np.asarray(possible, dtype=bool)

    def ratio(moved: Array) -> Array:
        if isinstance(sampling, BallsInBins):
            bins = _bins(strategy.n, sampling.period).astype(np.float64)
            means = np.square(strategy.multiply(bins)).sum(axis=0)[:, None] / (2 * variance)
            return np.asarray(logsumexp(bins.T @ moved - means, axis=0) - math.log(sampling.period))
        if isinstance(sampling, RandomAllocation):
            return _by_epoch(moved - energy, sampling.period)
        if isinstance(sampling, MinSepSampling):
            return _min_sep(moved - energy, sampling.rate, sampling.separation)
        if overlapping:
            return _overlapping(moved - energy, gram / variance, allowed, _rate(sampling))
        terms = _log_mix(_rate(sampling), np.zeros(y.shape), moved - energy)
        return np.asarray(np.where(allowed, terms, 0.0).sum(axis=0))

    return ratio(products) - ratio(-products) if opposite else ratio(products)


def draw_participation(sampling: Sampling, canaries: int, rng: np.random.Generator) -> tuple[Mask, Mask]:
    """Random participation of `canaries` units, and the steps where it was possible; both (n, canaries).

    Under cyclic Poisson sampling all are in the group of step 0, which has the most steps.

    Raises:
        UnsupportedError: for a scheme that is not amplified.
    """
    n = sampling.steps
    possible = np.ones((n, canaries), bool)
    if isinstance(sampling, (Poisson, CyclicPoisson)):
        possible &= np.arange(n)[:, None] % sampling.groups == 0
    return draw_units(sampling, possible, rng), possible


def _log_mix(rate: float, stay: Array, join: Array) -> Array:
    """log((1 - rate) exp(stay) + rate exp(join))."""
    rest = math.log1p(-rate) if rate < 1 else -math.inf
    return np.logaddexp(rest + stay, math.log(rate) + join)


def _by_epoch(exponents: Array, period: int) -> Array:
    n, m = exponents.shape
    epochs = -(-n // period)
    padded = np.zeros((epochs * period, m))  # steps beyond n release nothing
    padded[:n] = exponents
    whole = logsumexp(padded.reshape(epochs, period, m), axis=1) - math.log(period)
    return np.asarray(whole.sum(axis=0))


def _min_sep(exponents: Array, rate: float, separation: int) -> Array:
    n, m = exponents.shape
    log_f = np.zeros((n + separation, m))
    for t in range(n - 1, -1, -1):
        log_f[t] = _log_mix(rate, log_f[t + 1], exponents[t] + log_f[t + separation])
    weights = np.full((separation, 1), rate)
    weights[0] = 1.0
    return np.asarray(logsumexp(log_f[:separation], b=weights / weights.sum(), axis=0))


def _bins(n: int, period: int) -> Mask:
    return np.asarray(np.arange(n)[:, None] % period == np.arange(period))


def _rate(sampling: Sampling) -> float:
    if isinstance(sampling, (Poisson, CyclicPoisson)):
        return sampling.rate
    raise UnsupportedError(
        f"{type(sampling).__name__}: no likelihood ratio is implemented for this scheme. Without"
        " amplification use canary_scores."
    )


def _groups(sampling: Sampling) -> int:
    return sampling.groups if isinstance(sampling, (Poisson, CyclicPoisson)) else 1


def _overlapping(exponents: Array, gram: Array, allowed: Mask, rate: float) -> Array:
    """log E exp(sum_t x_t e_t - sum_{s<t} x_s x_t G_st) over x_t ~ Bern(rate) at allowed steps, (m,)."""
    result = np.zeros(allowed.shape[1])
    packed = np.packbits(allowed, axis=0)
    _, which = np.unique(packed, axis=1, return_inverse=True)
    which = np.asarray(which).ravel()
    for group in range(int(which.max()) + 1):
        members = np.flatnonzero(which == group)
        steps = np.flatnonzero(allowed[:, members[0]])
        result[members] = _chain(exponents[np.ix_(steps, members)], gram[np.ix_(steps, steps)], rate)
    return result


def _chain(exponents: Array, gram: Array, rate: float) -> Array:
    """The same where all of these steps are allowed. Bit k - 1 of a state: participation k steps ago."""
    n, m = exponents.shape
    together = [k for k in range(1, n) if np.abs(gram.diagonal(k)).max() > 0.0]
    kept = min(max(together, default=0), MOST_STATES)
    states = np.arange(2**kept)
    bits = (states[:, None] >> np.arange(kept)) & 1
    logs = np.full((2**kept, m), -math.inf)
    logs[0] = 0.0
    rest, join = (math.log1p(-rate) if rate < 1 else -math.inf), math.log(rate)
    after = (states << 1) & (2**kept - 1)
    for t in range(n):
        before = np.zeros(kept)
        before[: min(kept, t)] = gram[t, t - 1 :: -1][: min(kept, t)] if t else 0.0
        joined = logs + join + exponents[t] - (bits @ before)[:, None]
        moved = np.full_like(logs, -math.inf)
        if not kept:
            logs = np.logaddexp(logs + rest, joined)
            continue
        for half in (slice(0, 2 ** (kept - 1)), slice(2 ** (kept - 1), None)):  # the oldest bit falls out
            moved[after[half]] = np.logaddexp(moved[after[half]], logs[half] + rest)
            moved[after[half] | 1] = np.logaddexp(moved[after[half] | 1], joined[half])
        logs = moved
    return np.asarray(logsumexp(logs, axis=0))


def _overlap(gram: Array, sampling: Sampling) -> bool:
    """Whether columns overlap that one unit can touch together: the product formulas need them orthogonal.

    Entries are compared with the norms of their own columns.
    """
    if isinstance(sampling, BallsInBins):
        return False
    n = len(gram)
    lag = np.arange(n)[None, :] - np.arange(n)[:, None]
    if isinstance(sampling, RandomAllocation):
        epoch = np.arange(n) // sampling.period
        together = epoch[None, :] > epoch[:, None]
    elif isinstance(sampling, MinSepSampling):
        together = lag >= sampling.separation
    else:
        together = (lag > 0) & (lag % _groups(sampling) == 0)
    norms = np.sqrt(gram.diagonal())
    cosines = np.where(together, np.abs(gram), 0.0) / norms / norms[:, None]
    if cosines.max() <= 1e-12:
        return False
    if isinstance(sampling, (Poisson, CyclicPoisson)):
        return True
    i, j = np.unravel_index(int(cosines.argmax()), cosines.shape)
    raise UnsupportedError(
        f"columns {i} and {j} of C overlap, and {type(sampling).__name__} lets one unit touch both: the"
        " likelihood ratio is not a product, and no amplification is proved either. Use fewer bands."
    )
