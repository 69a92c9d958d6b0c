"""What no mechanism can beat: lower bounds of the loss, each with its theorem and the class it covers.

For prefix sums and one participation there are closed forms. `lower_bound` gives the best bound that is
cheap for any workload and loss.
"""

from __future__ import annotations

import math

import numpy as np

from anechoic import toeplitz
from anechoic._nuclear import MARGIN, circulant_value, dual_value, toeplitz_nuclear_norm
from anechoic._validate import Array, one_of, positive_int
from anechoic.errors import UnsupportedError
from anechoic.losses import KINDS, LossKind, row_weights, tail_weights
from anechoic.lower_bounds_listed import listed_bound
from anechoic.lower_bounds_participation import cheap_bound, contained_period
from anechoic.lower_bounds_result import Bound
from anechoic.participation import MinSep, OncePerEpoch, Participation, Patterns
from anechoic.sensitivity.scheduling import best_schedule
from anechoic.workloads import RestartDifferences, Workload, prefix_sum

__all__ = [
    "Bound",
    "logarithmic_lower_bound",
    "logarithmic_upper_bound",
    "lower_bound",
    "mathias_lower_bound",
    "mathias_upper_bound",
    "prefix_sum_lower_bound",
]

# Steps up to which the dual is improved, singular values are computed (where there is a Toeplitz factor,
# whose FFT takes less, and where there is none), and the FFT is run over all steps.
REFINED = 128
EXACT_TOEPLITZ = 512
EXACT = 1024
FFT_UP_TO = 2**20
ARRAYS_UP_TO = 2**24  # steps up to which an array of n numbers may be made for a bound


def lower_bound(workload: Workload, participation: Participation, kind: LossKind) -> Bound | None:
    """The best bound that is cheap at this n, or None where none is known.

    For one participation: the closed form of `prefix_sum_lower_bound`, nuclear norms and their duals
    (`anechoic._nuclear`), and the largest entry of a row. For several: the dual of Problem 4.6 at few steps
    (`lower_bounds_participation`), a nuclear norm at many, and the sums of a row over the steps of a pattern.
    Where the patterns are listed, only the columns of steps that somebody may touch count.
    Dense optimisers find better ones on their way.

    Args:
        workload: A.
        participation: which steps one privacy unit may touch.
        kind: as in `losses.loss`.

    Raises:
        ValueError: for an unknown kind.
    """
    if not isinstance(workload, Workload) or not isinstance(participation, Participation):
        raise ValueError(
            f"workload={workload!r}, participation={participation!r}: a Workload and a Participation are"
            " needed, in this order."
        )
    if isinstance(kind, str):
        one_of("kind", kind, KINDS)
    once = participation.max_participations_in(workload.n) == 1
    if isinstance(participation, Patterns) and not (once and _all_touched(participation, workload.n)):
        return listed_bound(workload, participation, kind)
    if not once:
        return _participation_bound(workload, participation, kind)
    found = [*_row_bounds(workload, kind), *_nuclear_bounds(workload, kind)]
    return max(found, key=lambda bound: bound.value, default=None)


def _all_touched(participation: Participation, n: int) -> bool:
    return len(participation.touched(n)) == n


def prefix_sum_lower_bound(n: int) -> float:
    """No strategy has a smaller RMS loss, hence max loss, for prefix sums and one participation.

    The nuclear norm of A_pre over n: ||A||_* <= ||B||_F ||C||_F for A = BC, and ||C||_F is at most
    sqrt(n) times the largest column norm. The singular values of A_pre are 1 / (2 sin((2t-1) pi / (4n+2))).
    It exceeds the lower bounds of Mathias and of Theorem 2.4.

    Args:
        n: steps, >= 1. From 10**6 on, all but the first terms are summed by the Euler-Maclaurin formula.
            The result is rounded down by more than what it leaves out.

    Raises:
        ValueError: if n is not an integer >= 1.
    """
    n = positive_int("n", n)
    return 0.5 * _cosecants(math.pi / (2 * n + 1), n) * (1 - 1e-12) / n


def mathias_lower_bound(n: int) -> float:
    """1 / (2n) + S(n), below the optimal max loss for prefix sums and one participation, rounded down.

    S(n) = (1 / 2n) sum_{t=1..n} csc((2t-1) pi / 2n).

    Raises:
        ValueError: if n is not an integer >= 1.

    References:
        Mathias, The Hadamard operator norm of a circulant and applications (1993), Corollary 3.5;
        monograph, Section 2.12.
    """
    return (0.5 / positive_int("n", n) + _mathias_sum(n)) * (1 - 1e-12)


def mathias_upper_bound(n: int) -> float:
    """1/2 + S(n), above the optimal max loss for prefix sums and one participation, rounded up.

    The proof gives no strategy. S(n) is that of `mathias_lower_bound`.

    Raises:
        ValueError: if n is not an integer >= 1.
    """
    return (0.5 + _mathias_sum(positive_int("n", n))) * (1 + 1e-12)


def logarithmic_lower_bound(n: int) -> float:
    """ln(2n + 1) / pi, below the optimal max loss for prefix sums and one participation.

    Raises:
        ValueError: if n is not an integer >= 1.

    References:
        Monograph, Theorem 2.4.
    """
    return math.log1p(2 * positive_int("n", n)) / math.pi * (1 - 1e-14)


def logarithmic_upper_bound(n: int) -> float:
    """1 + ln(n) / pi, above the optimal max loss for prefix sums and one participation.

    Raises:
        ValueError: if n is not an integer >= 1.

    References:
        Monograph, Theorem 2.4.
    """
    return (1.0 + math.log(positive_int("n", n)) / math.pi) * (1 + 1e-14)


def _mathias_sum(n: int) -> float:
    """S(n): the angles are symmetric about pi / 2."""
    return (2.0 * _cosecants(math.pi / n, n // 2) + n % 2) / (2 * n)


def _cosecants(step: float, count: int) -> float:
    """sum_{t < count} csc((t + 1/2) step), where count step <= pi / 2; to 12 digits."""
    terms = count if count < 10**6 else 1000
    angles = (np.arange(terms) + 0.5) * step
    total = float((1.0 / np.sin(angles)).sum())
    if terms < count:
        first, last = terms * step, count * step
        integral = math.log(math.tan(last / 2)) - math.log(math.tan(first / 2))
        slope = math.cos(first) / math.sin(first) ** 2 - math.cos(last) / math.sin(last) ** 2
        # the next term of the midpoint rule is 7/5760 step^3 g''': below 1e-11 of the last one kept
        total += integral / step - slope * step / 24
    return total


def _participation_bound(workload: Workload, participation: Participation, kind: LossKind) -> Bound | None:
    """The best of the dual bound of few steps, and of a nuclear norm with an even mean of the columns.

    Take a cyclic schema that is contained in this one: its b patterns share the steps out. A unit with
    orthogonal rows at the steps of pi moves C G by the root of the sum of ||C[:, j]||^2 over j in pi, which
    is at most the sensitivity; so ||C||_F^2 <= b sens^2, and the loss is at least ||W^(1/2) A||_* / sqrt(b).

    Where all its rows are equal up to signs s, |sum_j A[t, j] s_j| <= ||B[t]|| sens; the sum is over pi.
    """
    n = workload.n
    try:
        period = contained_period(participation, n)
    except UnsupportedError:
        return None
    found = [bound for bound in [cheap_bound(workload, participation, kind)] if bound is not None]
    value = _even_nuclear_norm(workload, kind)
    if value is not None:
        value *= math.sqrt(n / period) * (1 - MARGIN)
        found.append(Bound(value, "nuclear norm of the weighted A over sqrt(period)"))
    if isinstance(kind, str) and kind != "rms" and (n <= FFT_UP_TO or workload.is_prefix_sum):
        theorem = "sum of a row of A over a pattern (Cauchy-Schwarz)"
        found.append(Bound(_largest_pattern_sum(workload, participation, period), theorem))
    return max(found, key=lambda bound: bound.value, default=None)


def _largest_pattern_sum(workload: Workload, participation: Participation, period: int) -> float:
    """The largest sum of |A[n-1, j]| over the steps j of a pattern, rounded down.

    For the last error that is the infimum over every factorisation: M = C^T C near the rank-one matrix
    |a| |a|^T, a the last row of A but for signs, comes as close as one likes.
    """
    n = workload.n
    count = participation.max_participations_in(n)
    if workload.is_prefix_sum:
        return count * (1 - MARGIN)
    sizes = _row_sizes(workload, n - 1)
    match participation:
        case MinSep(separation=separation) if n * count <= ARRAYS_UP_TO:
            value = float(best_schedule(sizes, separation, count))
        case OncePerEpoch(period=epoch):
            value = float(np.maximum.reduceat(sizes, np.arange(0, n, epoch)).sum())
        case _:
            value = float(np.bincount(np.arange(n) % period, weights=sizes).max())
    return value * (1 - MARGIN)


def _even_nuclear_norm(workload: Workload, kind: LossKind) -> float | None:
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


def _row_bounds(workload: Workload, kind: LossKind) -> list[Bound]:
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
        return [Bound(float(_row_sizes(workload, n - 1).max()) * (1 - MARGIN), theorem)]
    if workload.is_toeplitz:
        largest = np.maximum.accumulate(np.abs(workload.coefficients))
    elif n <= EXACT_TOEPLITZ:
        largest = np.abs(workload.to_dense()).max(axis=1)
    elif isinstance(kind, str) and kind == "max":
        rows = [n - 1]
        if isinstance(workload, RestartDifferences) and workload.period <= n:
            rows.append(n // workload.period * workload.period - 1)
        return [Bound(max(float(_row_sizes(workload, t).max()) for t in rows) * (1 - MARGIN), theorem)]
    else:
        return []
    if isinstance(kind, str) and kind == "max":
        return [Bound(float(largest.max()) * (1 - MARGIN), theorem)]
    return [Bound(math.sqrt(row_weights(kind, n) @ np.square(largest)) * (1 - MARGIN), theorem)]


def _row_sizes(workload: Workload, t: int) -> Array:
    """|A[t, :]|, shape (n,)."""
    unit = np.zeros(workload.n)
    unit[t] = 1.0
    return np.abs(workload.adjoint_multiply(unit))


def _nuclear_bounds(workload: Workload, kind: LossKind) -> list[Bound]:
    """Bounds by weak duality, for every kind but "last", where that of the row is the best."""
    n = workload.n
    even = isinstance(kind, str)
    if even and kind == "last":
        return []
    if even and (workload.is_prefix_sum and n > EXACT_TOEPLITZ):
        return [Bound(prefix_sum_lower_bound(n), "nuclear norm of A_pre over n")]
    if isinstance(workload, RestartDifferences) and workload.base.is_prefix_sum and even:
        if workload.period < n:
            return _block_bounds(workload, kind)  # of a block-diagonal matrix
        if n > EXACT:
            return _weighted_prefix_bounds(workload, kind)
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


def _circulant_bound(workload: Workload, kind: LossKind) -> Bound:
    """The best of a few weights v of the columns (and w of the rows, for "max")."""
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


def _weighted_prefix_bounds(workload: RestartDifferences, kind: LossKind) -> list[Bound]:
    """Restart differences of prefix sums, of one period at most: A_pre with weighted rows."""
    squares = np.square(workload.row_scales)
    if kind == "max":
        return _scaled(_nuclear_bounds(prefix_sum(workload.n), "max"), math.sqrt(squares.min()))
    return _scaled(_nuclear_bounds(prefix_sum(workload.n), squares), math.sqrt(squares.mean()))


def _block_bounds(workload: Workload, kind: LossKind) -> list[Bound]:
    """The bound of a leading block, of which C[:m, :m] and B[:m, :m] are a factorisation.

    C and B may be taken lower-triangular, as a rotation between them changes no norm (Remark 1.17), so that
    every diagonal block of A is factorised by those of B and C. Where all of them are the leading one, the
    RMS bound of one holds for all.
    """
    n = workload.n
    m, repeated = _block_size(workload)
    if isinstance(kind, str):
        share = math.sqrt((n // m * m if repeated else m) / n) if kind == "rms" else 1.0
        return _scaled(_nuclear_bounds(workload.truncate(m), kind), share)
    weights = row_weights(kind, n)[:m]
    if not weights.any():
        return []
    return _scaled(_nuclear_bounds(workload.truncate(m), weights), math.sqrt(weights.sum()))


def _block_size(workload: Workload) -> tuple[int, bool]:
    """Size of a leading block whose bound is cheap, and whether the diagonal blocks after it are the same."""
    if isinstance(workload, RestartDifferences) and workload.base.is_toeplitz:
        period = workload.period
        if workload.base.is_prefix_sum and period < workload.n:
            return period, True
        if period <= EXACT:
            return EXACT // period * period, True
    if workload.is_toeplitz:
        return workload.n // -(-workload.n // FFT_UP_TO), True
    return (FFT_UP_TO if workload.has_toeplitz_factor else EXACT), False


def _scaled(bounds: list[Bound], factor: float) -> list[Bound]:
    return [Bound(factor * bound.value * (1 - MARGIN), bound.theorem, bound.covers) for bound in bounds]
