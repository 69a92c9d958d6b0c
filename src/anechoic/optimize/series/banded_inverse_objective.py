"""The loss of a banded inverse as a function of the coefficients of C^-1, with its exact gradient.

B = A C^-1 is linear in these coefficients q, so the squared error is a quadratic form q^T E q, whose matrix
is made once. With the power series c = 1/q of C and h = c/q, the derivative of c by q_j is -x^j h: the
gradient of the sensitivity is one correlation.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy
from scipy import fft

from anechoic._validate import Array
from anechoic.losses.norms import LossNorm, row_weights
from anechoic.optimize.series.toeplitz_objective import comb_squared, correlate
from anechoic.strategies.banded_inverse import leading_coefficients
from anechoic.workloads.base import Workload

OUTSIDE = 1e10  # value where C grows beyond bounds
CHUNK = 2**22


class BandedInverseObjective:
    """log(sensitivity * error) of q = (1, …), with the sensitivity of the comb under |C|.

    That is the sensitivity itself for one participation (any signs), and for C >= 0 under Cyclic and
    FullBatch; for C of any signs it is a bound of these two. Under MinSep it is the sensitivity where C >= 0
    and no coefficient, or no product of columns `separation` or more apart, rises; with `falling`, |C| is
    replaced by the smallest non-increasing sequence above it, which gives a bound whatever C is.

    Args:
        workload: A; only a Toeplitz one for kind "max".
        bands: coefficients of C^-1.
        comb: separation and count of the worst pattern.
        kind: of the loss.
        progress: called with the number of evaluations and the loss that the objective takes for it.

    Attributes:
        evaluations: calls so far.
        falling: see above.
    """

    def __init__(
        self,
        workload: Workload,
        bands: int,
        comb: tuple[int, int],
        kind: LossNorm,
        progress: Callable[[int, float], None] | None = None,
    ) -> None:
        self.n = workload.n
        self.separation, self.count = comb
        self.form = error_form(workload, bands, kind)
        self.falling = False
        self.evaluations = 0
        self._progress = progress

    def __call__(self, inverse: Array) -> tuple[float, Array]:
        """Value and gradient at q, shape (bands,), q_0 > 0."""
        self.evaluations += 1
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            c = leading_coefficients(inverse, self.n)
            h = np.asarray(scipy.signal.lfilter([1.0], inverse, c))
            sensitivity, by_c = self._sensitivity(c)
            by_error = self.form @ inverse
            error = float(inverse @ by_error)
            # a step of the line search may leave the region where 1/q stays bounded: send it back
            if not (np.isfinite(sensitivity) and np.isfinite(h).all() and error > 0):
                return OUTSIDE, np.zeros_like(inverse)
            gradient = by_error / error - correlate(by_c, h, len(inverse)) / sensitivity
        value = 0.5 * float(np.log(sensitivity * error))
        if self._progress is not None:
            self._progress(self.evaluations, float(np.exp(value)))
        return value, gradient

    def _sensitivity(self, c: Array) -> tuple[float, Array]:
        """|| sum_{j < count} |C|[:, j separation] ||^2, and half its gradient by c."""
        if self.count == 1:
            return float(c @ c), c
        sizes = np.abs(c)
        if not self.falling:
            squared, slope = comb_squared(sizes, self.n, self.separation, self.count)
            return squared, slope * np.sign(c)
        from_end = sizes[::-1]
        largest = np.maximum.accumulate(from_end)
        squared, slope = comb_squared(largest[::-1], self.n, self.separation, self.count)
        # each entry of the falling sequence is |c| at the place of the largest from there on
        places = np.maximum.accumulate(np.where(from_end == largest, np.arange(len(c)), 0))
        collected = np.bincount(len(c) - 1 - places[::-1], slope, len(c)).astype(np.float64)
        return squared, collected * np.sign(c)


def error_form(workload: Workload, bands: int, kind: LossNorm) -> Array:
    """E with squared error q^T E q of B = A C^-1, for Toeplitz C^-1 with coefficients q: (bands, bands).

    With the shift S and M = A^T W A, W the weights of the steps, E_ij = tr(S^i^T M S^j) = sum_{u >= i}
    M[u, u + j - i] for j >= i: running sums, from the end, of the diagonals of M.
    """
    diagonals = _toeplitz_diagonals if workload.has_toeplitz_factor else _general_diagonals
    form = np.zeros((bands, bands))
    for lag, diagonal in enumerate(diagonals(workload, bands, kind)):
        sums = np.cumsum(diagonal[::-1])[::-1][: bands - lag]
        rows = np.arange(bands - lag)
        form[rows, rows + lag] = form[rows + lag, rows] = sums
    return form


def _toeplitz_diagonals(workload: Workload, bands: int, kind: LossNorm) -> list[Array]:
    """M[u, u + lag] for lag < bands, with A = T D: D_u D_{u+lag} sum_s w_{s+u+lag} a_{s+lag} a_s."""
    a, n, rates = workload.coefficients, workload.n, workload.rates
    size = fft.next_fast_len(2 * n, real=True)
    spectrum = None if isinstance(kind, str) else fft.rfft(row_weights(kind, n), size)
    found = []
    for lag in range(bands):
        products = a[lag:] * a[: n - lag]  # by s
        if spectrum is not None:
            by_column = fft.irfft(spectrum * fft.rfft(products, size).conj(), size)[lag:n]
        elif isinstance(kind, str) and kind == "rms":
            by_column = np.cumsum(products)[::-1] / n
        else:  # the last step alone; "max" is the same for a Toeplitz A
            by_column = products[::-1]
        found.append(by_column if rates is None else by_column * rates[: n - lag] * rates[lag:])
    return found


def _general_diagonals(workload: Workload, bands: int, kind: LossNorm) -> list[Array]:
    """M[u, u + lag] for lag < bands, from blocks of columns of A."""
    n = workload.n
    roots = np.sqrt(row_weights(kind, n))[:, None]
    found = [np.zeros(n - lag) for lag in range(bands)]
    width = max(bands, CHUNK // n)
    for start in range(0, n, width):
        places = np.arange(start, min(start + width + bands - 1, n))
        block = np.zeros((n, len(places)))
        block[places, np.arange(len(places))] = 1.0
        columns = roots * workload.multiply(block)
        for lag in range(min(bands, len(places))):
            stop = min(width, len(places) - lag)
            found[lag][start : start + stop] = np.einsum(
                "tu,tu->u", columns[:, :stop], columns[:, lag : lag + stop]
            )
    return found
