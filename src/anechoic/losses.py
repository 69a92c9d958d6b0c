"""Error of a mechanism per step, its loss, and what no mechanism can beat.

B = A C^-1 maps i.i.d. noise of variance 1 to the error of the n weighted prefix sums: the error of step
t is the norm of row t of B, a standard deviation per coordinate. Loss is sensitivity times error.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from anechoic import toeplitz
from anechoic._validate import Array, one_of, positive_int
from anechoic.errors import PerformanceWarning
from anechoic.participation import Participation
from anechoic.sensitivity import sensitivity
from anechoic.strategies import BLT, ColumnScaled, Identity, Output, Restarted, Strategy
from anechoic.strategies.blt_sums import prefix_decoder
from anechoic.workloads import Workload

# Multiply-adds and array entries from which work that grows with n^2 is announced, or cut into pieces.
SLOW_FROM = 2e10
CHUNK = 2**22


@dataclass(frozen=True, eq=False)
class Error:
    """Standard deviations of the error of the n releases, for z of variance 1 (and dimension 1).

    Attributes:
        n: steps.
        max: largest error of a step.
        rms: root mean square over the steps, ||B||_F / sqrt(n).
    """

    n: int
    max: float
    rms: float
    _squared: Callable[[], Array] = field(repr=False)

    @cached_property
    def per_step(self) -> Array:
        """Error of every step, shape (n,); computed, and O(n) of memory taken, when first asked for."""
        return np.asarray(np.sqrt(self._squared()))


def error(workload: Workload, strategy: Strategy) -> Error:
    """Row norms of B = A C^-1.

    Toeplitz C with a Toeplitz workload takes O(n log n) or less; a BLT for prefix sums O(d^2), whatever
    n is. Where A has learning rates, or C scaled columns, only the rows from the first change of the
    diagonals on differ from a Toeplitz matrix: each of them takes O(n), so that column-normalised
    banded Toeplitz takes O(n bands), and n steps of varying rates O(n^2) time and O(n) memory. Anything
    else is solved in blocks of columns. No n x n array is made.

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
    if workload.is_prefix_sum and isinstance(strategy, Identity):
        return Error(n, math.sqrt(n), math.sqrt((n + 1) / 2), lambda: np.arange(1.0, n + 1.0))
    if workload.is_prefix_sum and isinstance(strategy, BLT):
        decoder = prefix_decoder(np.asarray(strategy.scale), np.asarray(strategy.decay))
        if decoder is not None:
            largest, mean = decoder.squared_errors(n)
            squares = lambda: np.cumsum(np.square(decoder.coefficients(n)))  # noqa: E731
            return Error(n, math.sqrt(largest), math.sqrt(mean), squares)
    return _of_squares(_squared_errors(workload, strategy))


def loss(workload: Workload, strategy: Strategy, participation: Participation, kind: str = "rms") -> float:
    """Sensitivity times error: what the error is per unit of noise multiplier, in root scale.

    Args:
        workload: A.
        strategy: C.
        participation: which steps one privacy unit may touch.
        kind: "rms" or "max" over the steps.

    Raises:
        ValueError: for an unknown kind, or where sensitivity or error refuse.

    References:
        Monograph, Definitions 2.3 (max) and 2.23 (RMS), Theorem 3.9.
    """
    kind = one_of("kind", kind, ("rms", "max"))
    size = error(workload, strategy)
    return float(sensitivity(strategy, participation)) * (size.rms if kind == "rms" else size.max)


def prefix_sum_lower_bound(n: int) -> float:
    """No strategy has a smaller RMS loss, hence max loss, for prefix sums and one participation.

    The nuclear norm of A_pre over n: ||A||_* <= ||B||_F ||C||_F for A = BC, and ||C||_F is at most
    sqrt(n) times the largest column norm. The singular values of A_pre are 1 / (2 sin((2t-1) pi / (4n+2))).

    Args:
        n: steps, >= 1. From 10**6 on, all but the first terms are summed by the Euler-Maclaurin formula.
            The result is rounded down by more than what it leaves out.

    Raises:
        ValueError: if n is not an integer >= 1.
    """
    n = positive_int("n", n)
    step = math.pi / (2 * n + 1)
    terms = n if n < 10**6 else 1000
    angles = (np.arange(terms) + 0.5) * step
    total = float((0.5 / np.sin(angles)).sum())
    if terms < n:
        first, last = terms * step, n * step
        integral = 0.5 * (math.log(math.tan(last / 2)) - math.log(math.tan(first / 2)))
        slope = 0.5 * (math.cos(first) / math.sin(first) ** 2 - math.cos(last) / math.sin(last) ** 2)
        # the next term of the midpoint rule is 7/5760 step^3 g''': below 1e-11 of the last one kept
        total += integral / step - slope * step / 24
    return total * (1 - 1e-12) / n


def _same_steps(workload: Workload, strategy: Strategy) -> None:
    if not isinstance(workload, Workload):
        raise ValueError(f"workload={workload!r} must be a Workload, such as workloads.prefix_sum(n).")
    if not isinstance(strategy, Strategy):
        raise ValueError(f"strategy={strategy!r} must be a Strategy, such as strategies.Identity(n).")
    if workload.n != strategy.n:
        raise ValueError(
            f"workload has n={workload.n} steps but strategy has n={strategy.n}: build both for the same run."
        )


def _of_squares(squares: Array) -> Error:
    return Error(len(squares), float(np.sqrt(squares.max())), float(np.sqrt(squares.mean())), lambda: squares)


def _squared_errors(workload: Workload, strategy: Strategy) -> Array:
    """Squared row norms of B, shape (n,), by the cheapest way that the structures allow."""
    if workload.is_prefix_sum and isinstance(strategy, Restarted):
        # blocks are independent, and every later prefix sum holds the whole of a finished block
        block = np.square(error(workload.truncate(strategy.base.n), strategy.base).per_step)
        finished = np.repeat(np.arange(strategy.times), len(block)) * block[-1]
        return np.asarray((finished + np.tile(block, strategy.times))[: strategy.n])
    factors = _toeplitz_factor(strategy)
    if factors is None:
        return _by_columns(workload, strategy)
    c, scales = factors
    gains = np.ones(1)  # A C^-1 = T diag(gains) C_Toeplitz^-1
    if workload.rates is not None:
        gains = workload.rates
    if scales is not None:
        gains = gains / scales
    changes = np.flatnonzero(gains != gains[0])
    b = gains[0] * toeplitz.solve(c, workload.coefficients)
    squares = np.cumsum(np.square(b))
    if not len(changes):
        return squares
    first = int(changes[0])
    past = workload.inverse_coefficients
    if len(past) > 16:
        return _by_columns(workload, strategy)
    _announce((workload.n - first) * workload.n * len(past), strategy)
    squares[first:] = _scaled_rows(b, toeplitz.inverse(c, workload.n), gains, past, first)
    return squares


def _toeplitz_factor(strategy: Strategy) -> tuple[Array, Array | None] | None:
    """First column of T and diagonal of D for C = T D, or None where C is not of this form."""
    if strategy.structure.toeplitz:
        return strategy.coefficients[: strategy.structure.bands], None
    if isinstance(strategy, Output) and strategy.workload is not None:
        return strategy.workload.coefficients, strategy.workload.rates
    if isinstance(strategy, ColumnScaled):
        inner = _toeplitz_factor(strategy.base)
        if inner is not None:
            c, scales = inner
            own = np.asarray(strategy.scales)
            return c, own if scales is None else own * scales
    return None


def _scaled_rows(b: Array, inverse: Array, gains: Array, past: Array, first: int) -> Array:
    """Squared norms of the rows first, …, n-1 of B = T diag(gains) C^-1, shape (n - first,).

    T^-1 B = diag(gains) C^-1 gives each row from the len(past) - 1 rows before it. Rows before `first`
    are those of the Toeplitz matrix with first column `b`.
    """
    n = len(b)
    backwards = inverse[::-1].copy()
    rows = deque((b[t::-1] for t in range(first - 1, -1, -1)[: len(past) - 1]), maxlen=len(past) - 1)
    squares = np.empty(n - first)
    for t in range(first, n):
        row = gains[t] * backwards[n - 1 - t :]
        for weight, earlier in zip(past[1:], rows, strict=False):  # latest first
            row[: len(earlier)] -= weight * earlier
        row /= past[0]
        rows.appendleft(row)
        squares[t - first] = row @ row
    return squares


def _by_columns(workload: Workload, strategy: Strategy) -> Array:
    """Squared row norms of B from blocks of its columns: B e_j = A (L e_j)."""
    n, rows = strategy.n, strategy.rows
    _announce(n * rows * max(strategy.structure.bands, 16), strategy)
    width = max(1, CHUNK // rows)
    squares = np.zeros(n)
    for start in range(0, rows, width):
        block = np.zeros((rows, min(width, rows - start)))
        block[start + np.arange(block.shape[1]), np.arange(block.shape[1])] = 1.0
        columns = workload.multiply(strategy.correlate(block))
        squares += np.einsum("tj,tj->t", columns, columns)
    return squares


def _announce(operations: float, strategy: Strategy) -> None:
    if operations > SLOW_FROM:
        message = (
            f"error of {strategy.describe()} takes about {operations:.0e} operations: its structure does not"
            " allow less here. A Toeplitz strategy with a Toeplitz workload does."
        )
        warnings.warn(message, PerformanceWarning, stacklevel=4)
