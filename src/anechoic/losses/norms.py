"""Norms of the error over the steps that a loss can be: root mean square, maximum, last, or weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array, finite_array, one_of

LossNorm = Literal["rms", "max", "last"] | Sequence[float] | NDArray[Any]

KINDS = ("rms", "max", "last")
#: Weights that differ by no more than this part, which is rounding, are one number.
ALIKE = 1e-12


def row_weights(kind: LossNorm, n: int) -> Array:
    """Weights w of the squared errors of the n steps, shape (n,), sum 1: all but "max" is such a mean.

    Raises:
        ValueError: for "max", an unknown kind, or weights that are negative, all zero or not n in number.
    """
    if kind is None:
        raise ValueError(f'loss must be "rms", "max", "last" or weights of the {n} steps, >= 0, not None.')
    if isinstance(kind, str):
        if one_of("loss", kind, KINDS) == "max":
            raise ValueError('"max" is no weighted mean of squared errors.')
        if kind == "rms":
            return np.full(n, 1.0 / n)
        last = np.zeros(n)
        last[-1] = 1.0
        return last
    weights = finite_array("weights", kind)
    if len(weights) != n:
        raise ValueError(f"weights of the steps have {len(weights)} entries; {n} are needed.")
    if weights.min() < 0 or not weights.any():
        raise ValueError(
            f"weights of the steps must be >= 0 with one above 0; the smallest is {weights.min()},"
            f" the largest {weights.max()}."
        )
    shares = weights / weights.max()  # their sum might overflow
    return np.asarray(shares / shares.sum())


def weight_of_the_last(kind: LossNorm, n: int) -> float | None:
    """The weight of the last step beside the mean over all n; None where other steps differ too.

    For errors that do not decrease, of which the last is the largest.
    """
    if isinstance(kind, str):
        return 0.0 if one_of("kind", kind, KINDS) == "rms" else 1.0
    weights = row_weights(kind, n)
    alike = float(np.ptp(weights[:-1])) <= ALIKE * float(weights[0]) if n > 1 else False
    return max(0.0, 1.0 - n * float(weights[0])) if alike and weights[-1] >= weights[0] else None


def tail_weights(kind: LossNorm, n: int) -> Array:
    """v with squared error sum_s v_s b_s^2, shape (n,), for Toeplitz B with first column b.

    v_s is the sum of the weights from step s on, as b_s is in every row t >= s. Errors of a Toeplitz B do not
    decrease, so that "max" is "last", v = 1.
    """
    if isinstance(kind, str) and one_of("kind", kind, KINDS) in ("max", "last"):
        return np.ones(n)
    if isinstance(kind, str):
        return (n - np.arange(n, dtype=np.float64)) / n
    return np.asarray(np.cumsum(row_weights(kind, n)[::-1])[::-1])
