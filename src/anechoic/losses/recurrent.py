"""Errors of BLTs and constant-recurrent strategies, column-scaled ones included, by their finite memory.

The rows of C^-1 Z come from a state of d numbers, and those of A from one of K numbers (prefix sums: 1), so
that the error of a step is read off the covariance of both. Without gains it follows from double sums
of geometric series (O((d + K)^3 log n), by doubling); with gains (scaled columns, learning rates) from linear
recursions over the steps with constant coefficients and varying input: O(n K d), all in `lfilter`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch

import numpy as np

from anechoic._validate import Array
from anechoic.algebra import toeplitz
from anechoic.algebra.exponentials import inverse_poles
from anechoic.algebra.systems import System, chained, power_sums, realisation, sequence
from anechoic.strategies import BLT, BandedInverse
from anechoic.strategies.base import Strategy
from anechoic.strategies.column_scaled import ColumnScaled
from anechoic.strategies.constant_recurrent import ConstantRecurrent
from anechoic.workloads.base import Workload
from anechoic.workloads.systems import workload_system

# Above this many states the recursions cost more than they save.
LARGEST = 64


@singledispatch
def inverse_system(strategy: Strategy) -> System | None:
    """The system from z to the rows of C^-1 z for the classes known here, or None."""
    return None


@inverse_system.register
def _(strategy: BLT) -> System:
    scale, decay = np.asarray(strategy.scale), np.asarray(strategy.decay)
    if (scale >= 0).all():
        residues, gaps = inverse_poles(scale, decay)
        return System(-residues, np.diag(-gaps), np.ones(len(gaps)), 1.0)
    return System(-scale, np.diag(decay - 1.0) - scale, np.ones(len(scale)), 1.0)


@inverse_system.register
def _(strategy: BandedInverse) -> System | None:
    if strategy.bands > LARGEST:
        return None
    return realisation(np.asarray(strategy.inverse_coefficients)[: strategy.bands], np.ones(1))


@inverse_system.register
def _(strategy: ConstantRecurrent) -> System | None:
    u, v, first = np.asarray(strategy.readout), np.asarray(strategy.input), strategy.first
    if len(u) > LARGEST:
        return None
    excess = np.asarray(strategy.transition) - np.eye(len(u)) - np.outer(v, u) / first
    return System(-u / first, excess, v / first, 1.0 / first)


def squared_norms(system: System, n: int) -> tuple[float, float]:
    """Of the n x n Toeplitz matrix of a system: squared norm of the last row, and of all rows over n."""
    sums = power_sums(system.excess, system.entry, n - 1)
    last = system.direct**2 + float(system.readout @ sums.once @ system.readout)
    every = n * system.direct**2 + float(system.readout @ sums.twice @ system.readout)
    return last, every / n


def scaled_squares(noise: System, workload: System, gains: Array) -> Array:
    """Squared norms of the rows of B = T diag(gains) C^-1, shape (n,), in O(n K (d + K)) time and memory.

    Args:
        noise: the system of C^-1.
        workload: the system of T, K states; its input is gains[t] times the output of `noise`.
        gains: shape (n,).

    Without gains, T C^-1 makes outputs y from states M = (s, m), those of T and of C^-1. With gains g, the
    states of T become g_t s_t + f_t for corrections f_{t+1} = Phi f_t + (g_t - g_{t+1}) s_{t+1}, and the
    outputs g_t y_t + psi^T f_t: no terms as large as s_t cancel. E[f M^T] and E[f f^T] follow linear
    recursions, driven by E[s_t M_t^T] = sum_{u < t} (F^u v)_s (F^u v)^T.
    """
    n, k = len(gains), len(workload.entry)
    noise, workload = _triangular(noise), _triangular(workload)
    joint = chained(noise, workload)
    steps = -np.diff(gains)
    powers = _driven(np.ones((1, 1)), joint.transition, _at_start(joint.entry, n))[0]  # F^(t-1) v, from t = 1
    response = joint.readout @ powers
    response[0] = joint.direct
    covariance = np.cumsum(powers[:k, None] * powers, axis=2)  # E[s_t M_t^T], shape (K, K + d, n)

    drive = np.zeros_like(covariance)
    drive[..., :-1] = steps * covariance[..., 1:]
    mixed = _driven(workload.transition, joint.transition, drive)  # E[f_t M_t^T]
    ahead = np.einsum("kNt,lN->klt", mixed, joint.transition[:k])  # E[f_t s_{t+1}^T]
    ahead = np.einsum("kj,jlt->klt", workload.transition, ahead)
    drive = np.zeros_like(ahead)
    drive[..., :-1] = steps * (ahead + np.swapaxes(ahead, 0, 1))[..., :-1]
    drive[..., :-1] += np.square(steps) * covariance[:, :k, 1:]
    corrections = _driven(workload.transition, workload.transition, drive)  # E[f_t f_t^T]

    squares = np.square(gains) * np.cumsum(np.square(response))
    squares = squares + 2.0 * gains * np.einsum("k,kNt,N->t", workload.readout, mixed, joint.readout)
    squares = squares + np.einsum("k,klt,l->t", workload.readout, corrections, workload.readout)
    return np.asarray(np.maximum(squares.real, 0.0))


def _at_start(entry: Array, n: int) -> Array:
    """`entry` as the input of step 0, shape (1, d, n)."""
    drive = np.zeros((1, len(entry), n), dtype=entry.dtype)
    drive[0, :, 0] = entry
    return drive


def _triangular(system: System) -> System:
    """The same system in coordinates in which its transition is upper triangular; complex where poles are."""
    from scipy.linalg import schur

    if not np.triu(system.excess, 1).any() and not np.tril(system.excess, -1).any():
        return system
    values, vectors = schur(system.excess)
    if np.diagonal(values, -1).any():
        values, vectors = schur(system.excess, output="complex")
    return System(system.readout @ vectors, np.triu(values), vectors.conj().T @ system.entry, system.direct)


def _driven(left: Array, right: Array, drive: Array) -> Array:
    """X_0, …, X_{n-1} of X_{t+1} = left X_t right^T + drive_t from X_0 = 0, shape (K, d, n) as `drive`.

    `left` (K, K) and `right` (d, d) are upper triangular, so that every entry is a scalar recursion over t.
    """
    states = np.zeros_like(drive, dtype=np.result_type(left, right, drive))
    for k in reversed(range(len(left))):
        for i in reversed(range(len(right))):
            total = drive[k, i].astype(states.dtype)
            for row in range(k, len(left)):
                for column in range(i, len(right)):
                    factor = left[k, row] * right[i, column]
                    if (row, column) != (k, i) and factor:
                        total += factor * states[row, column]
            pole = left[k, k] * right[i, i]
            states[k, i, 1:] = toeplitz.divided(total, np.array([1.0, -pole]))[:-1]
    return states


def toeplitz_error(workload: Workload, strategy: Strategy) -> tuple[float, float, Callable[[], Array]] | None:
    """Largest and mean squared error, and those of all steps when called, of B = A C^-1 that is Toeplitz.

    None where A or C has another structure than is known here.
    """
    if not workload.is_toeplitz:
        return None
    noise, sums = inverse_system(strategy), workload_system(workload, LARGEST)
    return None if noise is None or sums is None else _of_systems(strategy, noise, sums)


@singledispatch
def _of_systems(strategy: Strategy, noise: System, sums: System) -> tuple[float, float, Callable[[], Array]]:
    """`toeplitz_error` from the systems of C^-1 and A."""
    system = chained(noise, sums)
    last, mean = squared_norms(system, strategy.n)
    return last, mean, lambda: np.cumsum(np.square(system.impulse_response(strategy.n)))


@_of_systems.register
def _(strategy: BandedInverse, noise: System, sums: System) -> tuple[float, float, Callable[[], Array]]:
    """Few bands of C^-1, whose sum may be tiny: after them the state of A runs free."""
    inverse, n = np.asarray(strategy.inverse_coefficients), strategy.n
    head = []
    state = np.zeros(len(sums.entry))
    for value in inverse:
        head.append(sums.direct * value + sums.readout @ state)
        state = state + sums.excess @ state + sums.entry * value
    rest = n - len(head)
    squares = np.square(head)
    free = power_sums(sums.excess, state, rest)
    last = float(squares.sum() + sums.readout @ free.once @ sums.readout)
    every = float((n - np.arange(len(head))) @ squares + sums.readout @ free.twice @ sums.readout)

    def of_all_steps() -> Array:
        tail = sequence(sums.readout, sums.transition, state, rest) if rest else np.zeros(0)
        return np.cumsum(np.square(np.concatenate([head, tail])))

    return last, every / n, of_all_steps


@singledispatch
def unscaled(strategy: Strategy) -> tuple[Strategy, Array]:
    """(base, gains) with C^-1 = diag(gains) base^-1 after all scalings of columns are taken off."""
    return strategy, np.ones(strategy.n)


@unscaled.register
def _(strategy: ColumnScaled) -> tuple[Strategy, Array]:
    base, gains = unscaled(strategy.base)
    return base, gains / np.asarray(strategy.scales)


def squares_with_gains(workload: Workload, strategy: Strategy) -> Array | None:
    """Squared row norms of A C^-1, shape (n,), for C of finite memory with scaled columns, or A with rates.

    None where A or C is of another kind, or nothing is scaled.
    """
    base, gains = unscaled(strategy)  # A C^-1 = T diag(gains) base^-1
    noise, sums = inverse_system(base), workload_system(workload, LARGEST)
    if noise is None or sums is None or (base is strategy and workload.rates is None):
        return None
    if workload.rates is not None:
        gains = gains * workload.rates
    return scaled_squares(noise, sums, gains)
