"""The bound for smooth, strongly convex objectives against objectives of the class, and against algebra."""

import math

import numpy as np
import pytest

from anechoic import theory
from anechoic.strategies import endless
from anechoic.theory import strongly_convex
from anechoic.theory.multipliers import Basis, Curvature, MultiplierForm, basis, proven_room
from anechoic.theory.spectra import spectrum
from tests.marks import each_once
from tests.theory.best_noise import best_with_constant_multiplier
from tests.theory.noises import NOISES


def quadratics(problem, noise, rho):
    """Largest F_inf of lambda theta^2 / 2, mu <= lambda <= L, exactly, under this noise."""
    largest = 0.0
    for value in np.geomspace(problem.smoothness / problem.condition, problem.smoothness, 9):
        exact = theory.LinearRegression(
            [value], min(problem.learning_rate, 1.999 / value), batch_size=math.inf
        )
        exposed = spectrum(noise).exposure(exact.gaps)
        largest = max(largest, float(exact.weights @ exposed) * noise.limiting_norm**2 / (2 * rho))
    return largest


@pytest.mark.parametrize(("eta", "name"), each_once([1.0, 0.3], ["independent", "damped", "BLT", "Anti-PGD"]))
@pytest.mark.few(2)
def test_no_quadratic_exceeds_the_bound(name, eta):
    problem, noise = theory.StronglyConvex(condition=20.0, learning_rate=eta, dimension=1), NOISES[name]
    exact = quadratics(problem, noise, 0.5)
    causal = theory.strongly_convex_bound(problem, noise, rho=0.5)
    plain = theory.strongly_convex_bound(problem, noise, rho=0.5, causal=False)
    assert exact <= causal.value <= plain.value * (1 + 1e-6)
    assert causal.room > 0
    assert causal.gap < 1e-6
    assert causal.coarse == pytest.approx(causal.value, rel=1e-8)


@pytest.mark.parametrize("condition", [1.5, 10.0, 1000.0])
@pytest.mark.few(1)
def test_independent_noise_has_the_bound_of_contraction(condition):
    """What causality buys: the programme finds E|d'|^2 <= (1 - eta mu)^2 E|d|^2 + eta^2 s^2 by itself."""
    problem = theory.StronglyConvex(condition, learning_rate=1.0, dimension=3, gradient_std=0.7)
    found = theory.strongly_convex_bound(problem, NOISES["independent"], rho=0.8, clip_norm=2.0)
    shrink = 1 / condition
    power = 3 * 4.0 / 1.6 + 0.49
    assert problem.contraction_bound(0.8, 2.0) == pytest.approx(power / 2 / (1 - (1 - shrink) ** 2))
    assert found.value == pytest.approx(problem.contraction_bound(0.8, 2.0), rel=1e-5)


@pytest.mark.parametrize("condition", [1e3, pytest.param(1e5, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_the_optimised_noise_is_best_at_every_condition_number(condition, monkeypatch):
    """At eta = 1 a damped root has .60 of independent noise, however large kappa is."""
    monkeypatch.setattr(strongly_convex, "DAMPINGS", 5)
    problem = theory.StronglyConvex(condition, learning_rate=1.0)
    found = theory.optimized_strongly_convex_bound(problem, rho=0.5, turns=1, terms=8)
    assert found.bound.value < 0.602 * problem.contraction_bound(0.5)
    assert list(found.history) == sorted(found.history, reverse=True)
    assert found.bound.room > 0


@pytest.mark.parametrize(("condition", "share"), [(100.0, 0.60447), (1000.0, 0.59836)])
def test_no_noise_has_less_with_a_constant_multiplier(condition, share):
    """For every multiple of <p, q> that has room; the least one is the best, and duality leaves nothing."""
    plain = theory.StronglyConvex(condition, learning_rate=1.0).contraction_bound(0.5)
    more = 1.0 + np.geomspace(1e-6, 100.0, 40)
    values = np.array([best_with_constant_multiplier(condition, 1.0, h) for h in more]) / plain
    assert values[:, 0] == pytest.approx(values[:, 1], rel=1e-9)
    assert (np.diff(values[:, 1]) > 0).all()
    assert values[0] == pytest.approx(share, abs=1e-5)


@pytest.mark.slow
def test_the_optimised_noise_is_the_best_at_a_condition_of_a_hundred():
    problem = theory.StronglyConvex(100.0, learning_rate=1.0)
    plain = problem.contraction_bound(0.5)
    found = theory.optimized_strongly_convex_bound(problem, rho=0.5, turns=60)
    least_of_all = best_with_constant_multiplier(100.0, 1.0, 1.0 + 1e-7)[1]
    assert least_of_all <= found.bound.value <= least_of_all * (1 + 2e-5)
    assert found.bound.value / plain == pytest.approx(0.60448, abs=1e-5)


@pytest.mark.slow
def test_the_descent_lowers_every_bound():
    rng = np.random.default_rng(4)
    for _ in range(4):
        condition = 10 ** rng.uniform(0.1, 5)
        problem = theory.StronglyConvex(condition, 10 ** rng.uniform(-2, 0), gradient_std=rng.uniform(0, 1))
        causal = bool(rng.integers(2))
        found = theory.optimized_strongly_convex_bound(problem, rho=0.5, causal=causal)
        assert len(found.history) > 1
        if causal:
            assert found.bound.value <= problem.contraction_bound(0.5) * (1 + 1e-5)


def test_a_run_on_a_kinked_objective_stays_below():
    """F' = 0.1 d for d < 0 and d for d > 0: far from any quadratic; 400 runs of 600 steps."""
    problem, noise = theory.StronglyConvex(condition=10.0, learning_rate=1.0), endless.damped(0.1)
    bound = theory.strongly_convex_bound(problem, noise, rho=0.5).value
    rng, steps = np.random.default_rng(0), 600
    rows = noise.limiting_norm * noise.at(steps).solve(rng.standard_normal((steps, 400)))
    d, values = np.zeros(400), []
    for row in rows:
        d = d - (np.where(d > 0, d, 0.1 * d) + row)
        values.append(np.where(d > 0, d**2, 0.1 * d**2) / 2)
    reached = np.mean(values[100:])
    assert 0.05 * bound < reached < bound


def test_forms_are_those_of_the_sums_written_out():
    """One frequency: the sum over a period of h <p, q> + lags, for a random periodic signal."""
    curve, period = Curvature(0.2, 1.0, 0.7), 12
    rng = np.random.default_rng(1)
    theta, z = rng.standard_normal(period), rng.standard_normal(period)
    gradient = (theta - np.roll(theta, -1)) / curve.rate - z
    p, q = gradient - 0.2 * theta, theta - gradient
    rho, h = 0.6, np.array([0.5, 1.5, 0.3])
    # lag k has weight (1 - rho) rho^(k - 1), summed over the period's wraps
    wraps = [(1 - rho) * rho ** (k - 1) / (1 - rho**period) for k in range(1, period + 1)]
    total = h[0] * p @ q
    for k, weight in enumerate(wraps, start=1):
        total += weight * (h[1] * p @ (q - np.roll(q, k)) + h[2] * p @ (q - np.roll(q, -k)))
    omega = 2 * np.pi * np.arange(period) / period
    spectra = np.conj(np.fft.fft([theta, z], axis=1))  # sum_t theta_t e^(i w t)
    spectra = np.conj(spectra)  # theta_{t+1} is e^(i w) Theta
    form = MultiplierForm(
        curve, Basis(np.array([rho]), np.zeros(1), False), omega, np.ones((1, period), complex), np.zeros(1)
    )
    own, cross, room = form.own[0] @ h, form.cross[0] @ h, form.room @ h
    by_frequency = own * np.abs(spectra[1]) ** 2 - room * np.abs(spectra[0]) ** 2
    by_frequency = by_frequency + 2 * (np.conj(spectra[0]) * cross * spectra[1]).real
    assert by_frequency.sum() / period == pytest.approx(total, rel=1e-10)


def test_room_is_proven_below_what_any_grid_sees():
    curve, parts = Curvature(0.05, 1.0, 1.0), basis(0.05, 6, True)
    h = np.concatenate([[30.0], np.linspace(0.1, 2.0, parts.signed - 1)])
    grid = np.concatenate([[0.0], np.geomspace(1e-6, np.pi, 50_001)])
    form = MultiplierForm(
        curve, Basis(parts.lags, parts.delays, False), grid, np.zeros((0, len(grid)), complex), np.zeros(0)
    )
    seen = (form.room @ h - 1).min()
    proven = proven_room(curve, parts, h)
    assert proven <= seen
    assert proven == pytest.approx(seen, abs=0.02)
