"""Optimal noise against its bound, its classes against brute force, and one problem against print."""

import math

import numpy as np
import pytest

import anechoic as an
from anechoic import calibrate_endless, theory
from anechoic.algebra.circle import circle
from anechoic.mechanism.endless import EndlessMechanism
from anechoic.strategies import BandedToeplitz, Toeplitz, endless, make_endless
from anechoic.strategies.endless_mixture_root import MixtureRoot
from anechoic.theory.optimal import (
    anti_pgd_noise,
    asymptotic_loss,
    banded_noise,
    damped_noise,
    independent_noise,
)
from anechoic.theory.problems import MeanEstimation
from anechoic.theory.spectra import spectrum
from anechoic.theory.trigonometric import minimum_phase, spectral_factor
from tests.theory.noises import NOISES

HARMONIC = theory.LinearRegression(1 / np.arange(1, 129), 0.02)
SMALL = theory.LinearRegression([1.0, 0.4, 0.4, 0.05], 0.3)
CLASSES = {
    "optimal": theory.optimal_noise,
    "damped": damped_noise,
    "Anti-PGD": anti_pgd_noise,
    "independent": independent_noise,
    "BLT": theory.blt_noise,
    "banded": lambda problem: banded_noise(problem, bands=16),
    "banded inverse": lambda problem: theory.banded_inverse_noise(problem, bands=16),
}


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("problem", [SMALL, MeanEstimation(0.1, 1.0)], ids=["regression", "mean"])
def test_every_class_is_measured_against_one_bound(name, problem):
    found = CLASSES[name](problem)
    assert found.lower_bound == pytest.approx(problem.smallest_loss, rel=1e-12)
    assert found.gap >= 0
    assert "Cauchy-Schwarz" in found.bound_name
    # loss^2 / (2 rho) is the exact privacy part of F_inf
    exact = theory.asymptotic_suboptimality(problem, found.strategy, rho=0.8, clip_norm=3.0)
    assert found.suboptimality(0.8, 3.0) == pytest.approx(exact.total, rel=1e-8)
    assert found.suboptimality(0.8, 3.0) > problem.floor


@pytest.mark.parametrize("problem", [HARMONIC, SMALL, MeanEstimation(0.3)])
def test_optimal_noise_reaches_the_bound(problem):
    found = theory.optimal_noise(problem)
    assert found.gap < 1e-9
    omega = np.array([0.0, 0.01, 0.3, 2.0])
    flat = spectrum(found.strategy).power(omega) ** 2 * problem.density(np.sin(omega / 2) ** 2)
    assert flat == pytest.approx(np.full(4, flat[0]), rel=1e-10)  # |B|^4 Psi is constant


def test_one_eigenvalue_has_the_damped_root():
    """Paper 000, Theorem 2.1: the optimal noise for the mean is the damped root with nu = eta."""
    best = theory.optimal_noise(MeanEstimation(0.2)).strategy
    assert best.at(20).coefficients == pytest.approx(Toeplitz.damped(20, 0.2).coefficients, rel=1e-12)
    assert damped_noise(MeanEstimation(0.2)).strategy.damping == pytest.approx(0.2, rel=1e-4)


@pytest.mark.slow
def test_the_problem_of_the_figures():
    """d = 128, lambda_k = 1/k, eta = 0.02: loss^2 in units of G^2 / (2 rho)."""
    best, damped = theory.optimal_noise(HARMONIC), damped_noise(HARMONIC)
    rule = asymptotic_loss(HARMONIC, endless.damped(0.02 / 128))
    assert best.loss == pytest.approx(0.0937837, abs=5e-8)
    assert damped.loss == pytest.approx(0.0945463, abs=5e-8)
    assert damped.strategy.damping == pytest.approx(6.563e-4, rel=1e-3)
    assert rule == pytest.approx(0.0979009, abs=5e-8)
    blt = theory.blt_noise(HARMONIC, buffers=6)
    assert best.loss < blt.loss < 1.0001 * best.loss
    others = [CLASSES[name](HARMONIC).loss for name in CLASSES if name != "optimal"]
    assert min(others) > best.loss


def test_no_mechanism_does_better_on_average():
    """tr sqrt(M_n) / n bounds every C from below, M_n = sum_j of all decoders' quadratic forms."""
    n, problem = 200, theory.LinearRegression([1.0, 0.5], 0.6)
    total = np.zeros((n, n))
    lags = np.subtract.outer(np.arange(n), np.arange(n))
    for gap, weight in zip(problem.gaps, problem.weights, strict=True):
        discounted = np.where(lags >= 0, (1 - gap) ** np.maximum(lags, 0), 0.0)
        total += weight * gap * (2 - gap) * discounted.T @ discounted
    bound = np.sqrt(np.linalg.eigvalsh(total)).sum() / n
    assert bound == pytest.approx(problem.smallest_loss, rel=5e-3)


def test_a_learning_problem_is_a_workload():
    """Its max loss tends to the stationary one, for any strategy; its square root is the optimal noise."""
    n = 400
    workload = SMALL.workload(n)
    for noise in (NOISES["BLT"], theory.optimal_noise(SMALL).strategy):
        finite = an.loss(workload, noise.at(n), an.participation.Single(), kind="max")
        assert finite == pytest.approx(asymptotic_loss(SMALL, noise), rel=2e-4)
    root = Toeplitz.square_root(workload).coefficients
    best = theory.optimal_noise(SMALL).strategy.at(n).coefficients
    assert best == pytest.approx(root / root[0], rel=1e-9)


def test_minimum_phase_factors():
    gaps, weights = np.array([1e-5, 0.01, 0.3, 0.31]), np.array([1.0, 2.0, 0.1, 5.0])
    w = minimum_phase(gaps, weights)
    assert w.min() > 0
    x = np.exp(1j * np.array([0.0, 1e-4, 0.02, 1.0, 3.0]))[:, None]
    a = 1 - gaps
    factor = (w / (1 - a * x)).sum(axis=1)
    power = (weights * (1 - a**2) / np.abs(1 - a * x) ** 2).sum(axis=1)
    assert np.abs(factor) ** 2 == pytest.approx(power, rel=1e-10)
    # its zeros, as those of a polynomial, lie outside the disc
    zeros = np.roots(sum(w[j] * np.poly(1 / np.delete(a, j)) * np.prod(np.delete(a, j)) for j in range(4)))
    assert np.abs(zeros).min() > 1


@pytest.mark.parametrize("bands", [1, 2, 3])
def test_banded_classes_against_a_plain_search(bands):
    from scipy.optimize import minimize

    for make, best in (
        (lambda c: make_endless(BandedToeplitz(len(c), c)), banded_noise),
        (lambda c: make_endless(an.strategies.BandedInverse(len(c), c)), theory.banded_inverse_noise),
    ):

        def loss(rest, make=make):
            try:
                return asymptotic_loss(SMALL, make(np.concatenate([[1.0], rest])))
            except ValueError:
                return 1e3

        found = best(SMALL, bands=bands)
        if bands == 1:
            assert found.loss == pytest.approx(loss([]), rel=1e-9)
            continue
        sign = 0.2 if best is banded_noise else -0.2
        plain = minimize(
            loss, np.full(bands - 1, sign), method="Nelder-Mead", options={"xatol": 1e-4, "fatol": 1e-7}
        )
        assert found.loss == pytest.approx(plain.fun, rel=1e-5)
        assert found.loss <= plain.fun * (1 + 1e-9)


@pytest.mark.parametrize("rate", [0.02, 0.001])
def test_a_power_that_almost_touches_zero_is_the_best_too(rate):
    """Three bands for 1/k: the zeros come within 1e-2 of the circle, between the points of a fixed grid."""
    from scipy.optimize import minimize

    problem = theory.LinearRegression(1 / np.arange(1, 129), rate)

    def squared(rest):
        c = np.concatenate([[1.0], rest])

        def rows(angles):
            power = np.abs(np.exp(1j * np.outer(angles, np.arange(3))) @ c) ** 2
            return (problem.density(np.sin(angles / 2) ** 2) / power)[None, :]

        points = circle(rows, rate / 1024)
        return float(points.mean(rows(points.angles))[0]) * float(c @ c)

    plain = minimize(squared, [0.9, 0.8], method="Nelder-Mead", options={"xatol": 1e-5, "fatol": 1e-12})
    found = banded_noise(problem, bands=3).loss
    assert found == pytest.approx(math.sqrt(plain.fun), rel=1e-6)


@pytest.mark.slow
def test_a_search_that_rounding_stalls_ends_there():
    """One slow mode: Newton's decrement stays about 1e-12, and the search took thousands of steps to end."""
    problem = theory.LinearRegression([1.2437e-4], 2.4353e-4, residual_std=0.0446, batch_size=7)
    found = theory.banded_inverse_noise(problem, bands=3)
    assert found.evaluations < 600
    assert found.loss <= theory.banded_inverse_noise(problem, bands=2).loss * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_no_class_is_worse_than_what_it_contains(seed):
    rng = np.random.default_rng(seed)
    for _ in range(10):
        values = 10 ** -rng.uniform(0, rng.uniform(0.1, 8), size=rng.integers(1, 40))
        rate = 10 ** rng.uniform(-4, math.log10(1.95))
        problem = theory.LinearRegression(values / values.max(), rate, batch_size=math.inf)
        best = theory.optimal_noise(problem).loss
        plain = independent_noise(problem).loss
        chains = (
            [damped_noise(problem)],
            [anti_pgd_noise(problem), theory.banded_inverse_noise(problem, bands=2)],
            [theory.banded_inverse_noise(problem, bands=b) for b in (2, 8)],
            [banded_noise(problem, bands=b) for b in (4, 8)],
            [theory.blt_noise(problem, buffers=b) for b in (1, 2, 3, 6)],
        )
        for chain in chains:
            losses = [plain, *(found.loss for found in chain), best]
            for outer, inner in zip(losses[1:], losses, strict=False):
                assert outer <= inner * (1 + 1e-8), (seed, values, rate, losses)


def test_two_bands_of_the_inverse_are_anti_pgd():
    assert theory.banded_inverse_noise(HARMONIC, bands=2).loss == pytest.approx(
        anti_pgd_noise(HARMONIC).loss, rel=1e-9
    )


def test_spectral_factors():
    c = np.array([2.0, -1.1, 0.4, 0.05])
    r = np.array([c[: 4 - k] @ c[k:] for k in range(4)])
    assert spectral_factor(r) == pytest.approx(c, rel=1e-12)
    mirrored = spectral_factor(np.array([5.0, 2.0]))  # 1 + 2x has its zero inside, 2 + x does not
    assert mirrored == pytest.approx([2.0, 1.0])
    with pytest.raises(ArithmeticError, match="no spectral factor"):
        spectral_factor(np.array([1.0, 0.6]))


@pytest.mark.parametrize(
    "problem",
    [
        MeanEstimation(1.0),
        MeanEstimation(1.7),
        theory.LinearRegression([1.0, 0.9, 0.3, 0.01], 1.9, batch_size=math.inf),
        theory.LinearRegression(np.linspace(1e-3, 1, 400), 1.9, batch_size=math.inf),
    ],
)
@pytest.mark.few(2)
def test_steps_that_overshoot_have_an_optimal_noise(problem):
    """Their modes alternate, a < 0: the minimum-phase factor is a mixture with positive weights still."""
    best = theory.optimal_noise(problem)
    assert best.gap < 1e-6
    run = best.strategy.at(300)
    assert run.largest_column_norm() == pytest.approx(best.strategy.limiting_norm, rel=1e-2)
    finite = an.loss(problem.workload(300), run, an.participation.Single(), kind="max")
    assert finite == pytest.approx(best.loss, rel=2e-2)
    inverse = theory.banded_inverse_noise(problem, bands=8)
    assert inverse.gap < 0.02
    damped = damped_noise(problem)
    assert damped.loss <= independent_noise(problem).loss * (1 + 1e-9)
    if isinstance(problem, MeanEstimation):
        assert damped.gap < 1e-6


def test_a_slow_mode_beside_one_that_overshoots():
    """A trial damping of 2 - 1e-10 / 30 ended the search."""
    found = damped_noise(theory.LinearRegression([1.0, 1e-10], learning_rate=1.01, batch_size=math.inf))
    assert found.gap < 0.2


def test_many_modes_are_merged_without_loss():
    problem = theory.LinearRegression(1 / np.arange(1, 2001), 0.02)
    assert theory.optimal_noise(problem).gap < 1e-6


def test_noise_for_ever_and_for_a_number_of_steps():
    best = theory.optimal_noise(SMALL)
    forever = calibrate_endless(best.strategy, batch_size=1, epsilon=1.0, delta=1e-6)
    assert EndlessMechanism.from_json(forever.to_json()) == forever
    order = an.sampling.FixedOrder(examples=50, batch_size=5, epochs=1)
    mechanism = an.calibrate(best.strategy.at(10), sampling=order, epsilon=1.0, delta=1e-6)
    assert an.Mechanism.from_json(mechanism.to_json()).epsilon(1e-6) <= 1.0
    assert best.strategy.at(999).structure.nonincreasing


def test_the_root_of_one_geometric_sequence():
    root = MixtureRoot([3.0], [0.9])
    assert root.limiting_norm == pytest.approx(endless.damped(0.1).limiting_norm, rel=1e-9)
    assert root.limiting_norm > math.sqrt(np.square(root.at(500).coefficients).sum())
