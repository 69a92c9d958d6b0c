"""Exponential power noise: Gaussian where q = 2, quadrature and draws elsewhere, and its accounting."""

import math

import numpy as np
import pytest
from scipy.integrate import quad

import anechoic as an
from anechoic.strategies import BandedToeplitz, Identity
from anechoic.theory.lq_noise import ExponentialPower, gaussian_clip_norm, lq_epsilon
from tests.marks import each_once


@pytest.mark.parametrize("order", [1.1, 2.0, 16.0])
@pytest.mark.parametrize("shift", [1e-3, 0.7, 5.0])
def test_q_two_is_gaussian(order, shift):
    noise = ExponentialPower(2.0, 1.5)
    gaussian = order * shift**2 / (2 * noise.std**2)
    assert noise.std == pytest.approx(1.5 / math.sqrt(2))
    assert noise.divergence(order, shift) == pytest.approx(gaussian, rel=1e-7, abs=1e-12)
    near = ExponentialPower(2.0 + 1e-9, 1.5)  # which is integrated
    assert near.divergence(order, shift) == pytest.approx(gaussian, rel=1e-7, abs=1e-12)
    # for q = 2 all shifts of one norm cost the same, in any dimension
    worst = noise.worst_divergence(order, shift, 10)
    assert gaussian <= worst * (1 + 1e-9)
    assert worst <= 1.3 * gaussian


@pytest.mark.parametrize(("q", "order"), [(2.5, 1.2), (2.5, 3.0), (3.0, 1.2), (3.0, 2.0), (6.0, 1.2)])
def test_divergences_against_quadrature(q, order):
    u = 0.8
    mass = 2 * math.gamma(1 + 1 / q)
    integral = quad(
        lambda x: math.exp(-order * abs(x - u) ** q + (order - 1) * abs(x) ** q) / mass,
        -8,
        30,
        points=[0, u],
        limit=400,
    )[0]
    assert ExponentialPower(q, 2.0).divergence(order, 1.6) == pytest.approx(
        math.log(integral) / (order - 1), rel=1e-6
    )


@pytest.mark.parametrize(
    ("q", "order", "shift", "exact"),
    [
        (8.0, 2.0, 1.0, 15107093.5595),
        (8.0, 64.0, 1.0, 3.45508390553e18),
        (2.2, 1.05, 0.01, 1.15881211342e-4),
        (6.0, 64.0, 0.1, 3251565.9611),
        (2.5, 1.2, 0.4, 0.248038553713),
        (2.5, 4.0, 0.001, 5.03525069948e-6),
        (200.0, 1.05, 0.0062, 0.004790160185532),  # flat between steps at |x| = 1 and |x - u| = 1
        (300.0, 2.0, 0.001, 3.331646452676e-4),
        (500.0, 2.0, 1.7e-4, 1.456783018252e-5),
        (500.0, 1.05, 5e-4, 6.609333541626e-5),
    ],
)
def test_narrow_peaks_and_kinks_are_resolved_and_rounded_up(q, order, shift, exact):
    """Quadratures of forty digits by mpmath, split around the peak."""
    found = ExponentialPower(q, 1.0).divergence(order, shift)
    assert exact * (1 - 1e-11) <= found <= exact * (1 + 1e-8)


@pytest.mark.parametrize(("q", "scale"), [(4.0, 1.0), (6.0, 2.0), (8.0, 1.5), (8.0, 30.0)])
@pytest.mark.slow
def test_every_power_has_an_account(q, scale):
    """By all orders at once; those whose integral leaves the range of numbers are not chosen."""
    noise = ExponentialPower(q, scale)
    given = {"norm": 1.0, "dimension": 10, "delta": 1e-6}
    found = lq_epsilon(Identity(8), noise, **given)
    assert 0 < found <= lq_epsilon(Identity(8), noise, **given, orders=(1.5,))
    assert found == pytest.approx({1.0: 56.92, 2.0: 55.13, 1.5: 310.06, 30.0: 2.472}[scale], rel=2e-2)


@pytest.mark.parametrize(("q", "order"), [(2.0, 4.0), (3.0, 1.2), (5.0, 2.5)])
@pytest.mark.few(2)
def test_divergences_rise_with_the_shift(q, order):
    """Step 3 of the proof: exp((order - 1) phi) is convex in the shift, and least at 0."""
    noise = ExponentialPower(q, 1.0)
    phi = np.array([noise.divergence(order, float(u)) for u in np.linspace(0.0, 0.5, 21)])
    assert np.all(np.diff(phi) > 0)
    assert np.all(np.diff(np.exp((order - 1) * phi), 2) > 0)


def test_the_erratum_in_its_own_dimension():
    """q = 3, alpha = 1.2, d = 10^4, an even shift of norm scale: 39, where Lemma C.1 claims 1."""
    noise, d = ExponentialPower(3.0, 1.0), 10_000
    even = d * noise.divergence(1.2, d ** (-1 / 3))
    assert even == pytest.approx(39, abs=1)
    assert even <= noise.worst_divergence(1.2, 1.0, d) <= noise.lemma_c1(1.2, 1.0, d)


@pytest.mark.parametrize(("dimension", "q"), each_once([10, 25], [2.0, 3.0, 5.0]))
@pytest.mark.slow
def test_the_account_is_never_below_draws(q, dimension):
    """Random shifts of norm 1.3: exact sums over coordinates, and a mean over draws."""
    noise, rng, order = ExponentialPower(q, 1.0), np.random.default_rng(int(q)), 1.5
    worst = noise.worst_divergence(order, 1.3, dimension)
    for _ in range(4):
        shift = rng.exponential(size=dimension) ** rng.uniform(0.2, 3.0)
        shift *= 1.3 / np.linalg.norm(shift, ord=q)
        exact = sum(noise.divergence(order, float(x)) for x in shift)
        assert exact <= worst
        z = noise.sample((20_000, dimension), rng)
        # E under the unmoved law of (p(z - u) / p(z))^alpha
        log_ratio = (np.abs(z) ** q - np.abs(z - shift) ** q).sum(axis=1)
        drawn = np.exp(order * log_ratio)
        low = drawn.mean() - 3 * drawn.std() / math.sqrt(len(drawn))
        assert low <= 0 or math.log(low) / (order - 1) <= worst
    single = noise.divergence(order, 1.3)
    even = dimension * noise.divergence(order, 1.3 * dimension ** (-1 / q))
    assert max(single, even) <= worst


def test_draws_have_the_law():
    noise = ExponentialPower(4.0, 2.0)
    z = noise.sample((100_000,), np.random.default_rng(0))
    assert z.std() == pytest.approx(noise.std, rel=0.01)
    assert np.mean(np.abs(z / 2.0) ** 4) == pytest.approx(1 / 4, rel=0.02)  # E|x/scale|^q = 1/q


def test_guarantees_add_over_the_rows_of_c():
    """q = 2 against the exact Gaussian account of the same matrix; C = I against one row."""
    noise = ExponentialPower(2.0, 3.0)
    c = BandedToeplitz(5, [1.0, 1.0, 1.0, 1.0])
    renyi = lq_epsilon(c, noise, norm=1.0, dimension=3, delta=1e-5, orders=(8.0, 16.0))
    exact = an.accounting.gaussian_epsilon(1e-5, c.largest_column_norm() / noise.std)
    assert exact <= renyi <= 1.5 * exact
    cubic = {"norm": 1.0, "dimension": 12, "delta": 1e-5, "orders": (1.5, 3.0)}
    one = lq_epsilon(Identity(1), ExponentialPower(3.0, 3.0), **cubic)
    many = lq_epsilon(Identity(4), ExponentialPower(3.0, 3.0), **cubic)
    assert many == pytest.approx(one)


def test_gaussian_noise_by_norm_comparison():
    x = np.array([1.0, -2.0, 0.5, 3.0])
    assert np.linalg.norm(x) <= gaussian_clip_norm(np.linalg.norm(x, ord=3), 3.0, 4)
    assert gaussian_clip_norm(1.0, 2.0, 100) == 1.0
    assert gaussian_clip_norm(1.0, 4.0, 16) == 2.0
