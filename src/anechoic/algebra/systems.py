"""Sums over a sequence u^T F^t v in O(d^3 log n), by doubling: for constant-recurrent coefficients.

Nothing is diagonalised, so that poles may be complex, coincide, or be defective. Every sum is one of
positive semidefinite matrices, which loses no digits. All functions take stacks of matrices, real or
complex; transposes are never conjugated, so that complex steps pass through.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from anechoic._validate import Array


class PowerSums(NamedTuple):
    """Over t < n, with X_t = (F^t v)(F^t v)^T; each shape (…, d, d).

    Attributes:
        once: sum X_t.
        twice: sum (n - t) X_t.
        power: F^n - I.
    """

    once: Any
    twice: Any
    power: Any


def power_sums(excess: Any, vector: Any, n: int) -> PowerSums:
    """The sums of n >= 0 terms, for F = I + `excess`, shape (…, d, d), and v = `vector`, shape (…, d).

    F is given by what it exceeds the identity by, so that decays near 1 keep the digits of their distance.
    """
    eye = np.eye(excess.shape[-1])
    first = vector[..., :, None] * vector[..., None, :]
    once, twice, power = np.zeros_like(first), np.zeros_like(first), np.zeros_like(excess)
    done = 0
    for bit in format(n, "b"):
        factor = eye + power
        adjoint = np.swapaxes(factor, -1, -2)
        twice = twice + done * once + factor @ twice @ adjoint
        once = once + factor @ once @ adjoint
        power = 2.0 * power + power @ power
        done *= 2
        if bit == "1":
            factor = eye + excess
            adjoint = np.swapaxes(factor, -1, -2)
            twice = (done + 1) * first + factor @ twice @ adjoint
            once = first + factor @ once @ adjoint
            power = excess + power + excess @ power
            done += 1
    return PowerSums(once, twice, power)


class System(NamedTuple):
    """y_t = direct x_t + readout^T m_t, m_{t+1} = (I + excess) m_t + entry x_t, from m_0 = 0.

    Attributes:
        readout, entry: shape (d,).
        excess: shape (d, d).
        direct: the weight of the newest input.
    """

    readout: Array
    excess: Array
    entry: Array
    direct: float

    @property
    def transition(self) -> Array:
        return np.asarray(np.eye(len(self.entry)) + self.excess)

    def impulse_response(self, n: int) -> Array:
        """Weight of an input in the outputs from its own step on, shape (n,)."""
        tail = sequence(self.readout, self.transition, self.entry, n - 1)
        return np.concatenate([[self.direct], tail])


def realisation(numerator: Array, denominator: Array) -> System:
    """A system whose impulse response is the power series p / q, q_0 != 0 (Theorem 2.28).

    Args:
        numerator, denominator: coefficients of p and q, lowest power first.
    """
    p, q = numerator / denominator[0], denominator / denominator[0]
    d = max(len(p), len(q), 2) - 1
    p, q = np.pad(p, (0, d + 1 - len(p))), np.pad(q, (0, d + 1 - len(q)))
    transition = np.eye(d, k=-1)
    transition[0] = -q[1:]
    return System(p[1:] - p[0] * q[1:], transition - np.eye(d), np.eye(d)[0], float(p[0]))


def chained(first: System, second: System) -> System:
    """The system that feeds the output of `first` into `second`, whose states come first."""
    above = [second.excess, np.outer(second.entry, first.readout)]
    below = [np.zeros((len(first.entry), len(second.entry))), first.excess]
    return System(
        np.concatenate([second.readout, second.direct * first.readout]),
        np.block([above, below]),
        np.concatenate([second.entry * first.direct, first.entry]),
        second.direct * first.direct,
    )


def sequence(readout: Array, transition: Array, vector: Array, n: int) -> Array:
    """u^T F^t v for t < n, shape (n,), in O(n d) multiply-adds, in blocks of about sqrt(n) steps."""
    rows = readout[None, :]
    power = transition
    while len(rows) ** 2 < n:  # rows u^T F^t for t below a power of two
        rows = np.concatenate([rows, rows @ power])
        power = power @ power
    columns = [vector]
    for _ in range(-(-n // len(rows)) - 1):
        columns.append(power @ columns[-1])
    return np.asarray((np.stack(columns) @ rows.T).reshape(-1)[:n])
