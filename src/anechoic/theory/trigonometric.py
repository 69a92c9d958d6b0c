"""Positive trigonometric polynomials: the best one of a degree, and its minimum-phase factor. Arrays only."""

from __future__ import annotations

import math

import numpy as np
from scipy import fft
from scipy.linalg import cho_factor, cho_solve, solve

from anechoic._validate import Array
from anechoic.strategies.circle import Circle

ITERATIONS = 500
DECREMENT = 1e-12  # relative excess of the product of the two means at which Newton's method stops
LARGEST = 1 << 20  # points of the circle for a spectral factor


def best_power(terms: int, points: Circle, direct: Array, reciprocal: Array) -> tuple[Array, int]:
    """r with R(w) = r_0 + 2 sum_k r_k cos(k w) > 0 that minimises mean(direct R) mean(reciprocal / R).

    The sum of the two means is convex in r, and where it is least, so is the product: scaling R makes the
    means equal. Newton's method with steps that stay where R > 0.

    Args:
        terms: entries of r, >= 1.
        points: of the circle, fine enough for `terms`.
        direct, reciprocal: > 0 at the points.

    Returns:
        r, shape (terms,), and the number of Newton steps.

    Raises:
        ArithmeticError: if Newton's method does not settle.
    """
    basis = 2.0 * np.cos(np.outer(np.arange(terms), points.angles))
    basis[0] = 1.0
    linear = basis @ (points.weights * direct)
    over = points.weights * reciprocal
    r = np.zeros(terms)
    r[0] = math.sqrt(float(over.sum()) / float(linear[0]))

    def value(r: Array) -> float:
        power = r @ basis
        return math.inf if power.min() <= 0 else float(linear @ r + (over / power).sum())

    for step_number in range(ITERATIONS):
        power = r @ basis
        gradient = linear - basis @ (over / power**2)
        curved = basis * (2.0 * over / power**3)
        hessian = curved @ basis.T
        scale = 1.0 / np.sqrt(np.diag(hessian))
        scaled = hessian * np.outer(scale, scale)
        scaled[np.diag_indices(terms)] += 1e-14 * terms
        step = -scale * cho_solve(cho_factor(scaled), scale * gradient)
        slope, now = float(gradient @ step), value(r)
        if -slope <= DECREMENT * now:
            return r, step_number + 1
        size = 1.0
        while value(r + size * step) > now + 0.1 * size * slope:
            size /= 2.0
            if size < 1e-12:
                return r, step_number + 1  # rounding hides any gain
        r = r + size * step
    raise ArithmeticError(
        f"the best power of {terms} terms was not found in {ITERATIONS} Newton steps: take fewer bands."
    )


def spectral_factor(r: Array) -> Array:
    """c with c_0 > 0, |c(e^(i w))|^2 = r_0 + 2 sum_k r_k cos(k w), and no zero in the open unit disc.

    By the cepstrum on a grid that is refined until it resolves the logarithm; then Newton's method (Wilson
    1969) on sum_t c_t c_{t+k} = r_k.

    Args:
        r: shape (terms,), of a positive function.

    Raises:
        ArithmeticError: if the function is not positive, or its zeros are too near to the circle.
    """
    terms = len(r)
    if terms == 1:
        return np.sqrt(r)
    size = 1 << max(10, (8 * terms).bit_length())
    while True:
        padded = np.zeros(size)
        padded[:terms] = r
        padded[size - terms + 1 :] = r[:0:-1]
        power = fft.fft(padded).real
        if power.min() <= 0:
            raise ArithmeticError(f"the power falls to {power.min():.3g} <= 0: it has no spectral factor.")
        cepstrum = fft.ifft(np.log(power)).real
        if np.abs(cepstrum[size // 4 : size // 2]).max() <= 1e-13 or size >= LARGEST:
            break
        size *= 4
    causal = cepstrum.copy()
    causal[0] /= 2.0
    causal[size // 2] /= 2.0
    causal[size // 2 + 1 :] = 0.0
    c = fft.ifft(np.exp(fft.fft(causal))).real[:terms]
    for _ in range(4):
        left = np.array([[c[k + j] if k + j < terms else 0.0 for j in range(terms)] for k in range(terms)])
        right = np.array([[c[j - k] if j >= k else 0.0 for j in range(terms)] for k in range(terms)])
        residual = r - right @ c
        c = c + solve(left + right, residual)
    return np.asarray(c)
