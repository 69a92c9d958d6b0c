"""Positive functions on the circle: the best trigonometric polynomial of a degree; minimum-phase factors.

Arrays in, arrays out.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import fft
from scipy.linalg import cho_factor, cho_solve, solve

from anechoic._validate import Array
from anechoic.algebra.circle import circle

ITERATIONS = 500
# Of minimum_phase: steps, each residue's relative error, and where rounding hides what a step gains.
MIXING, RESIDUE, NEARLY = 200, 1e-12, 1e-8
REFINEMENTS = 60
DECREMENT = 1e-13  # relative excess of the sum of the two means at which Newton's method stops
STALLED = 1e-9  # that from which on it falls quadratically, or rounding is in the way
EXCESS = 1e-7  # the largest that duality may leave open
LARGEST = 1 << 20  # points of the circle for a spectral factor

Rows = Callable[[Array], tuple[Array, Array]]


def best_power(terms: int, rows: Rows, finest: float, widest: float) -> tuple[Array, int]:
    """r with R(w) = r_0 + 2 sum_k r_k cos(k w) > 0 that minimises mean(direct R) mean(reciprocal / R).

    The sum of the two means is convex in r, and where it is least, so is the product: scaling R makes the
    means equal. Newton's method finds it on points that resolve 1 / R for the R before: where R almost
    touches zero between two points, they are refined there. What is returned is proven to be least:
    for every positive R' of these terms mean(direct R') + mean(reciprocal / R') >= 2 mean(reciprocal / R)
    + g r', with g the gradient at R, and |g r'| is at most max |S| mean(direct R') for the S of these terms
    for which direct S has the moments g.

    Args:
        terms: entries of r, >= 1.
        rows: gives direct and reciprocal, > 0, at angles.
        finest, widest: of `circle`, for these rows.

    Returns:
        r, shape (terms,), and the number of Newton steps.

    Raises:
        ArithmeticError: if Newton's method does not settle, or leaves more open than 1e-7 of the value.
    """
    r = np.eye(1, terms)[0]
    fine = _values(r, max(4096, 64 * terms))
    steps = 0
    for _ in range(REFINEMENTS):

        def resolved(angles: Array, r: Array = r) -> Array:
            direct, over = rows(angles)
            power = r @ _cosines(terms, angles)
            return np.stack([direct, over / power, over / power**2])

        points = circle(resolved, finest, widest=widest)
        direct, over = (points.weights * row for row in rows(points.angles))
        basis = _cosines(terms, points.angles)
        found, count, still = _newton(r, basis, basis @ direct, over)
        steps += count
        after = _values(found, len(fine))
        if after.min() <= 0.0:  # between the points: go as far as it stays positive
            share = 0.9 * float((fine / np.maximum(fine - after, 1e-300))[after < fine].min())
            found, after = r + share * (found - r), fine + share * (after - fine)
        elif still:
            power = found @ basis
            value, slope = float(direct @ power + (over / power).sum()), basis @ (direct - over / power**2)
            share = solve((basis * direct) @ basis.T, slope, assume_a="pos")
            if float(slope @ found) + 2.0 * float(np.abs(share @ basis).max()) * value <= EXCESS * value:
                return found, steps
        r, fine = found, after
    raise ArithmeticError(
        f"the best power of {terms} terms was not found in {steps} Newton steps: take fewer bands."
    )


def _cosines(terms: int, angles: Array) -> Array:
    """1, 2 cos w, 2 cos 2w, …, shape (terms, points)."""
    basis = 2.0 * np.cos(np.outer(np.arange(terms), angles))
    basis[0] = 1.0
    return np.asarray(basis)


def _values(r: Array, size: int) -> Array:
    """R at `size` equidistant points of the circle."""
    padded = np.zeros(size)
    padded[: len(r)] = r
    padded[size - len(r) + 1 :] = r[:0:-1]
    return np.asarray(fft.fft(padded).real)


def _newton(r: Array, basis: Array, linear: Array, over: Array) -> tuple[Array, int, bool]:
    """The least linear r + sum(over / (r basis)) from r, with steps that stay where r basis > 0.

    Returns:
        r, the number of steps, and whether it was there from the start, as far as rounding tells.
    """

    def value(r: Array) -> float:
        power = r @ basis
        return math.inf if power.min() <= 0 else float(linear @ r + (over / power).sum())

    r = r * math.sqrt(float((over / (r @ basis)).sum()) / float(linear @ r))
    before = first = math.inf  # relative decrements
    for count in range(ITERATIONS):
        power = r @ basis
        gradient = linear - basis @ (over / power**2)
        curved = basis * (2.0 * over / power**3)
        hessian = curved @ basis.T
        scale = 1.0 / np.sqrt(np.diag(hessian))
        scaled = hessian * np.outer(scale, scale)
        scaled[np.diag_indices(len(r))] += 1e-14 * len(r)
        step = -scale * cho_solve(cho_factor(scaled), scale * gradient)
        slope, now, size = float(gradient @ step), value(r), 1.0
        while value(r + size * step) > now + 0.1 * size * slope and size > 1e-12:
            size /= 2.0
        if size <= 1e-12:
            return r, count + 1, count == 0  # rounding hides any gain
        r = r + size * step
        decrement = -slope / now
        if decrement <= DECREMENT:
            return r, count + 1, count == 0
        if decrement <= STALLED and decrement > 0.5 * before:
            return r, count + 1, first <= STALLED
        first, before = (first if count else decrement), decrement
    return r, ITERATIONS, False


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
        power = _values(r, size)
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


def minimum_phase(gaps: Array, weights: Array) -> Array:
    """w > 0 with |sum_j w_j / (1 - a_j x)|^2 = sum_j weight_j (1 - a_j^2) / |1 - a_j x|^2, |x| = 1.

    Comparing residues at 1 / a_j gives w_j sum_i w_i / (1 - a_i a_j) = weight_j, which is the gradient of a
    strictly convex function, w^T M w / 2 - sum_j weight_j log w_j: one solution, found by Newton's method.
    The zeros of the mixture with positive w interlace the poles outside the disc: it is minimum phase.

    Args:
        gaps: 1 - a_j, shape (d,), in (0, 1), distinct.
        weights: shape (d,), > 0.

    Returns:
        w, shape (d,).

    Raises:
        ArithmeticError: if Newton's method does not settle.
    """
    kernel = 1.0 / (gaps[:, None] + gaps[None, :] - np.outer(gaps, gaps))  # 1 / (1 - a_i a_j)
    w = np.sqrt(weights / kernel.sum(axis=1))

    def value(w: Array) -> float:
        return float(0.5 * w @ kernel @ w - weights @ np.log(w))

    for _ in range(MIXING):
        pull = kernel @ w
        if np.abs(w * pull / weights - 1.0).max() <= RESIDUE:
            return np.asarray(w)
        # in the variable log w the Hessian diag(w) M diag(w) + diag(w M w) is well scaled
        gradient = w * pull - weights
        hessian = kernel * np.outer(w, w)
        hessian[np.diag_indices(len(w))] += np.maximum(w * pull, weights)
        step = cho_solve(cho_factor(hessian), -gradient)
        size, slope, now = 1.0, float(gradient @ step), value(w)
        # near the end the fall of the value drowns in rounding, and Newton's step is safe
        while -slope > NEARLY * weights.sum() and value(w * np.exp(size * step)) > now + 0.25 * size * slope:
            size /= 2.0
        w = w * np.exp(size * step)
    raise ArithmeticError(
        f"the minimum-phase factor of {len(gaps)} modes was not found in {MIXING} steps: merge modes"
        " whose eigenvalues almost coincide."
    )
