"""Exact suboptimality against covariance matrices written out, against its own limit, and against runs."""

import math

import numpy as np
import pytest

import anechoic as an
from anechoic import calibrate_endless, theory
from anechoic.strategies import ColumnNormalized, Identity, Toeplitz, Tree, endless
from anechoic.theory.problems import MeanEstimation
from anechoic.theory.spectra import spectrum
from anechoic.theory.suboptimality import _general_noise, _toeplitz_noise
from tests.theory.noises import NOISES, column


def written_out(h, eta, sigma, batch, decoder, std, displacement):
    """E[F(theta_t)] - F* by the covariance of (theta, all noise rows), in any basis."""
    d, rows = len(h), decoder.shape[1]
    covariance = np.zeros((d + rows * d, d + rows * d))
    covariance[:d, :d] = np.outer(displacement, displacement)
    covariance[d:, d:] = std**2 * np.eye(rows * d)
    out = [np.trace(h @ covariance[:d, :d]) / 2]
    for row in decoder:
        step = np.eye(len(covariance))
        step[:d, :d] -= eta * h
        step[:d, d:] = -eta * np.kron(row, np.eye(d))
        s = covariance[:d, :d]
        extra = h @ s @ h + np.trace(h @ s) * h + sigma**2 * h  # of one example, beyond the mean
        covariance = step @ covariance @ step.T
        covariance[:d, :d] += eta**2 * extra / batch
        out.append(np.trace(h @ covariance[:d, :d]) / 2)
    return np.array(out)


def random_covariance(rng, d):
    q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    values = rng.uniform(0.1, 1.0, d)
    return values, q, q @ np.diag(values) @ q.T


STRATEGIES = {
    "damped": Toeplitz.damped(7, 0.1),
    "column-normalised": ColumnNormalized(Toeplitz.damped(7, 0.1)),
    "tree": Tree(7),
    "one step": Identity(1),
}


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("batch", [1, 3, math.inf])
def test_the_trajectory_is_that_of_the_covariance_written_out(name, batch):
    strategy, rng = STRATEGIES[name], np.random.default_rng(5)
    values, q, h = random_covariance(rng, 3)
    eta, sigma, displacement = 0.4, 0.7, rng.standard_normal(3)
    problem = theory.LinearRegression(values, eta, sigma, batch)
    rho = 0.5
    std = strategy.largest_column_norm() / math.sqrt(2 * rho)
    decoder = strategy.correlate(np.eye(strategy.rows))
    if math.isinf(batch):  # full gradients, with the noise of a mechanism
        mechanism = an.EndlessMechanism(NOISES["damped"], noise_std=0.8, batch_size=2, clip_norm=3.0)
        found = theory.trajectory(problem, mechanism, steps=7, displacement=displacement)
        std, decoder = 0.8 * 3.0 / 2, NOISES["damped"].at(7).solve(np.eye(7))
    else:
        found = theory.trajectory(problem, strategy, displacement=displacement, rho=rho)
        std /= batch
    expected = written_out(h, eta, sigma, batch, decoder, std, q @ displacement)
    assert found == pytest.approx(expected, rel=1e-12)


def test_both_ways_to_add_noise_agree():
    keep = np.array([-0.3, 0.1, 0.9])
    for fast, slow in zip(
        _toeplitz_noise(NOISES["BLT"].at(41), keep), _general_noise(NOISES["BLT"].at(41), keep), strict=True
    ):
        assert fast == pytest.approx(slow, rel=1e-12)


@pytest.mark.parametrize("name", NOISES)
def test_trajectories_settle_at_the_limit(name):
    problem = theory.LinearRegression([1.0, 0.5, 0.2], 0.3, 0.4, 2)
    mechanism = calibrate_endless(NOISES[name], batch_size=2, noise_multiplier=0.7, delta=1e-6)
    limit = theory.asymptotic_suboptimality(problem, mechanism)
    found = theory.trajectory(problem, mechanism, steps=800, displacement=[3.0, 0.0, -1.0])
    assert found[0] == pytest.approx(0.5 * (9 + 0.2))
    assert found[-1] == pytest.approx(limit.total, rel=1e-8)
    assert abs(found[20] / limit.total - 1) > 1e-3  # it sets in, it is not there from the start


def test_mean_estimation_written_out():
    """One mode, no multiplicative noise: eta^2 / 2 times the mean of |B|^2 / |1 - (1 - eta) e^(i w)|^2."""
    eta, sigma, noise = 0.3, 0.5, NOISES["BLT"]
    problem = MeanEstimation(eta, sigma, dimension=4)
    found = theory.asymptotic_suboptimality(problem, noise, rho=0.7, clip_norm=2.0)
    omega = np.linspace(-math.pi, math.pi, 200_000, endpoint=False)
    power = spectrum(noise).power(omega)
    mean = np.mean(power / np.abs(1 - (1 - eta) * np.exp(1j * omega)) ** 2)
    std = 2.0 * noise.limiting_norm / math.sqrt(2 * 0.7)
    assert found.privacy == pytest.approx(4 * eta**2 / 2 * std**2 * mean, rel=1e-9)
    assert found.without_privacy == pytest.approx(4 * sigma**2 * eta**2 / 2 / (1 - (1 - eta) ** 2))
    run = theory.trajectory(
        problem, calibrate_endless(noise, batch_size=1, noise_multiplier=1.0, delta=1e-6), steps=1
    )
    assert run[1] == pytest.approx(4 * eta**2 / 2 * (sigma**2 + noise.limiting_norm**2))


def test_a_published_value():
    """d = 6, lambda_k = 1/k, eta = 0.1, nu = 0.05, rho = 0.5, sigma = 0.3; simulated 0.0485 +- 0.0003."""
    problem = theory.LinearRegression(1 / np.arange(1, 7), 0.1, 0.3)
    found = theory.asymptotic_suboptimality(problem, endless.damped(0.05), rho=0.5)
    assert float(found) == pytest.approx(0.04866, abs=5e-6)
    assert found.per_mode.sum() == pytest.approx(found.privacy)


def simulate(problem, beta, std, steps, runs, rng):
    """Mean and standard error of F at the end of runs with fresh Gaussian examples, one a step."""
    values = np.asarray(problem.eigenvalues)
    d, eta = len(values), problem.learning_rate
    theta = np.zeros((runs, d))
    past = np.zeros((steps, runs, d))
    for t in range(steps):
        past[t] = rng.standard_normal((runs, d))
        noise = std * np.tensordot(beta[t::-1], past[: t + 1], axes=1)
        x = rng.standard_normal((runs, d)) * np.sqrt(values)
        residual = problem.residual_std * rng.standard_normal(runs)
        gradient = x * ((x * theta).sum(axis=1) - residual)[:, None]
        theta -= eta * (gradient + noise)
    f = theta**2 @ values / 2
    return f.mean(), f.std() / math.sqrt(runs)


def check_run(seed, steps, runs):
    rng = np.random.default_rng(seed)
    d = int(rng.integers(1, 21))
    values = rng.uniform(0.05, 1.0, d)
    problem = theory.LinearRegression(values, 0.5 / values.sum(), rng.uniform(0, 1))
    name = ("damped", "BLT", "banded", "Anti-PGD")[seed % 4]
    noise = NOISES[name]
    mechanism = calibrate_endless(noise, batch_size=1, noise_multiplier=0.3, delta=1e-6)
    mean, error = simulate(problem, column(noise, steps), mechanism.noise_std, steps, runs, rng)
    exact = theory.trajectory(problem, mechanism, steps=steps)[-1]
    assert abs(mean - exact) <= 3 * error, (name, mean, error, exact)


def test_a_run_has_the_exact_suboptimality():
    check_run(seed=2, steps=12, runs=4000)


PROBLEM = theory.LinearRegression([1.0], 0.1)


def test_the_learning_rate_that_the_refusal_names_will_do():
    values = [1.0] * 9
    with pytest.raises(ValueError, match="Something below") as refused:
        theory.LinearRegression(values, 0.5)
    named = float(str(refused.value).split("Something below ")[1].split(" ")[0])
    assert theory.LinearRegression(values, 0.99 * named).feedback < 1


def test_a_finite_mechanism_brings_its_noise():
    strategy = Toeplitz.damped(9, 0.1)
    order = an.sampling.External(an.participation.Single(), 1, steps=9)
    finite = an.calibrate(strategy, sampling=order, noise_multiplier=0.7, delta=1e-6)
    same = theory.trajectory(PROBLEM, strategy, rho=1 / (2 * 0.7**2))
    assert theory.trajectory(PROBLEM, finite) == pytest.approx(same, rel=1e-9)
    assert len(theory.trajectory(PROBLEM, finite, steps=4)) == 5
