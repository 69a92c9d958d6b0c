"""x^(-1/2) as a short sum of simple poles: the best rational approximation, known since Zolotarev.

With k'^2 = low / high and K the complete elliptic integral of modulus k, the midpoint rule for
x^(-1/2) = (2/pi) integral dt / (t^2 + x) in the variable u of t = sqrt(low) sn(u)/cn(u), 0 < u < K, has
the least relative error on [low, high] that so many poles can have. The error alternates between its
bounds at x = low / dn(j K / (2 poles))^2, j = 0, …, 2 poles: its largest value is computed there.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import ellipkm1

from anechoic._validate import Array


class InverseRoot(NamedTuple):
    """sum_k weights_k / (x + shifts_k), which is x^(-1/2) on an interval but for a relative error.

    Attributes:
        shifts: > 0, shape (poles,).
        weights: > 0, shape (poles,).
        excess: no less than the largest of sqrt(x) sum_k weights_k / (x + shifts_k) on the interval.
    """

    shifts: Array
    weights: Array
    excess: float


def inverse_root(low: float, high: float, tolerance: float) -> InverseRoot:
    """Poles for 0 < low <= x <= high and a relative error of at most about `tolerance`.

    Raises:
        ValueError: if the interval is empty or not positive.

    References:
        Hale, Higham and Trefethen, Computing A^alpha, log(A), and related matrix functions by contour
        integrals (2008), Method 3 and Section 4.
    """
    if not 0 < low <= high < math.inf:
        raise ValueError(f"the interval [{low}, {high}] must be positive and finite.")
    # Equality has no modulus; 4 costs nothing.
    ratio = min(low / high, 0.25)
    poles = max(3, math.ceil(math.log(4.0 / tolerance) * (3.0 - math.log(ratio)) / (2.0 * math.pi**2)))
    period = float(ellipkm1(ratio))
    t = _tangent((np.arange(poles) + 0.5) * period / poles, period, ratio)
    weights = 2.0 * period * math.sqrt(low) / (math.pi * poles)
    found = InverseRoot(low * t * t, weights * np.sqrt((1.0 + t * t) * (1.0 + ratio * t * t)), 1.0)
    t = _tangent(np.arange(2 * poles) * period / (2 * poles), period, ratio)
    x = np.append(low * (1.0 + t * t) / (1.0 + ratio * t * t), low / ratio)
    reached = np.sqrt(x) * (found.weights / (x[:, None] + found.shifts)).sum(axis=1)
    return found._replace(excess=float(reached.max()) * (1.0 + 1e-12))


def _tangent(u: Array, period: float, complement: float) -> Array:
    """sn(u)/cn(u) for 0 <= u < K = `period` and k'^2 = `complement`, by descending Landen transformations.

    Beyond K/2, where cn loses its digits, sn(K - u)/cn(K - u) = cn(u) / (k' sn(u)) is used.
    """
    far = u > 0.5 * period
    a, b, ratios = 1.0, math.sqrt(complement), [0.0]
    while a - b > 1e-15 * a:
        a, b, difference = 0.5 * (a + b), math.sqrt(a * b), 0.5 * (a - b)
        ratios.append(difference / a)
    phase = 2.0 ** (len(ratios) - 1) * a * np.where(far, period - u, u)
    for ratio in ratios[:0:-1]:
        phase = 0.5 * (phase + np.arcsin(ratio * np.sin(phase)))
    tangent = np.tan(phase)
    tangent[far] = 1.0 / (math.sqrt(complement) * tangent[far])
    return tangent
