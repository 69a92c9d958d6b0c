"""Orders of Section 3.5 against the stationary risk of noisy gradient descent on a quadratic, by quadrature.

With expected gradients, coordinate j of theta - theta* follows x <- (1 - eta lambda_j) x - eta w_t, w = C^-1
Z.
"""

import math

import numpy as np
import pytest

from anechoic.strategies import Toeplitz
from anechoic.theory.learning import (
    convex_risk,
    damped_toeplitz_risk,
    effective_dimension,
    independent_noise_risk,
    realizable_convex_risk,
    smallest_toeplitz_risk,
)

SPECTRA = {
    "one": np.ones(1),
    "isotropic": np.ones(12),
    "harmonic": 1 / np.arange(1, 41),
    "low rank": np.array([1.0, *[0.01] * 30]),
}


def stationary_risk(eigenvalues, eta, mu, nu=None):
    """1/2 sum_j lambda_j Var_j; C has the coefficients of (1 - (1 - nu) x)^(-1/2), or is the identity."""
    omega = np.concatenate([[0.0], np.geomspace(1e-9, math.pi, 40_001)])
    z = np.exp(1j * omega)
    noise, sensitivity_squared = np.ones(len(omega)), 1.0
    if nu is not None:
        noise = np.abs(1 - (1 - nu) * z)
        n = int(40 / nu)
        sensitivity_squared = float(np.square(Toeplitz.damped(n, nu).coefficients).sum())
    total = 0.0
    for value, count in zip(*np.unique(eigenvalues, return_counts=True), strict=True):
        density = eta**2 * noise / np.abs(1 - (1 - eta * value) * z) ** 2
        total += count * value * np.trapezoid(density, omega) / math.pi
    return 0.5 * sensitivity_squared * total / mu**2


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("eta", [0.3, 0.03])
def test_orders_of_linear_regression(name, eta):
    values, mu = SPECTRA[name], 0.7
    plain = stationary_risk(values, eta, mu)
    assert 0.2 <= plain / independent_noise_risk(values, eta, mu) <= 0.5
    exact = 0.5 * sum(eta / (2 - eta * value) for value in values) / mu**2
    assert plain == pytest.approx(exact, rel=1e-3)
    smallest = eta * values.min()
    for nu in (smallest, smallest / 3):
        damped = stationary_risk(values, eta, mu, nu)
        assert damped <= damped_toeplitz_risk(values, eta, mu, nu)
        assert damped >= 0.2 * smallest_toeplitz_risk(values, eta, mu)
    assert plain >= 0.2 * smallest_toeplitz_risk(values, eta, mu)


def test_correlated_noise_wins_where_few_directions_count():
    """The advantage is that of the dimension over the effective one, up to logarithms."""
    values, eta = np.array([1.0, *[1e-2] * 999]), 1e-2
    nu = eta * values.min()
    gain = stationary_risk(values, eta, 1.0) / stationary_risk(values, eta, 1.0, nu)
    claimed = independent_noise_risk(values, eta, 1.0) / damped_toeplitz_risk(values, eta, 1.0, nu)
    assert gain > claimed > 50


def test_the_effective_dimension():
    assert effective_dimension([3.0, 3.0, 3.0]) == 3
    assert effective_dimension([1.2, 0.04]) == pytest.approx(1.0333, abs=1e-4)  # monograph, Fig. 3.13
    assert effective_dimension([5.0]) == 1


def test_orders_of_convex_losses():
    n, m, epsilon = 10_000, 81, 2.0
    assert convex_risk(n, m, epsilon) == pytest.approx(0.01 + 3 / math.sqrt(2e4))
    assert realizable_convex_risk(n, m, epsilon) == pytest.approx(0.01 + 9 / 2e4)
    # neither is below what learning takes without privacy
    assert convex_risk(n, 1, 1e12) >= 0.01
