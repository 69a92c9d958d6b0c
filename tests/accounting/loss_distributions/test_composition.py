"""Composition with a tilt: against dp-accounting for large deltas, against exact sums for tiny ones."""

import math

import numpy as np
import pytest
from dp_accounting.pld.pld_pmf import DensePLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution, from_gaussian_mechanism

from anechoic.accounting import poisson_epsilon
from anechoic.accounting.loss_distributions import composition
from anechoic.accounting.loss_distributions.composition import composed_epsilon
from anechoic.accounting.loss_distributions.sampled_gaussian import sampled_gaussian_pld
from anechoic.accounting.poisson.search import _log_delta
from tests.marks import in_turn, slow


@pytest.mark.parametrize(
    ("delta", "sigma", "rate", "times"),
    [
        (1e-6, 3.0, 0.1, 512),
        (1e-5, 1.0, 0.01, 1000),
        (1e-6, 2.0, 0.3, 1),
        (0.1, 1.0, 0.1, 10),
        (1e-4, 0.5, 0.9, 3),
    ],
)
def test_agrees_with_dp_accounting_where_rounding_is_small(delta, sigma, rate, times):
    one = sampled_gaussian_pld(sigma, rate, "zero_out", 1e-3)
    known = one.self_compose(times).get_epsilon_for_delta(delta)
    assert composed_epsilon([(one, times)], delta) == pytest.approx(known, rel=1e-6)


def test_different_pairs():
    one, other = (sampled_gaussian_pld(sigma, 0.1, "zero_out", 1e-3) for sigma in (1.0, 2.0))
    gaussian = from_gaussian_mechanism(3.0, value_discretization_interval=1e-3)
    known = one.self_compose(20).compose(other.self_compose(30)).compose(gaussian).get_epsilon_for_delta(1e-6)
    assert composed_epsilon([(one, 20), (other, 30), (gaussian, 1)], 1e-6) == pytest.approx(known, rel=1e-5)


def two_points(p, width, infinite=0.0):
    masses = np.array([(1 - p) * (1 - infinite), 0.0, p * (1 - infinite)])
    return DensePLDPmf(width, -1, masses, infinite, True)


def exact_delta(epsilon, p, width, infinite, times):
    """Randomised response composed: a binomial sum, every term positive."""
    ups = np.arange(times + 1)
    log_choose = np.array(
        [math.lgamma(times + 1) - math.lgamma(k + 1) - math.lgamma(times - k + 1) for k in ups]
    )
    logs = log_choose + ups * math.log(p) + (times - ups) * math.log1p(-p) + times * math.log1p(-infinite)
    losses = width * (2 * ups - times)
    kept = losses > epsilon
    finite = float((np.exp(logs[kept]) * -np.expm1(epsilon - losses[kept])).sum())
    return finite - math.expm1(times * math.log1p(-infinite))


@in_turn("infinite", [0.0, 1e-17])
@in_turn("times", [1, 7, 500, 20_000])
@in_turn("delta", [1e-3, 1e-8, 1e-13])
@pytest.mark.slow
def test_tails_are_those_of_an_exact_sum(delta, times, infinite):
    width = 0.02
    p = 1 / (1 + math.exp(-width))
    pair = PrivacyLossDistribution(two_points(p, width, infinite))
    found = composed_epsilon([(pair, times)], delta)
    if math.isinf(found):
        assert exact_delta(width * times, p, width, infinite, times) > 0.99 * delta
        return
    assert exact_delta(found, p, width, infinite, times) <= delta
    if found > 0.0:
        assert exact_delta(found * (1 - 1e-4) - 1e-9, p, width, infinite, times) >= delta * (1 - 1e-6)


@pytest.mark.parametrize(
    ("delta", "sigma", "rate", "times"),
    [
        (1e-13, 1.0, 0.01, 1000),
        (1.1738e-12, 0.73932206, 4.942858e-4, 8604),
        *slow((1e-12, 1.0, 0.01, 1000), (1e-12, 1.0, 0.002, 20_000)),
    ],
)
@pytest.mark.slow
def test_tiny_deltas_keep_their_digits(delta, sigma, rate, times):
    """A plain power of the transform states 3 to 50 % too little delta here, or far too much."""
    epsilon = poisson_epsilon(delta, sigma, rate, times)
    true = math.exp(_log_delta(epsilon, sigma, rate, times, "zero_out"))
    assert 0.95 * delta <= true <= delta * (1 + 1e-6)


def test_nothing_is_shown_where_infinity_holds_too_much():
    pair = PrivacyLossDistribution(two_points(0.5, 0.1, 1e-5))
    assert composed_epsilon([(pair, 20)], 1e-4) == math.inf


def test_rounding_is_charged(monkeypatch):
    one = sampled_gaussian_pld(1.0, 0.01, "zero_out", 1e-3)
    plain = composed_epsilon([(one, 1000)], 1e-6)
    monkeypatch.setattr(composition, "_ROUNDING", 1e10)
    assert composed_epsilon([(one, 1000)], 1e-6) > 1.01 * plain


def test_a_flatter_tilt_helps_where_rounding_costs_much():
    """Whoever takes part is seen, so delta is nearly the probability of that."""
    found = poisson_epsilon(0.3151, 0.1888, 2.1e-4, 2156)
    assert found < 0.02
