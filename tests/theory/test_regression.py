"""Bounds of linear regression against exact values, of Gaussian covariates and of others."""

import math

import numpy as np
import pytest

from anechoic import calibrate_endless, theory
from anechoic.strategies import endless
from anechoic.theory.regression import (
    clipping_probability,
    finite_time_rates,
    half_exponential_decay,
    theorem_d13,
)
from anechoic.theory.spectra import spectrum
from tests.theory.noises import NOISES

VALUES = np.array([1.0, 0.5, 0.1])


def signs_limit(problem, noise, std):
    """F_inf where x_j = +- sqrt(lambda_j): E[x x^T S x x^T] = tr(H S) H for diagonal S, kurtosis 1."""
    eta, gaps = problem.learning_rate, problem.gaps
    exposed = spectrum(noise).exposure(gaps)
    # s_j (1 - (1 - 2 gap)) = eta^2 lambda_j (S + sigma^2) + eta^2 std^2 q_j, S = sum_j lambda_j s_j
    alone = (eta * VALUES * problem.residual_std**2 + eta * std**2 * exposed) / 2
    return alone.sum() / (1 - eta * VALUES.sum() / 2) / 2


@pytest.mark.parametrize("name", ["independent", "damped", "BLT", "Anti-PGD"])
@pytest.mark.parametrize("eta", [0.01, 0.1])
def test_exact_values_lie_between_the_bounds(name, eta):
    noise, problem = NOISES[name], theory.LinearRegression(VALUES, eta, 0.3)
    exact = theory.asymptotic_suboptimality(problem, noise, rho=0.5, clip_norm=2.0).total
    bounds = theory.regression_bounds(problem, noise, rho=0.5, clip_norm=2.0)
    assert bounds.smallest <= bounds.lower <= exact <= bounds.upper
    best = theory.optimal_noise(problem).suboptimality(0.5, 2.0)
    assert bounds.smallest <= best <= exact * (1 + 1e-9)
    narrow = theory.regression_bounds(
        problem, noise, rho=0.5, clip_norm=2.0, kurtosis=1.0, fourth_moment=VALUES.sum()
    )
    signs = signs_limit(problem, noise, 2.0 * noise.limiting_norm)
    assert narrow.lower <= signs <= narrow.upper < bounds.upper


def test_bounds_meet_the_limit_of_small_learning_rates():
    """Theorem C.18 is exact to first order in eta; the upper bound then has the factors 4 and 2."""
    problem = theory.LinearRegression(VALUES, 1e-6)
    noise = endless.damped(1e-7)
    exact = theory.asymptotic_suboptimality(problem, noise, rho=0.5).total
    bounds = theory.regression_bounds(problem, noise, rho=0.5)
    assert exact == pytest.approx(bounds.lower, rel=1e-4)
    assert bounds.upper == pytest.approx((1 + 3) * 2 * bounds.lower, rel=1e-2)


def test_the_finite_time_bound_holds():
    problem = theory.LinearRegression(VALUES, 0.1, 0.3)
    displacement = [1.0, -2.0, 3.0]
    mechanism = calibrate_endless(NOISES["damped"], batch_size=1, noise_multiplier=0.5, delta=1e-6)
    run = theory.trajectory(problem, mechanism, steps=60, displacement=displacement)
    for t in (1, 10, 60):
        bound = theory.finite_time_bound(
            problem, NOISES["damped"], steps=t, displacement=displacement, rho=1 / (2 * 0.5**2)
        )
        assert run[t] <= bound
    late = theory.finite_time_bound(
        problem, NOISES["damped"], steps=10**5, displacement=displacement, rho=2.0
    )
    assert late == pytest.approx(theory.asymptotic_suboptimality(problem, NOISES["damped"], rho=2.0).total)


def test_gradients_are_clipped_no_more_often_than_bounded():
    problem, rng = theory.LinearRegression([1.0, 0.5], 0.1, 0.2), np.random.default_rng(3)
    steps, runs, clip = 10, 4000, 12.0
    noise = NOISES["banded inverse"]
    bound = clipping_probability(problem, noise, steps=steps, clip_norm=clip, displacement=[1, 1], rho=500.0)
    std = clip * noise.at(steps).largest_column_norm() / math.sqrt(1000.0)
    decoder = noise.at(steps).solve(np.eye(steps))
    theta, past, clipped = (
        np.ones((runs, 2)),
        rng.standard_normal((steps, runs, 2)),
        np.zeros(runs, dtype=bool),
    )
    for t in range(steps):
        x = rng.standard_normal((runs, 2)) * np.sqrt([1.0, 0.5])
        g = x * ((x * theta).sum(axis=1) - 0.2 * rng.standard_normal(runs))[:, None]
        clipped |= np.linalg.norm(g, axis=1) > clip
        theta = theta - 0.1 * (g + std * np.tensordot(decoder[t], past, axes=1))
    assert clipped.mean() <= bound < 0.6
    assert clipping_probability(problem, noise, steps=steps, clip_norm=0.1, rho=1.0) == 1.0


def test_the_event_of_theorem_d13_scales_as_stated():
    problem, noise = theory.LinearRegression(VALUES, 1e-4, 0.3), NOISES["damped"]
    arguments = {"steps": 100, "probability": 0.01, "rho": 1.0, "displacement": [5.0, 0.0, 0.0]}
    found = theorem_d13(problem, noise, **arguments)
    log = math.log(1e4)
    assert found.clip_norm == pytest.approx(4 * (1.6 + 2) * 5.0 * log**2.5)
    assert found.largest_learning_rate <= 1 / (3.6 * log)
    doubled = theorem_d13(problem, noise, constant=2.0, **arguments)
    assert doubled.clip_norm == pytest.approx(2 * found.clip_norm)
    assert doubled.largest_learning_rate == pytest.approx(found.largest_learning_rate / 4)


def test_half_exponential_decay():
    """The sum over powers settles for the damped root with nu above the rate, and grows without damping."""
    noise = NOISES["damped"]
    damping = noise.damping
    found = [half_exponential_decay(noise, steps=n, decay_rate=damping) for n in (100, 400, 1600)]
    assert found[1] <= found[2] < 1.001 * found[1]
    beta = noise.at(30).correlate(np.eye(1, 30)[0])
    sides = [
        (np.abs(beta[: t + 1]) * (1 - damping) ** ((t - np.arange(t + 1)) / 2)).sum()
        / (1 - damping) ** (t / 2)
        for t in range(30)
    ]
    assert half_exponential_decay(noise, steps=30, decay_rate=damping) == pytest.approx(max(sides))
    slow = [half_exponential_decay(noise, steps=n, decay_rate=0.9) for n in (20, 40)]
    assert slow[1] > 100 * slow[0]


def test_rates_at_the_best_learning_rate():
    independent, damped = finite_time_rates([1.0] * 4, steps=1000, rho=1.0, distance=1.0, residual_std=0.0)
    assert independent == pytest.approx(4 * 4 * 4 / 1000)
    assert damped == pytest.approx(4 * 4 * 4 / 1000**2)


RATES = {"steps": 9, "rho": 1.0, "distance": 1.0, "residual_std": 0.0}
D13 = {"steps": 5, "probability": 0.1, "rho": 1.0, "displacement": [0, 0, 1], "decay_rate": 0.2}
FINITE = {"steps": 1, "displacement": [0, 0, 0], "rho": 1.0}


@pytest.mark.parametrize(("name", "value"), [("distance", np.nan), ("residual_std", -1.0)])
def test_rates_of_bad_arguments(name, value):
    with pytest.raises(ValueError, match=f"{name}={value}"):
        finite_time_rates([1.0], **{**RATES, name: value})
