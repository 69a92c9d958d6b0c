"""Error of a mechanism per step, and its loss.

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
from numpy.typing import ArrayLike

from anechoic import toeplitz
from anechoic._validate import Array, finite_array, one_of
from anechoic.errors import PerformanceWarning
from anechoic.participation import Participation
from anechoic.sensitivity import sensitivity
from anechoic.strategies import BLT, ColumnScaled, Identity, Output, Restarted, Strategy
from anechoic.strategies.blt_sums import prefix_decoder
from anechoic.workloads import Workload

LossKind = str | ArrayLike
KINDS = ("rms", "max", "last")

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

    def of(self, kind: LossKind) -> float:
        """The error that `kind` asks for: "rms", "max", "last", or weights w >= 0, shape (n,).

        Weights give sqrt(sum_t w_t e_t^2 / sum_t w_t), so that equal ones are "rms".

        Raises:
            ValueError: for anything else.
        """
        if isinstance(kind, str):
            match one_of("kind", kind, KINDS):
                case "rms":
                    return self.rms
                case "max":
                    return self.max
                case _:
                    return float(self.per_step[-1])
        return float(np.sqrt(row_weights(kind, self.n) @ np.square(self.per_step)))


def row_weights(kind: LossKind, n: int) -> Array:
    """Weights w of the squared errors of the n steps, shape (n,), sum 1: all but "max" is such a mean.

    Raises:
        ValueError: for "max", an unknown kind, or weights that are negative, all zero or not n in number.
    """
    if isinstance(kind, str):
        if one_of("kind", kind, KINDS) == "max":
            raise ValueError('kind="max" is no weighted mean of squared errors.')
        if kind == "rms":
            return np.full(n, 1.0 / n)
        last = np.zeros(n)
        last[-1] = 1.0
        return last
    weights = finite_array("kind", kind, length=n)
    if weights.min() < 0 or not weights.any():
        raise ValueError(
            f"weights of the steps must be >= 0 with one above 0; the smallest is {weights.min()},"
            f" the largest {weights.max()}."
        )
    return weights / weights.sum()


def tail_weights(kind: LossKind, n: int) -> Array:
    """v with squared error sum_s v_s b_s^2 for Toeplitz B of first column b, shape (n,): v_s = sum_{t >= s} w_t.

    Errors of a Toeplitz B do not decrease, so that "max" is "last", v = 1.
    """
    if isinstance(kind, str) and one_of("kind", kind, KINDS) in ("max", "last"):
        return np.ones(n)
    if isinstance(kind, str):
        return (n - np.arange(n, dtype=np.float64)) / n
    return np.cumsum(row_weights(kind, n)[::-1])[::-1].copy()


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


def loss(
    workload: Workload, strategy: Strategy, participation: Participation, kind: LossKind = "rms"
) -> float:
    """Sensitivity times error: what the error is per unit of noise multiplier, in root scale.

    Args:
        workload: A.
        strategy: C.
        participation: which steps one privacy unit may touch.
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
