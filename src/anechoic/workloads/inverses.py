"""Inverses of workloads by columns: few bands are what makes recursions over the steps exact and cheap."""

from __future__ import annotations

import numpy as np

from anechoic._validate import Array
from anechoic.algebra import banded
from anechoic.workloads.base import Workload
from anechoic.workloads.general import restart_scales

MOST = 64  # bands from which dense products are as fast
UNEVEN = 20.0  # ratio of rates from which products with an inverse are avoided


def inverse_columns(workload: Workload) -> Array | None:
    """A^-1 by columns (`algebra.banded`), shape (n, bands), where it has at most 64 bands, else None.

    Prefix sums and decaying ones have 2, momentum 3; learning rates do not add any.
    """
    n = workload.n
    if workload.scheduled is not None:
        base, rates = workload.scheduled
        inner = inverse_columns(base)
        return None if inner is None else _with_rates(inner, rates)
    if workload.restarts is not None and workload.restarts[0].is_prefix_sum:
        period = workload.restarts[1]
        gains = 1.0 / restart_scales(n, period)
        below = -gains
        below[period - 1 :: period] = 0.0
        below[-1] = 0.0
        return np.stack([gains, below], axis=1)[:, :n]
    if not workload.has_toeplitz_factor:
        return None
    numerator, denominator = workload.fraction
    if len(numerator) > 1 or len(denominator) > MOST:
        return None
    columns = banded.of_toeplitz(denominator / numerator[0], n)
    return columns if workload.rates is None else _with_rates(columns, workload.rates)


def recursion_columns(workload: Workload) -> tuple[Array] | tuple[Array, Array] | None:
    """A^-1 by columns, or F and K with A = F^-1 K and few bands, or None.

    F and K stand for A^-1 where it has many bands, and where rates D in it differ widely: the entries of
    A^-1 = D^-1 F then do so too, and products with them lose digits, some (ratio of rates)^2 units in the
    last place.
    """
    inverse, rates = inverse_columns(workload), workload.rates
    filtered, gains = None, np.ones((workload.n, 1))
    if workload.scheduled is not None:
        plain, rates = workload.scheduled
        filtered = inverse_columns(plain)
    elif workload.has_toeplitz_factor:
        numerator, denominator = workload.fraction
        window = np.trim_zeros(workload.coefficients, "b")
        if len(numerator) > 1 and len(window) <= min(MOST, workload.n - 1):
            numerator, denominator = window, np.ones(1)  # no pole that a zero takes back
        if max(len(numerator), len(denominator)) <= MOST:
            filtered, gains = (banded.of_toeplitz(part, workload.n) for part in (denominator, numerator))
    if inverse is not None and (filtered is None or rates is None or rates.max() <= UNEVEN * rates.min()):
        return (inverse,)
    if filtered is None:
        return None
    return filtered, gains if rates is None else gains * rates[:, None]


def _with_rates(inverse: Array, rates: Array) -> Array:
    """A D has the inverse D^-1 A^-1: its rows are divided."""
    return banded.product(1.0 / rates[:, None], inverse)
