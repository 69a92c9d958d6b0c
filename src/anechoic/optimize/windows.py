"""Dense strategies for schemas whose patterns overlap: M vanishes on them, its diagonal is free.

Where C^T C vanishes between any two steps of a pattern, sens^2 is the largest sum of its diagonal d over a
pattern. For minimum separation the patterns are the 0/1 vectors of {w >= 0: sum over every window of b
steps <= 1, sum over all <= k}, a polytope with integral vertices (its rows are intervals). So by linear
duality

    sens^2 <= 1   exactly where   d_t <= z + sum of y over the windows that hold t,   sum y + k z <= 1,   y,
    z >= 0,

and the loss is minimised over such d = z + windows, and C with these column norms, by L-BFGS without
constraints. One step an epoch is the same with one window for each epoch. Problem 4.8 is the case y = 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, singledispatch

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from anechoic._validate import Array
from anechoic.algebra import toeplitz
from anechoic.participation import MinSep, OncePerEpoch
from anechoic.participation.base import Participation

LEAST = 25.0  # logarithm of the largest ratio of two weights: sums of windows keep some digits of each
STAGES = (4.0, 16.0, 64.0, 256.0, 1024.0)  # powers of the errors whose mean stands for the maximum


class Windows:
    """The column norms allowed by a schema, sens^2 <= 1, in free parameters.

    Args:
        width: steps of a window.
        count: participations in all, where they are fewer than the windows allow, else None.
        first, last: of the windows that hold each step, named by where they begin, shape (n,).
        other: logarithm of the weight at which windows begin that do not follow one another.
    """

    def __init__(
        self, width: int, count: int | None, first: NDArray[np.int64], last: NDArray[np.int64], other: float
    ) -> None:
        self.n, self.width, self.count = len(first), width, count
        self._from, self._to, self._other = first, last + 1, other

    @cached_property
    def mask(self) -> NDArray[np.bool_]:
        """Entries that C may have, shape (n, n): on and below the diagonal, of two steps in one window."""
        steps = np.arange(self.n)
        return np.asarray((steps[:, None] >= steps) & (self._from[:, None] < self._to))

    def begin(self) -> Array:
        """Equal weights on windows that follow one another; nearly all on z where k restricts."""
        logs = np.full(self.n + 1, self._other)
        logs[: self.n : self.width] = 0.0 if self.count is None else -3.0
        logs[self.n] = 0.0
        return logs if self.count is not None else logs[: self.n]

    def shares(self, logs: Array) -> Array:
        weights = np.exp(np.maximum(logs - logs.max(), -LEAST))  # no column vanishes
        return np.asarray(weights / weights.sum())

    def diagonal(self, shares: Array) -> Array:
        """d, shape (n,)."""
        sums = np.concatenate([[0.0], np.cumsum(shares[: self.n])])
        d = sums[self._to] - sums[self._from]
        return np.asarray(d if self.count is None else d + shares[self.n] / self.count)

    def gradient(self, shares: Array, by_d: Array) -> Array:
        """By the logarithms, from that by d."""
        changes = np.bincount(self._from, by_d, self.n + 1) - np.bincount(self._to, by_d, self.n + 1)
        by_share = np.cumsum(changes)[: self.n]
        if self.count is not None:
            by_share = np.append(by_share, by_d.sum() / self.count)
        return np.asarray(shares * (by_share - shares @ by_share))


def power_mean(squares: Array, power: float) -> tuple[float, Array]:
    """The mean of that power of the squared errors as a smooth maximum, and its derivatives."""
    largest = float(squares.max())
    shares = (squares / largest) ** (power - 1)
    mean = float((shares * squares / largest).mean())
    return largest * mean ** (1 / power), shares * mean ** (1 / power - 1) / len(squares)


@singledispatch
def windows_of(participation: Participation, n: int) -> Windows | None:
    """The windows of a schema that is described by such, else None."""
    return None


@windows_of.register
def _(participation: OncePerEpoch, n: int) -> Windows:
    first = np.arange(n) // participation.period * participation.period
    return Windows(participation.period, None, first, first, -LEAST)  # all others are no windows


@windows_of.register
def _(participation: MinSep, n: int) -> Windows:
    steps, width = np.arange(n), participation.separation
    count = participation.max_participations_in(n)
    fewer = count < -(-n // width)
    first = np.maximum(steps - width + 1, 0)
    return Windows(width, count if fewer else None, first, steps, -9.0 if fewer else -6.0)


class WindowsObjective:
    """log of the error of C with column norms sqrt(d), and its gradient, at the entries of C and those of d.

    Args:
        workload: A, shape (n, n).
        weights: of the squared errors; None for the max loss.
    """

    def __init__(self, workload: Array, windows: Windows, weights: Array | None) -> None:
        self.workload, self.windows, self.weights = workload, windows, weights
        self.power = 1.0
        self.evaluations = 0
        self.entries = int(windows.mask.sum())
        self._last: tuple[Array, float] | None = None

    def strategy(self, x: Array) -> Array:
        """C; the sign of a row changes nothing, and is chosen so that its diagonal is positive."""
        raw, norms, d, _ = self._unpack(x)
        c = raw * (np.sqrt(d) / norms)
        return np.asarray(np.where(c.diagonal() < 0, -1.0, 1.0)[:, None] * c)

    def _unpack(self, x: Array) -> tuple[Array, Array, Array, Array]:
        raw = np.zeros(self.workload.shape)
        raw[self.windows.mask] = x[: self.entries]
        shares = self.windows.shares(x[self.entries :])
        return raw, np.sqrt(np.square(raw).sum(axis=0)), self.windows.diagonal(shares), shares

    def loss(self, x: Array) -> float:
        """Of the parameters asked for last, or anew."""
        if self._last is None or not np.array_equal(self._last[0], x):
            self._last = x.copy(), self._computed(x)[2]
        return self._last[1]

    def __call__(self, x: Array) -> tuple[float, Array]:
        value, gradient, loss = self._computed(x)
        self._last = x.copy(), loss
        return value, gradient

    def _computed(self, x: Array) -> tuple[float, Array, float]:
        """What is minimised, its gradient, and the loss."""
        self.evaluations += 1
        raw, norms, d, shares = self._unpack(x)
        scales = np.sqrt(d) / norms
        c = raw * scales
        b = solve_triangular(c, self.workload.T, trans="T", lower=True).T
        squares = np.square(b).sum(axis=1)
        if self.weights is not None:
            value, weighted = float(self.weights @ squares), self.weights
            exact = value
        else:
            exact, (value, weighted) = float(squares.max()), power_mean(squares, self.power)
        # the derivative of sum_t w_t e_t^2 by C is -2 B^T diag(w) B C^-T
        gram = b.T @ (weighted[:, None] * b)
        by_c = -solve_triangular(c, gram, lower=True).T / value * self.windows.mask
        by_raw = by_c * scales
        unit = raw / norms
        by_raw -= unit * (by_raw * unit).sum(axis=0)
        by_d = (by_c * c).sum(axis=0) / (2 * d)
        gradient = np.concatenate([by_raw[self.windows.mask], self.windows.gradient(shares, by_d)])
        return 0.5 * float(np.log(value)), gradient, float(np.sqrt(exact))


def windows_strategy(
    workload: Array,
    windows: Windows,
    weights: Array | None,
    enough: float,
    progress: Callable[[int, float], None] | None,
    *,
    rounds: int = 1000,
) -> tuple[Array, int]:
    """C, shape (n, n), and the evaluations it took; stops when the loss is at most `enough`.

    Of the strategies whose Gram matrix vanishes on the patterns; `rounds` of L-BFGS, the best one is kept.
    """
    n = len(workload)
    objective = WindowsObjective(workload, windows, weights)
    root = toeplitz.dense(toeplitz.power(np.ones(n), 0.5, n), n)
    x = np.concatenate([root[windows.mask], windows.begin()])
    best: list[tuple[float, Array]] = [(objective.loss(x), x)]

    def callback(x: Array) -> None:
        reached = objective.loss(x)
        if reached < best[0][0]:
            best[0] = (reached, x.copy())
        if progress is not None:
            progress(objective.evaluations, best[0][0])
        if reached <= enough:
            raise StopIteration

    stages = (1.0,) if weights is not None else STAGES
    for power in stages:
        objective.power = power
        options = {"maxiter": rounds // len(stages), "maxcor": 20, "ftol": 1e-12, "gtol": 1e-9}
        options["maxfun"] = 2 * rounds
        scipy.optimize.minimize(
            objective, best[0][1], jac=True, method="L-BFGS-B", callback=callback, options=options
        )
    return objective.strategy(best[0][1]), objective.evaluations
