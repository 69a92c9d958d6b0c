"""Renyi divergences of balls in bins, and the epsilon that they give.

P = (1/b) sum_i N(m_i, s^2 I) against Q = N(0, s^2 I), G_ij = <m_i, m_j> / s^2 >= 0.

* remove, integer order alpha >= 2: `renyi_exact` sums over all counts of the components. Where G_ij = 0 at
  distances >= p on the circle of bins, a dynamic programme goes around it with the last p - 1 counts as its
  state (Schuchardt, Kalinin, arXiv 2601.21636). `renyi_bound` needs no band: it takes a larger G, of every
  q-th bin.
* add, every order > 1: by Jensen's inequality a Gaussian, of which `jensen_add` takes the divergence.

Theorems and proofs: docs/proofs/amplification.md#divergences-of-integer-order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations

import numpy as np
from scipy.special import gammaln

from anechoic._validate import Array, fraction, positive_float, positive_int
from anechoic.accounting.gaussian import gaussian_epsilon, hockey_stick
from anechoic.accounting.search import smallest

ORDERS = (2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 26, 32)
WORK = 3e7  # numbers that one exact divergence may cost
BOUND_WORK = 4e5  # and one try of a bound
ROUNDING = 1e-9  # by which a divergence may be off
_EXPONENT = 1e-12  # and, relatively, a sum of numbers of one sign

_BLOCK = 10_000  # vectors of counts that are handled at once
_SPACINGS = 5  # numbers of bins that are skipped, tried by `renyi_bound`


def renyi_exact(gram: Array, std: float, order: int, *, work: float = WORK) -> float | None:
    """R_alpha(P || Q) of the given integer order; None where it would cost too much.

    Args:
        gram: of the means, shape (b, b), entries >= 0.
        std: of the noise, > 0.
        order: alpha >= 2.
        work: numbers that it may cost.
    """
    order = positive_int("order", order, minimum=2)
    scaled = np.asarray(gram, dtype=np.float64) / positive_float("std", std) ** 2
    bins, width = len(scaled), _bandwidth(scaled)
    if math.comb(order + bins - 1, bins - 1) * bins <= work / 10:
        return _moment(_enumerated(scaled, order), bins, order)
    if 2 * width - 1 > bins or _cost(bins, width, order) > work:
        return None
    return _moment(_around(_bands_of(scaled, width), order), bins, order)


def renyi_bound(gram: Array, std: float, order: int) -> float:
    """An upper bound on R_alpha(P || Q) of integer order; equal to it where `renyi_exact` is cheap."""
    exact = renyi_exact(gram, std, order, work=BOUND_WORK)
    if exact is not None:
        return exact
    scaled = np.asarray(gram, dtype=np.float64) / positive_float("std", std) ** 2
    places, least = np.arange(len(scaled)), math.inf
    at_lags = np.array([scaled[places, (places + lag) % len(places)].max() for lag in places])
    for spacing in _spacings(len(scaled)):
        # every q-th bin, with the largest entry at each lag over all shifts
        count = len(scaled) // spacing
        lags = at_lags[: count * spacing : spacing]
        for width in (1, 2, 3, 4):
            if 2 * width - 1 > count or _cost(count, width, order) > BOUND_WORK:
                break
            outside = float(lags[width : count - width + 1].max(initial=0.0))
            bands = np.repeat(np.maximum(lags[:width] - outside, 0.0)[:, None], count, axis=1)
            found = _moment(_around(bands, order), count, order) + order * outside / 2
            least = min(least, found)
    return least


def jensen_add(gram: Array, std: float, epsilon: float) -> float:
    """An upper bound on H(Q || P) at epsilon >= 0, by Jensen's inequality."""
    scaled = np.asarray(gram, dtype=np.float64) / positive_float("std", std) ** 2
    bins = len(scaled)
    mean, variance = float(np.trace(scaled)) / (2 * bins), float(scaled.sum()) / bins**2
    if variance <= 0.0:
        return max(0.0, -math.expm1(epsilon - mean))
    # E (1 - exp(epsilon + x))_+ for x ~ N(-mean, variance) is a profile of that variance, elsewhere
    place = epsilon - mean + variance / 2 - _EXPONENT * (epsilon + mean + variance)
    return min(1.0, hockey_stick(place, math.sqrt(variance)) * (1 + ROUNDING))


def epsilon_of_order(divergence: float, order: float, delta: float) -> float:
    """The epsilon >= 0 at which this Renyi divergence gives `delta`, as above."""
    log = order * math.log1p(-1 / order) - math.log(order - 1) - math.log(delta)
    return max(0.0, divergence + log / (order - 1)) * (1 + ROUNDING)


def renyi_epsilon(gram: Array, delta: float, std: float, most: float = math.inf) -> float:
    """An upper bound on epsilon in both directions, from Renyi divergences alone.

    Args:
        gram: of the means, shape (b, b), entries >= 0.
        delta: in (0, 1).
        std: of the noise, > 0.
        most: an epsilon above which what is found is of no use.
    """
    delta, std = fraction("delta", delta), positive_float("std", std)
    high = gaussian_epsilon(delta, math.sqrt(float(gram.diagonal().max())) / std)
    remove, in_vain = high, 0
    if most < high and jensen_add(gram, std, most) > delta:
        return high
    for order in ORDERS:
        if epsilon_of_order(_least(gram, std, order), order, delta) >= min(remove, most):
            continue  # the divergence is not small enough
        found = epsilon_of_order(renyi_bound(gram, std, order), order, delta)
        remove, in_vain = (found, 0) if found < remove else (remove, in_vain + 1)
        if in_vain == 2:
            break
    if jensen_add(gram, std, 0.0) <= delta:
        return remove
    add = smallest(lambda epsilon: jensen_add(gram, std, epsilon) <= delta, 0.0, high, 1e-6, high)
    return max(remove, add)


def _least(gram: Array, std: float, order: int) -> float:
    """A lower bound on the divergence: by Jensen's inequality over the counts, and by all in one bin."""
    own, all_pairs = (float(part.mean()) / std**2 for part in (gram.diagonal(), gram))
    return order / 2 * max(all_pairs, own - 2 * math.log(len(gram)) / order) * (1 - ROUNDING)


def _moment(log_sum: float, bins: int, order: int) -> float:
    """The divergence from the logarithm of the sum over counts without alpha!."""
    return (log_sum + float(gammaln(order + 1)) - order * math.log(bins)) / (order - 1) * (1 + ROUNDING)


def _enumerated(scaled: Array, order: int) -> float:
    """log of the sum over all counts of exp(e(c)) / prod c_i!, block by block."""
    totals = []
    diagonal = scaled.diagonal()
    for counts in _counts(len(scaled), order):
        exponents = (np.einsum("ni,ij,nj->n", counts, scaled, counts) - counts @ diagonal) / 2
        totals.append(float(_log_sum(exponents - gammaln(counts + 1).sum(axis=1))))
    return float(_log_sum(np.array(totals)))


def _counts(bins: int, total: int) -> Iterator[Array]:
    """Blocks of all vectors of `bins` counts with the given sum, in order, shape (block, bins)."""
    if math.comb(total + bins - 1, bins - 1) <= _BLOCK:  # where the bars stand between the stars
        bars = np.array(list(combinations(range(total + bins - 1), bins - 1)), dtype=np.float64)
        ends = np.pad(bars, ((0, 0), (1, 1)), constant_values=((0, 0), (-1.0, total + bins - 1.0)))
        yield np.diff(ends, axis=1) - 1.0
        return
    for first in range(total + 1):
        for rest in _counts(bins - 1, total - first):
            yield np.hstack([np.full((len(rest), 1), float(first)), rest])


def _bandwidth(gram: Array) -> int:
    """p: entries at distances >= p on the circle of bins are 0."""
    rows, columns = np.nonzero(gram)
    distance = np.abs(rows - columns)
    return int(np.minimum(distance, len(gram) - distance).max(initial=0)) + 1


def _bands_of(gram: Array, width: int) -> Array:
    """G[i, i - lag] for lag < width, around the circle, shape (width, bins)."""
    places = np.arange(len(gram))
    return np.asarray([gram[places, (places - lag) % len(gram)] for lag in range(width)])


def _cost(bins: int, width: int, order: int) -> float:
    first = math.comb(order + width - 1, width - 1)
    return bins * float(first) * float(order + 1) ** (width + 1) if width < 150 else math.inf


def _spacings(bins: int) -> list[int]:
    """Divisors of the number of bins."""
    divisors = [spacing for spacing in range(1, bins) if bins % spacing == 0]
    chosen = np.unique(np.linspace(0, len(divisors) - 1, min(_SPACINGS, len(divisors))).astype(int))
    return [divisors[place] for place in chosen.tolist()] or [1]


def _around(bands: Array, order: int) -> float:
    """log of the sum over all counts, for the entries G[i, i - lag mod b] at lags < p <= (b + 1) / 2.

    `bands[lag, i]` holds them. The state is (first p - 1 counts, last p - 1 counts, counts so far), in
    logarithms throughout.
    """
    width, bins = bands.shape
    counts = np.arange(order + 1)
    own = counts * (counts - 1) / 2
    weights = -gammaln(counts + 1)
    if width == 1:
        logs = np.full(order + 1, -math.inf)
        logs[0] = 0.0
        for place in range(bins):
            logs = _convolved(logs, own * bands[0, place] + weights)
        return float(logs[order])
    held = [block for total in range(order + 1) for block in _counts(width - 1, total)]
    first = np.vstack(held).astype(int)  # shape (starts, p - 1)
    starts = len(first)
    shape = (starts, *(order + 1,) * (width - 1), order + 1)
    logs = np.full(shape, -math.inf)
    begin = np.zeros(starts)
    for place in range(width - 1):
        begin += own[first[:, place]] * bands[0, place] + weights[first[:, place]]
        for before in range(place):
            begin += bands[place - before, place] * first[:, place] * first[:, before]
    # the axes hold the counts of places t - (p - 1) … t - 1 in order
    logs[(np.arange(starts), *first.T, first.sum(axis=1))] = begin
    axes = np.indices((order + 1,) * (width - 1))
    for place in range(width - 1, bins):
        coupling = np.zeros((order + 1,) * (width - 1))  # sum_j G[t, t - j] c_{t-j}
        for lag in range(1, width):
            coupling += bands[lag, place] * axes[width - 1 - lag]
        closing = np.zeros(starts)  # with the first counts, once they are near on the other side
        for lag in range(1, width):
            start = (place + lag) % bins
            if place + lag >= bins:
                closing += bands[lag, start] * first[:, start]
        logs = _one_place(logs, coupling, closing, own * bands[0, place] + weights)
    return float(_log_sum(logs[..., order].ravel()))


def _one_place(logs: Array, coupling: Array, closing: Array, alone: Array) -> Array:
    """Add the count of one place; the oldest of the last counts is summed over."""
    order = len(alone) - 1
    result = np.full(logs.shape, -math.inf)
    bare = (slice(None),) + (None,) * (logs.ndim - 1)
    for count in range(order + 1):
        raised = logs[..., : order + 1 - count] + count * coupling[None, ..., None]
        summed = _log_sum(raised, axis=1)  # the oldest count
        value = summed + (alone[count] + count * closing)[bare[:-1]]
        result[..., count, count:] = value
    return result


def _convolved(left: Array, right: Array) -> Array:
    """log of the convolution of two exponentiated sequences, cut to their length."""
    places = np.arange(len(left))[:, None] - np.arange(len(left))
    return _log_sum(np.where(places >= 0, left[places], -math.inf) + right, axis=1)


def _log_sum(logs: Array, axis: int = 0) -> Array:
    """log sum exp over one axis, of numbers below +inf: SciPy's costs more in checks than in sums here."""
    top = np.maximum(logs.max(axis=axis, keepdims=True), -1e308)  # -inf all along stays -inf
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.exp(logs - top).sum(axis=axis)) + np.squeeze(top, axis=axis))
