"""Excess population risks of learning with correlated noise, as the monograph's Section 3.5 surveys them.

All of them are **orders**: they leave out absolute constants, and those of convex problems also factors that
are polylogarithmic in n and delta. They say how a risk scales, and which of two mechanisms wins for large
problems; no guarantee may rest on their values.

Linear regression is that of Section 3.5.2: Gaussian features with covariance H, a model without error,
streaming, no clipping, learning rate eta small enough, and n to infinity; noise of std sens / mu, which would
be mu-GDP if gradients had norm at most 1.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from anechoic._validate import Array, finite_array, fraction, moderate, positive_int


def convex_risk(n: int, dimension: int, epsilon: float) -> float:
    """1 / sqrt(n) + dimension^(1/4) / sqrt(epsilon n), of convex 1-Lipschitz losses in one pass.

    The order of SGD with correlated noise (DP-FTRL) that is (epsilon, delta)-DP. The first term, that of
    learning without privacy, is missing in the monograph, where it counts once epsilon > sqrt(dimension).

    Args:
        n: samples, >= 1.
        dimension: m, >= 1.
        epsilon: > 0.

    Raises:
        ValueError: if an argument is out of range.

    References:
        Monograph, Theorem 3.22; Kairouz et al., Practical and private (deep) learning, ICML 2021.
    """
    n, m, epsilon = _problem(n, dimension, epsilon)
    return 1 / math.sqrt(n) + math.sqrt(math.sqrt(m)) / math.sqrt(epsilon * n)


def realizable_convex_risk(n: int, dimension: int, epsilon: float) -> float:
    """1 / sqrt(n) + sqrt(dimension) / (epsilon n): as `convex_risk`, where the least population risk is 0.

    Args:
        n, dimension, epsilon: as for `convex_risk`.

    References:
        Monograph, Theorem 3.22; Asi, Feldman, Koren and Talwar, ICML 2023.
    """
    n, m, epsilon = _problem(n, dimension, epsilon)
    return 1 / math.sqrt(n) + math.sqrt(m) / (epsilon * n)


def effective_dimension(eigenvalues: ArrayLike) -> float:
    """Tr(H) / ||H||: between 1 and m, and m where all eigenvalues are equal.

    Args:
        eigenvalues: of H, shape (m,), > 0.

    Raises:
        ValueError: if an eigenvalue is not > 0.
    """
    values = _eigenvalues(eigenvalues)
    return float(values.sum() / values.max())


def independent_noise_risk(eigenvalues: ArrayLike, learning_rate: float, mu: float) -> float:
    """eta m / mu^2: linear regression with independent noise; the order of upper and lower bound.

    Args:
        eigenvalues: of H, shape (m,), > 0.
        learning_rate: eta, > 0, below 1 / ||H||.
        mu: of GDP, > 0.

    Raises:
        ValueError: if an argument is out of range.
    """
    values, eta, mu = _regression(eigenvalues, learning_rate, mu)
    return eta * len(values) / mu**2


def damped_toeplitz_risk(eigenvalues: ArrayLike, learning_rate: float, mu: float, damping: float) -> float:
    """eta^2 Tr(H) (1 + ln(1 / nu))^2 / mu^2: linear regression with `Toeplitz.damped(n, nu)`, an upper bound.

    With ||H|| = 1 the trace is the effective dimension; the monograph leaves out the 1, which does not change
    the order of small nu.

    Args:
        eigenvalues, learning_rate, mu: as for `independent_noise_risk`.
        damping: nu, in (0, 1), at most eta times the smallest eigenvalue.

    Raises:
        ValueError: if an argument is out of range.

    References:
        Monograph, Section 3.5.2, Eq. (3.27).
    """
    values, eta, mu = _regression(eigenvalues, learning_rate, mu)
    nu = fraction("damping", damping)
    if nu > eta * float(values.min()):
        raise ValueError(
            f"damping={nu} must be at most learning_rate * min(eigenvalues) = {eta * float(values.min())}:"
            " gradients cancel that much by themselves, and the bound is not proven beyond."
        )
    return eta**2 * float(values.sum()) * (1 + math.log(1 / nu)) ** 2 / mu**2


def smallest_toeplitz_risk(eigenvalues: ArrayLike, learning_rate: float, mu: float) -> float:
    """eta^2 Tr(H) / mu^2: linear regression with any Toeplitz strategy, a lower bound.

    Args:
        eigenvalues, learning_rate, mu: as for `independent_noise_risk`.
    """
    values, eta, mu = _regression(eigenvalues, learning_rate, mu)
    return eta**2 * float(values.sum()) / mu**2


def _problem(n: int, dimension: int, epsilon: float) -> tuple[int, int, float]:
    return positive_int("n", n), positive_int("dimension", dimension), moderate("epsilon", epsilon)


def _eigenvalues(values: ArrayLike) -> Array:
    array = finite_array("eigenvalues", values)
    if array.min() <= 0:
        i = int(np.argmin(array))
        raise ValueError(
            f"eigenvalues[{i}]={array[i]} must be > 0: leave out directions without data, whose noise never"
            " costs anything."
        )
    return array


def _regression(eigenvalues: ArrayLike, learning_rate: float, mu: float) -> tuple[Array, float, float]:
    values, eta = _eigenvalues(eigenvalues), moderate("learning_rate", learning_rate)
    if eta * float(values.max()) >= 1:
        raise ValueError(
            f"learning_rate={eta} must be below 1 / max(eigenvalues) = {1 / float(values.max())}: the"
            " bounds are those of small learning rates."
        )
    return values, eta, moderate("mu", mu)
