"""Output perturbation: C is the workload itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from anechoic._serialize import serializable
from anechoic._validate import Array, steps_within
from anechoic.noise.recurrence import Autoregressive, MovingAverage, Recurrence
from anechoic.strategies.base import SquareStrategy, Structure, store_fields, warn_dense
from anechoic.strategies.dense import Dense
from anechoic.workloads.base import Workload, checked_workload


@serializable
@dataclass(frozen=True, eq=False, repr=False)
class Output(SquareStrategy):
    """C = A: noise on the weighted prefix sums themselves (output perturbation).

    Args:
        workload: A.

    Raises:
        ValueError: if n is given, and not the number of steps of the workload.
    """

    n: int = 0
    workload: Workload | None = None

    def __init__(self, workload: Workload, n: int | None = None) -> None:
        checked_workload(workload)
        if n is not None and n != workload.n:
            raise ValueError(f"n={n} differs from the workload's {workload.n} steps.")
        store_fields(self, n=workload.n, workload=workload)

    @property
    def _a(self) -> Workload:
        return cast("Workload", self.workload)

    @cached_property
    def _as_dense(self) -> Dense:
        warn_dense(self.n, "Output of a workload without a Toeplitz factor")
        return Dense(self._a.to_dense())

    @cached_property
    def structure(self) -> Structure:
        if self._a.is_prefix_sum:
            return Structure(self.n, self.n, toeplitz=True, nonnegative=True, nonincreasing=True)
        if not self._a.has_toeplitz_factor:
            return self._as_dense.structure
        c, rates = self._a.coefficients, self._a.rates
        nonnegative = bool((c >= 0).all()) and (rates is None or bool((rates > 0).all()))
        falling = self._a.is_toeplitz and nonnegative and bool((np.diff(c) <= 0).all())
        bands = int(np.flatnonzero(c)[-1]) + 1
        return Structure(bands, bands, self._a.is_toeplitz, nonnegative, falling)

    @property
    def coefficients(self) -> Array:
        return self._a.coefficients if self._a.is_toeplitz else super().coefficients

    def multiply(self, x: ArrayLike) -> Array:
        return self._a.multiply(x)

    def solve(self, z: ArrayLike) -> Array:
        return self._a.solve(z)

    def to_dense(self) -> Array:
        return self._a.to_dense()

    def column_norms_squared(self) -> Array:
        if not self._a.has_toeplitz_factor:
            return self._as_dense.column_norms_squared()
        norms = np.cumsum(np.square(self._a.coefficients))[::-1]
        return norms.copy() if self._a.rates is None else norms * np.square(self._a.rates)

    def recurrence(self) -> Recurrence:
        if not self._a.has_toeplitz_factor:
            return self._as_dense.recurrence()
        inverse = self._a.inverse_coefficients
        window, bands = len(inverse), self.structure.bands
        rates = self._a.rates
        rows: Recurrence = MovingAverage(
            self.n, window=window, row=lambda t: inverse[: min(window, t + 1)], stationary=True
        )
        if bands < window:  # sliding windows, whose inverse never ends
            c = self._a.coefficients
            rows = Autoregressive(self.n, window=bands, row=lambda t: c[: min(bands, t + 1)], stationary=True)
        return rows if rates is None else rows.with_gains(1.0 / rates)

    def truncate(self, steps: int) -> Output:
        return Output(self._a.truncate(steps_within(self.n, steps)))

    def describe(self) -> str:
        return f"Output({type(self._a).__name__}, n={self.n})"
