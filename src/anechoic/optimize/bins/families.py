"""Entrywise non-negative Toeplitz strategies by few numbers, and gradients by these from those by C."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from anechoic._validate import Array
from anechoic.algebra import toeplitz
from anechoic.strategies import BLT, BandedInverse, BandedToeplitz
from anechoic.strategies.base import Strategy
from anechoic.strategies.toeplitz import power_coefficients, square_root_coefficients
from anechoic.workloads.base import Workload

_LEAST = 1e-6  # of a coefficient of C^-1 to begin with
_RATIO = 1.7  # of neighbouring knots
_LOWEST = -12.0  # log of a coefficient
_LARGEST = 14.0  # of the logarithms below
_DECAYS = (0.5, 0.999)  # those a BLT starts from, at the ends


class Family(ABC):
    """Non-negative first columns with c_0 = 1, by parameters in a box."""

    start: Array
    bounds: Sequence[tuple[float, float]]

    @abstractmethod
    def column(self, x: Array) -> Array:
        """The first column, shape (taps,)."""

    @abstractmethod
    def pullback(self, x: Array, by_column: Array) -> Array:
        """Gradient by the parameters, from that by the column."""

    @abstractmethod
    def strategy(self, x: Array) -> Strategy:
        """C."""


class BandedFamily(Family):
    """c_1, …, c_{p-1} > 0, their logarithms linear in log t between knots at t = 1, 2, 4, …, p - 1.

    With every coefficient free a minimiser fits the samples: on 2000 of them it gained a tenth that fresh
    ones did not confirm.
    """

    def __init__(self, workload: Workload, bands: int, start: Array | None = None) -> None:
        self.n = workload.n
        found = square_root_coefficients(workload, bands) if start is None else start
        t = np.arange(1, bands)
        knots = np.unique(np.rint(np.geomspace(1, max(bands - 1, 1), _knots(bands))).astype(int))
        logs = np.log(np.maximum(found[knots] / found[0], np.exp(_LOWEST))) if bands > 1 else np.zeros(0)
        self.start = logs
        self.bounds = [(_LOWEST, 1.0)] * len(logs)
        # row t - 1: what every knot adds to log c_t
        self._shares = np.stack(
            [np.interp(np.log(t), np.log(knots), unit) for unit in np.eye(len(knots))], axis=1
        )
        self._shares = self._shares[:, : len(logs)]

    def column(self, x: Array) -> Array:
        return np.append(1.0, np.exp(self._shares @ x))

    def pullback(self, x: Array, by_column: Array) -> Array:
        return np.asarray((by_column[1:] * np.exp(self._shares @ x)) @ self._shares)

    def strategy(self, x: Array) -> Strategy:
        return BandedToeplitz(self.n, self.column(x))


def _knots(bands: int) -> int:
    return 1 + round(math.log(max(bands - 1, 1)) / math.log(_RATIO))


class BandedInverseFamily(Family):
    """C^-1 = 1 - r_1 x - …, 0 < r < 1: C is then non-negative. Two bands are one decay (lambda-CGD).

    The parameters are log(r / (1 - r)), in which a first step cannot leave the series that stay bounded.
    """

    def __init__(self, workload: Workload, bands: int) -> None:
        self.n, self.bands = workload.n, bands
        r = np.clip(-power_coefficients(workload, -0.5, bands)[1:], _LEAST, 1 - _LEAST)
        self.start = np.log(r / (1 - r))
        self.bounds = [(-_LARGEST, _LARGEST)] * (bands - 1)

    def _inverse(self, x: Array) -> Array:
        return np.append(1.0, -1 / (1 + np.exp(-x)))

    def column(self, x: Array) -> Array:
        return toeplitz.inverse(self._inverse(x), self.n)

    def pullback(self, x: Array, by_column: Array) -> Array:
        # d(1/q) = -c^2 dq, and q = 1 - r
        c, r = self.column(x), -self._inverse(x)[1:]
        square = toeplitz.product(c, c, self.n)
        by_r = np.array([by_column[j:] @ square[: self.n - j] for j in range(1, self.bands)])
        return by_r * r * (1 - r)

    def strategy(self, x: Array) -> Strategy:
        return BandedInverse(self.n, self._inverse(x))


class BLTFamily(Family):
    """c_t = sum_i a_i d_i^(t-1), by log a_i and the decays through log(d / (1 - d))."""

    def __init__(self, workload: Workload, buffers: int) -> None:
        self.n, self.buffers = workload.n, buffers
        gaps = np.geomspace(1 - _DECAYS[0], 1 - _DECAYS[1], buffers) if buffers > 1 else np.array([0.1])
        scales = 0.5 * np.sqrt(gaps / gaps[0]) / buffers
        self.start = np.concatenate([np.log(scales), np.log((1 - gaps) / gaps)])
        self.bounds = [(_LOWEST, 0.0)] * buffers + [(-_LARGEST, _LARGEST)] * buffers

    def _parts(self, x: Array) -> tuple[Array, Array, Array]:
        scales, decays = np.exp(x[: self.buffers]), 1 / (1 + np.exp(-x[self.buffers :]))
        return scales, decays, decays[:, None] ** np.arange(self.n - 1)

    def column(self, x: Array) -> Array:
        scales, _, powers = self._parts(x)
        return np.append(1.0, scales @ powers)

    def pullback(self, x: Array, by_column: Array) -> Array:
        scales, decays, powers = self._parts(x)
        after = by_column[1:]
        by_power = np.arange(1, self.n - 1) * after[1:]
        by_decay = scales * (powers[:, :-1] @ by_power)
        return np.concatenate([scales * (powers @ after), by_decay * decays * (1 - decays)])

    def strategy(self, x: Array) -> Strategy:
        scales, decays, _ = self._parts(x)
        return BLT(self.n, scale=scales, decay=decays)
