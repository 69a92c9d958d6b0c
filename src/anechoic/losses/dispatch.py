"""Error of a strategy per step, and its loss.

B = A C^-1 maps i.i.d. noise of variance 1 to the error of the n weighted prefix sums: the error of step
t is the norm of row t of B, a standard deviation per coordinate. Loss is sensitivity times error.
"""

from __future__ import annotations

import math
import warnings
from functools import singledispatch

import numpy as np

from anechoic._validate import Array, one_of
from anechoic.algebra import banded
from anechoic.algebra.exponentials import prefix_decoder
from anechoic.errors import PerformanceWarning
from anechoic.losses.norms import KINDS, LossNorm
from anechoic.losses.recurrent import squares_with_gains, toeplitz_error
from anechoic.losses.result import StepErrors
from anechoic.losses.rows import restart_squares, restart_squares_of_rows, scaled_rows
from anechoic.participation.base import Participation
from anechoic.participation.single import SINGLE
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.strategies import BLT, FullTree, Identity, Output, Restarted, Tree
from anechoic.strategies.banded import columns_of
from anechoic.strategies.base import Strategy
from anechoic.strategies.column_scaled import ColumnScaled
from anechoic.strategies.tree_aggregation import TreeAggregation
from anechoic.workloads.base import Workload, checked_workload, impulse
from anechoic.workloads.inverses import recursion_columns

# Multiply-adds and array entries from which work that grows with n^2 is announced, or cut into pieces.
SLOW_FROM = 2e10

CHUNK = 2**22

# Ratio of squared errors, a later one the smaller, from which rows are not made from those before them.
SHRUNK = 1e5

# Terms of a series with which a recursion over the rows of B beats whole columns.
SHORT = 16


def error(workload: Workload, strategy: Strategy) -> StepErrors:
    """Return the row norms of $B = A C^-1$.

    Toeplitz C with a Toeplitz workload takes O(n log n) or less, and so do restart differences of one and
    restarts of C for prefix sums; a BLT for prefix sums takes O(d^2), whatever n is. Where A has learning
    rates, or C scaled columns, only the rows from the first change of the diagonals on differ from a Toeplitz
    matrix: each of them takes O(n), so that column-normalised banded Toeplitz takes O(n bands), and n steps
    of varying rates O(n^2) time and O(n) memory. Anything else is solved in blocks of columns. No n x n
    array is made.

    Args:
        workload: A, n steps.
        strategy: C, the same n.

    Raises:
        ValueError: if an argument is of another kind, or the numbers of steps differ.

    Example:
        >>> from anechoic import strategies, workloads
        >>> error(workloads.prefix_sum(16), strategies.Identity(16)).max
        4.0

    References:
        Monograph, Theorems 2.2 and 2.22, Eq. (4.11), and Lemma 2.29 (b, c), whose linear terms lack a minus.
    """
    _same_steps(workload, strategy)
    n = strategy.n
    known = closed_error(strategy, workload)
    if known is not None:
        return known
    closed = toeplitz_error(workload, strategy)
    if closed is not None:
        largest, mean, squares = closed
        return StepErrors(n, math.sqrt(largest), math.sqrt(mean), squares, math.sqrt(largest))
    errors = _squared_errors(workload, strategy)
    return StepErrors(n, float(np.sqrt(errors.max())), float(np.sqrt(errors.mean())), lambda: errors)


@singledispatch
def closed_error(strategy: Strategy, workload: Workload) -> StepErrors | None:
    """`error` where a formula for this class and workload gives it at once, else None."""
    return None


@closed_error.register
def _(strategy: Identity, workload: Workload) -> StepErrors | None:
    if not workload.is_prefix_sum:
        return None
    n, root = strategy.n, math.sqrt(strategy.n)
    return StepErrors(n, root, math.sqrt((n + 1) / 2), lambda: np.arange(1.0, n + 1.0), root)


@closed_error.register
def _(strategy: Output, workload: Workload) -> StepErrors | None:
    if not _same(workload, strategy.workload):
        return None
    return StepErrors(strategy.n, 1.0, 1.0, lambda: np.ones(strategy.n), 1.0)


@closed_error.register
def _(strategy: BLT, workload: Workload) -> StepErrors | None:
    if not workload.is_prefix_sum:
        return None
    decoder = prefix_decoder(np.asarray(strategy.scale), np.asarray(strategy.decay))
    if decoder is None:
        return None
    n = strategy.n
    largest, mean = decoder.squared_errors(n)
    squares = lambda: np.cumsum(np.square(decoder.coefficients(n)))  # noqa: E731
    return StepErrors(n, math.sqrt(largest), math.sqrt(mean), squares, math.sqrt(largest))


def loss(
    workload: Workload, strategy: Strategy, participation: Participation = SINGLE, kind: LossNorm = "rms"
) -> float:
    """Return sensitivity times error: what the error is per unit of noise multiplier, in root scale.

    Args:
        workload: A.
        strategy: C.
        participation: which steps one privacy unit may touch; one of them by default.
        kind: "rms" or "max" over the steps, "last" for the last step alone, or weights of the steps, >= 0,
            shape (n,).

    Raises:
        ValueError: for an unknown kind, or where sensitivity or error refuse.

    References:
        Monograph, Definitions 2.3 (max) and 2.23 (RMS), Theorem 3.9.
    """
    if isinstance(kind, str):
        one_of("kind", kind, KINDS)
    return error(workload, strategy).of(kind) * float(sensitivity(strategy, participation))


def _same_steps(workload: Workload, strategy: Strategy) -> None:
    checked_workload(workload)
    if not isinstance(strategy, Strategy):
        raise ValueError(f"strategy={strategy!r} must be a Strategy, such as strategies.Identity(n).")
    if workload.n != strategy.n:
        raise ValueError(
            f"workload has n={workload.n} steps but strategy has n={strategy.n}: build both for the same run."
        )


def _same(workload: Workload, other: Workload | None) -> bool:
    """Whether the two are known to be equal, without asking for their entries."""
    if workload is other or other is None:
        return other is not None
    return workload.is_prefix_sum and other.is_prefix_sum


def _squared_errors(workload: Workload, strategy: Strategy) -> Array:
    """Squared row norms of B, shape (n,), by the first way that the structures allow: the cheapest first."""
    squares = own_squares(strategy, workload)
    if squares is not None and _kept_digits(squares):
        return squares
    for way in (_of_toeplitz, squares_with_gains, _of_bands, _of_scaled_toeplitz):
        squares = way(workload, strategy)
        if squares is not None and (way is _of_toeplitz or _kept_digits(squares)):
            return squares
    return _by_columns(workload, strategy)


def _kept_digits(squares: Array) -> bool:
    """Whether recursions over the rows kept their digits: rounding is relative to the largest row so far.

    Where learning rates fall by orders of magnitude, sums over a window or since a restart can become tiny.
    Toeplitz rows are sums of squares since the restart, of which none is taken off again.
    """
    with np.errstate(invalid="ignore"):
        return bool((np.maximum.accumulate(squares) <= SHRUNK * squares).all())


@singledispatch
def own_squares(strategy: Strategy, workload: Workload) -> Array | None:
    """Squared row norms of B by a way of this class of strategies alone, shape (n,), or None."""
    return None


@own_squares.register(Tree)
@own_squares.register(FullTree)
@own_squares.register(TreeAggregation)
def _(strategy: Tree | FullTree | TreeAggregation, workload: Workload) -> Array | None:
    """Trees for prefix sums: variances of nodes, weighted by the digits of the step."""
    return strategy.prefix_errors_squared() if workload.is_prefix_sum else None


@own_squares.register
def _(strategy: Restarted, workload: Workload) -> Array | None:
    """Restarts with a Toeplitz workload: B is block Toeplitz, so that its first block of columns is all."""
    if not workload.is_toeplitz:
        return None
    length, times = strategy.base.n, strategy.times
    if workload.is_prefix_sum:
        # every later prefix sum holds the whole of a finished block
        block = np.square(error(workload.truncate(length), strategy.base).per_step)
        finished = np.repeat(np.arange(times), length) * block[-1]
        return np.asarray((finished + np.tile(block, times))[: strategy.n])
    squares = np.zeros(times * length)
    squares[: strategy.n] = _by_columns(workload, strategy, columns=min(strategy.base.rows, strategy.rows))
    return np.cumsum(squares.reshape(times, length), axis=0).reshape(-1)[: strategy.n]


def _of_toeplitz(workload: Workload, strategy: Strategy) -> Array | None:
    """Toeplitz B, or differences of its rows: its first column is enough."""
    plain, period = _without_restarts(workload)
    factors = _toeplitz_factors(plain, strategy)
    if factors is None:
        return None
    inverse, rates, gains = factors
    if (gains != gains[0]).any():
        return None
    b = plain.multiply(gains[0] * inverse / rates)
    return np.cumsum(np.square(b)) if period is None else restart_squares(b, period)


def _of_scaled_toeplitz(workload: Workload, strategy: Strategy) -> Array | None:
    """B = T diag(gains) K with T and K Toeplitz: by a recursion over the rows, if T is short."""
    plain, period = _without_restarts(workload)
    factors = _toeplitz_factors(plain, strategy)
    if factors is None:
        return None
    inverse, rates, gains = factors
    numerator, denominator = plain.fraction
    terms = int(np.count_nonzero(numerator)) + len(denominator)
    if terms > SHORT:
        return None
    first = int(np.flatnonzero(gains != gains[0])[0]) if period is None else 0
    _announce((workload.n - first) * workload.n * terms, strategy)
    b = plain.multiply(gains[0] * inverse / rates)  # the rows before `first` are Toeplitz
    rows = scaled_rows(b, inverse, gains, numerator, denominator, first)
    if period is not None:
        return restart_squares_of_rows(rows, workload.n, period)
    squares = np.cumsum(np.square(b))
    squares[first:] = [row @ row for row in rows]
    return squares


def _toeplitz_factors(workload: Workload, strategy: Strategy) -> tuple[Array, Array, Array] | None:
    """For B = T diag(gains) K: the first column of K, the rates of the workload, and the gains."""
    factors = _toeplitz_inverse(strategy) if workload.has_toeplitz_factor else None
    if factors is None:
        return None
    inverse, scales = factors
    rates = np.ones(workload.n) if workload.rates is None else workload.rates
    return inverse, rates, rates if scales is None else rates / scales


def _of_bands(workload: Workload, strategy: Strategy) -> Array | None:
    """Few bands of C and of a recursion for A give the row norms of B in O(n bands^2)."""
    n, bands = strategy.n, strategy.structure.bands
    if strategy.rows != n or 4 * bands > n:
        return None
    if workload.is_toeplitz and _toeplitz_inverse(strategy) is not None:
        return None
    parts = recursion_columns(workload)
    if parts is None or 4 * (bands + max(part.shape[1] for part in parts)) > n:
        return None
    if len(parts) == 2:
        return banded.sums_squared(columns_of(strategy), *parts)
    return banded.inverse_row_norms_squared(banded.product(columns_of(strategy), *parts))


def _without_restarts(workload: Workload) -> tuple[Workload, int | None]:
    """The workload of which differences are taken, and their period; or the workload itself and None."""
    return (workload, None) if workload.restarts is None else workload.restarts


def _toeplitz_inverse(strategy: Strategy) -> tuple[Array, Array | None] | None:
    """First column of T^-1 and diagonal of D for C = T D, or None where C is not of this form."""
    if strategy.structure.toeplitz and strategy.rows == strategy.n:
        return strategy.correlate(impulse(strategy.n)), None
    return _scaled_inverse(strategy)


@singledispatch
def _scaled_inverse(strategy: Strategy) -> tuple[Array, Array | None] | None:
    """`_toeplitz_inverse` of C that is not Toeplitz itself."""
    return None


@_scaled_inverse.register
def _(strategy: Output) -> tuple[Array, Array | None] | None:
    workload = strategy.workload
    if workload is None or not workload.has_toeplitz_factor or workload.rates is None:
        return None
    return workload.solve(impulse(workload.n)) * workload.rates, workload.rates


@_scaled_inverse.register
def _(strategy: ColumnScaled) -> tuple[Array, Array | None] | None:
    inner = _toeplitz_inverse(strategy.base)
    if inner is None:
        return None
    inverse, scales = inner
    own = np.asarray(strategy.scales)
    return inverse, own if scales is None else own * scales


def _by_columns(workload: Workload, strategy: Strategy, columns: int | None = None) -> Array:
    """Squared row norms of the first `columns` columns of B (all of them), in blocks: B e_j = A (L e_j)."""
    n, rows = strategy.n, strategy.rows
    count = rows if columns is None else columns
    _announce(n * count * max(strategy.structure.bands, 16), strategy)
    width = max(1, CHUNK // rows)
    squares = np.zeros(n)
    for start in range(0, count, width):
        block = np.zeros((rows, min(width, count - start)))
        block[start + np.arange(block.shape[1]), np.arange(block.shape[1])] = 1.0
        found = workload.multiply(strategy.correlate(block))
        squares += np.einsum("tj,tj->t", found, found)
    return squares


def _announce(operations: float, strategy: Strategy) -> None:
    if operations > SLOW_FROM:
        message = (
            f"error of {strategy.describe()} takes about {operations:.0e} operations: its structure does not"
            " allow less here. A Toeplitz strategy with a Toeplitz workload does."
        )
        warnings.warn(message, PerformanceWarning, stacklevel=4)
