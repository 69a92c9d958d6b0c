"""Squared error of a BLT as a function of its 2 d gaps, for Toeplitz workloads other than prefix sums.

With the points y of `blt_objective`, lambda = exp(-y) of C and lambda^ of C^-1, and with a pole kappa of the
workload a(x) = rest(x) / (1 - kappa x) taken out, the decoder is the series

    b(x) = rest(x) (1 - lambda_1 x)/(1 - kappa x) (1 - lambda_2 x)/(1 - lambda^_1 x) … 1/(1 - lambda^_d x),

a cascade of first-order sections. Each but the first is a sum of positive terms, and so is that where
kappa > lambda_1: no digits cancel. Nothing divides by a distance between poles, so that those of the workload
may lie anywhere.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from anechoic._validate import Array
from anechoic.algebra import toeplitz
from anechoic.algebra.systems import System, power_sums, realisation
from anechoic.optimize.series.toeplitz_objective import QuadraticForm
from anechoic.workloads.base import Workload

# Step of the complex differences: its square is lost against 1 in float64.
STEP = 1e-100


class SquaredError(Protocol):
    """The squared error and its gradient at gaps > 0, shape (2 d,)."""

    def __call__(self, gaps: Array) -> tuple[float, Array]: ...


class RecurrentError:
    """For a workload with a short recursion: O(d^4 log n), exact gradient by complex steps.

    Args:
        rest: the workload without the section 1 / (1 - pole x).
        pole: kappa; 0 where the workload is not known by its poles.
        n: steps.
        last: weight of the last step beside the mean over all of them, in [0, 1].
    """

    def __init__(self, rest: System, pole: float, n: int, *, last: float) -> None:
        self._rest, self._pole, self._n, self._last = rest, pole, n, last

    @classmethod
    def of(cls, workload: Workload, longest: int, *, last: float) -> RecurrentError | None:
        """That of a Toeplitz workload, or None where p or q of its fraction p / q has more entries."""
        p, q = workload.fraction
        if max(len(p), len(q)) > longest:
            return None
        if workload.poles is not None:
            other, slowest = sorted(workload.poles)
            rest = realisation(p, np.array([1.0, -other]))
        elif len(q) == 2:
            rest, slowest = realisation(p / q[0], np.ones(1)), -q[1] / q[0]
        else:
            rest, slowest = realisation(p, q), 0.0
        return cls(rest, slowest, workload.n, last=last)

    def __call__(self, gaps: Array) -> tuple[float, Array]:
        values = self._squared(gaps * (1.0 + 1j * STEP * np.eye(len(gaps))))
        return float(values[0].real), values.imag / (STEP * gaps)

    def _squared(self, gaps: Any) -> Any:
        """The error for each row of gaps, shape (rows, 2 d)."""
        y = np.cumsum(gaps, axis=-1)
        below = np.expm1(-y)  # pole - 1
        away = self._pole - 1.0
        poles = np.insert(below[:, 1::2], 0, away, axis=1)  # kappa - 1, lambda^_1 - 1, …
        later = -np.exp(-y[:, 1:-1:2]) * np.expm1(-gaps[:, 2::2])  # lambda^_i - lambda_{i+1}
        widths = np.column_stack([away - below[:, 0], later, np.exp(-y[:, -1])])

        k, sections = len(self._rest.entry), widths.shape[1]
        excess = np.zeros((len(gaps), k + sections, k + sections), dtype=gaps.dtype)
        excess[:, :k, :k] = self._rest.excess
        out = np.zeros((len(gaps), k + sections), dtype=gaps.dtype)  # the readout of the sections so far
        out[:, :k] = self._rest.readout
        for i in range(sections):
            excess[:, k + i] = out
            excess[:, k + i, k + i] += poles[:, i]
            out[:, k + i] = widths[:, i]
        direct = self._rest.direct
        start = np.concatenate([self._rest.entry, np.full(sections, direct)]).astype(gaps.dtype)
        sums = power_sums(excess, np.broadcast_to(start, out.shape), self._n - 1)
        once, twice = (np.einsum("ri,rij,rj->r", out, form, out) for form in (sums.once, sums.twice))
        return direct**2 + self._last * once + (1.0 - self._last) * (twice / self._n)


class MaterialisedError:
    """For any Toeplitz workload and any weights of steps or periods: 4 d recursions over the n coefficients.

    Args:
        coefficients: a, shape (n,).
        form: Q b for b of shape (n,): the squared error is b^T Q b.
    """

    def __init__(self, coefficients: Array, form: QuadraticForm) -> None:
        self._a, self._form = coefficients, form

    def __call__(self, gaps: Array) -> tuple[float, Array]:
        poles = np.exp(-np.cumsum(gaps))
        b = self._a
        for pole, zero in zip(poles[1::2], poles[0::2], strict=True):
            b = toeplitz.divided(toeplitz.multiply(np.array([1.0, -zero]), b), np.array([1.0, -pole]))
        weighted = self._form(b)
        # the derivative of b by a pole p of b is x / (1 - p x) b, that by a zero its negative
        by_pole = [weighted[1:] @ toeplitz.divided(b[:-1], np.array([1.0, -p])) for p in poles]
        by_point = 2.0 * np.array(by_pole) * poles
        by_point[1::2] *= -1.0
        return float(weighted @ b), np.cumsum(by_point[::-1])[::-1]
