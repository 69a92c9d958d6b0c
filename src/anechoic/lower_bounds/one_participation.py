"""Lower bounds for one participation of each unit."""

from __future__ import annotations

import math

import numpy as np

from anechoic._validate import Array
from anechoic.algebra import toeplitz
from anechoic.algebra.nuclear import MARGIN, circulant_value, dual_value, toeplitz_nuclear_norm
from anechoic.losses.norms import LossNorm, row_weights, tail_weights
from anechoic.lower_bounds.prefix_sums import prefix_sum_lower_bound
from anechoic.lower_bounds.result import Bound
from anechoic.workloads import prefix_sum
from anechoic.workloads.base import Workload
from anechoic.workloads.general import restart_scales

# Steps up to which the dual is improved, singular values are computed (where there is a Toeplitz factor,
# whose FFT takes less, and where there is none), and the FFT is run over all steps.
REFINED = 128
EXACT_TOEPLITZ = 512
EXACT = 1024
FFT_UP_TO = 2**20
ARRAYS_UP_TO = 2**24  # steps up to which an array of n numbers may be made for a bound


def even_nuclear_norm(workload: Workload, kind: LossNorm) -> float | None:
    """||W^(1/2) A||_* / sqrt(n), rounded down, or None where it is not cheap; even weights for "max"."""
    n = workload.n
    even = isinstance(kind, str) and kind != "last"
    if even and workload.is_prefix_sum:
        return prefix_sum_lower_bound(n)
    if even and workload.is_toeplitz and n <= EXACT:
        return toeplitz_nuclear_norm(workload.coefficients) / n
    if n > FFT_UP_TO:
        return None
    weights, columns = row_weights("rms" if even else kind, n), np.full(n, 1.0 / n)
    if n <= (EXACT_TOEPLITZ if workload.has_toeplitz_factor else EXACT):
        return dual_value(workload.to_dense(), weights, steps=1, columns=columns)
    if workload.has_toeplitz_factor:
        return circulant_value(workload.coefficients, workload.rates, weights, columns)
    return None


def row_bounds(workload: Workload, kind: LossNorm) -> list[Bound]:
    """The error of a step times the sensitivity is at least the largest entry of its row of A.

    For |A[t, j]| = |<B[t], C[:, j]>| <= ||B[t]|| ||C[:, j]||. For the last step alone that is the infimum:
    let the last row of C be a_n / max |a_n| and the rest of C go to 0.
    """
    n = workload.n
    theorem = "largest entry of a row of A (Cauchy-Schwarz)"
    if workload.is_prefix_sum:
        return [Bound(1.0, theorem)]
    if n > ARRAYS_UP_TO:
        return []
    if isinstance(kind, str) and kind == "last":
        return [Bound(float(row_sizes(workload, n - 1).max()) * (1 - MARGIN), theorem)]
    if workload.is_toeplitz:
        largest = np.maximum.accumulate(np.abs(workload.coefficients))
    elif n <= EXACT_TOEPLITZ:
        largest = np.abs(workload.to_dense()).max(axis=1)
    elif isinstance(kind, str) and kind == "max":
        rows = [n - 1]
        if workload.restarts is not None and (period := workload.restarts[1]) <= n:
            rows.append(n // period * period - 1)
        return [Bound(max(float(row_sizes(workload, t).max()) for t in rows) * (1 - MARGIN), theorem)]
    else:
        return []
    if isinstance(kind, str) and kind == "max":
        return [Bound(float(largest.max()) * (1 - MARGIN), theorem)]
    return [Bound(math.sqrt(row_weights(kind, n) @ np.square(largest)) * (1 - MARGIN), theorem)]


def row_sizes(workload: Workload, t: int) -> Array:
    """|A[t, :]|, shape (n,)."""
    unit = np.zeros(workload.n)
    unit[t] = 1.0
    return np.abs(workload.adjoint_multiply(unit))


def nuclear_bounds(workload: Workload, kind: LossNorm) -> list[Bound]:
    """Bounds by weak duality, for every kind but "last", where that of the row is the best."""
    n = workload.n
    even = isinstance(kind, str)
    if even and kind == "last":
        return []
    if even and (workload.is_prefix_sum and n > EXACT_TOEPLITZ):
        return [Bound(prefix_sum_lower_bound(n), "nuclear norm of A_pre over n")]
    if workload.restarts is not None and workload.restarts[0].is_prefix_sum and even:
        period = workload.restarts[1]
        if period < n:
            return _block_bounds(workload, kind)  # of a block-diagonal matrix
        if n > EXACT:
            return _weighted_prefix_bounds(restart_scales(n, period), kind)
    if n <= REFINED:
        weights = None if even and kind == "max" else row_weights(kind, n)
        value = dual_value(workload.to_dense(), weights, steps=6)
        return [Bound(value, "nuclear norm of the weighted A (dual value)")]
    if workload.has_toeplitz_factor and n <= FFT_UP_TO:
        return [_circulant_bound(workload, kind)]
    if n > EXACT:
        return _block_bounds(workload, kind)
    value = dual_value(workload.to_dense(), row_weights("rms" if even else kind, n), steps=1)
    return [Bound(value, "nuclear norm of the weighted A (dual value)")]


def _circulant_bound(workload: Workload, kind: LossNorm) -> Bound:
    n = workload.n
    a, rates = workload.coefficients, workload.rates
    is_max = isinstance(kind, str) and kind == "max"
    w = row_weights("rms" if is_max else kind, n)
    tail = tail_weights("rms" if is_max else kind, n)
    slope = np.maximum(tail, 0.0) ** 0.25
    # squared column norms of W^(1/2) T
    norms = np.maximum(toeplitz.multiply(np.square(a), w[::-1])[::-1], 0.0)
    shapes = [slope, np.sqrt(norms), norms, np.where(tail > 0, 1.0, 0.0)]
    if rates is not None:
        shapes += [np.square(rates) * slope, rates * shapes[1], np.square(rates) * norms]
    pairs = [(w, shape / shape.sum()) for shape in shapes]
    if is_max and rates is None:
        pairs.append((slope[::-1] / slope.sum(), slope / slope.sum()))
    values = [circulant_value(a, rates, rows, columns) for rows, columns in pairs]
    best = int(np.argmax(values))
    if n <= EXACT_TOEPLITZ:
        rows, columns = pairs[best]
        value = dual_value(workload.to_dense(), rows, steps=1, columns=columns)
        return Bound(value, "nuclear norm of the weighted A (dual value)")
    return Bound(values[best], "trace of the weighted A with an orthogonal circulant, below its nuclear norm")


def _weighted_prefix_bounds(scales: Array, kind: LossNorm) -> list[Bound]:
    """Restart differences of prefix sums, of one period at most: A_pre with weighted rows."""
    squares, sums = np.square(scales), prefix_sum(len(scales))
    if kind == "max":
        return _scaled(nuclear_bounds(sums, "max"), math.sqrt(squares.min()))
    return _scaled(nuclear_bounds(sums, squares), math.sqrt(squares.mean()))


def _block_bounds(workload: Workload, kind: LossNorm) -> list[Bound]:
    """The bound of a leading block, of which C[:m, :m] and B[:m, :m] are a factorisation.

    C and B may be taken lower-triangular, as a rotation between them changes no norm (Remark 1.17), so that
    every diagonal block of A is factorised by those of B and C. Where all of them are the leading one, the
    RMS bound of one holds for all.
    """
    n = workload.n
    m, repeated = _block_size(workload)
    if isinstance(kind, str):
        share = math.sqrt((n // m * m if repeated else m) / n) if kind == "rms" else 1.0
        return _scaled(nuclear_bounds(workload.truncate(m), kind), share)
    weights = row_weights(kind, n)[:m]
    if not weights.any():
        return []
    return _scaled(nuclear_bounds(workload.truncate(m), weights), math.sqrt(weights.sum()))


def _block_size(workload: Workload) -> tuple[int, bool]:
    """Size of a leading block whose bound is cheap, and whether the diagonal blocks after it are the same."""
    if workload.restarts is not None and workload.restarts[0].is_toeplitz:
        base, period = workload.restarts
        if base.is_prefix_sum and period < workload.n:
            return period, True
        if period <= EXACT:
            return EXACT // period * period, True
    if workload.is_toeplitz:
        return workload.n // -(-workload.n // FFT_UP_TO), True
    return (FFT_UP_TO if workload.has_toeplitz_factor else EXACT), False


def _scaled(bounds: list[Bound], factor: float) -> list[Bound]:
    return [Bound(factor * bound.value * (1 - MARGIN), bound.theorem, bound.covers) for bound in bounds]
