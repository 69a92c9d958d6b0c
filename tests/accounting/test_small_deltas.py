"""Amplification at deltas as cryptographers take them: exact profiles, and never above Renyi's bound."""

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant

from anechoic import Mechanism, compose
from anechoic.accounting import poisson_epsilon
from anechoic.accounting.gaussian import gaussian_epsilon, hockey_stick
from anechoic.accounting.random_allocation.epsilon import random_allocation_epsilon
from anechoic.sampling import BallsInBins, Poisson
from anechoic.strategies import Identity
from tests.marks import each_once, slow

DELTAS = [1e-20, 2.0**-80, 1e-77, 1e-200]


def by_renyi(sigma, rate, releases, delta):
    accountant = RdpAccountant()
    accountant.compose(SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma)), releases))
    return accountant.get_epsilon(delta)


@pytest.mark.parametrize(
    ("delta", "sigma", "rate", "releases"),
    each_once(DELTAS, [(1.0, 0.01, 100), (1.0, 1e-3, 1000), (5.0, 1e-3, 10**4)]),
)
def test_never_above_renyi(sigma, rate, releases, delta):
    found = poisson_epsilon(delta, sigma, rate, releases)
    assert found <= by_renyi(sigma, rate, releases, delta)
    run = Mechanism(Identity(releases), Poisson(int(1 / rate), 1, releases), noise_std=sigma)
    assert run.epsilon(delta) == pytest.approx(found)
    if releases <= 1000:  # the sum of the single epsilons is no more
        assert compose(run, times=3).epsilon(delta) <= by_renyi(sigma, rate, 3 * releases, delta)


@pytest.mark.parametrize("delta", DELTAS)
def test_one_release_is_exact(delta):
    sigma, rate = 0.8, 0.01
    found = poisson_epsilon(delta, sigma, rate, 1)

    def exact(epsilon):  # (1 - q) + q r against e^epsilon
        return rate * hockey_stick(math.log1p(math.expm1(epsilon) / rate), 1 / sigma)

    assert exact(found) <= delta < exact(found * (1 - 1e-4))


def two_steps(epsilon, sigma):
    """delta of one of two steps, the larger direction: an integral over the first ratio."""
    z = np.linspace(-60.0, 60.0, 40_001)
    own = np.exp(z / sigma - 0.5 / sigma**2)
    weights = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    left = 2 * math.exp(epsilon) - own
    above = [hockey_stick(math.log(k), 1 / sigma) if k > 0 else 1 - k for k in left]
    return 0.5 * float(weights @ np.array(above))


@pytest.mark.parametrize(("epsilon", "sigma"), [(12.0, 1.0), (6.0, 2.0), (25.0, 0.7)])
def test_two_steps_by_integration(epsilon, sigma):
    delta = two_steps(epsilon, sigma)
    assert delta < 1e-20
    bins = Mechanism(Identity(2), BallsInBins(examples=10, bins=2, steps=2), noise_std=sigma).epsilon(delta)
    for found in (random_allocation_epsilon(delta, sigma, 2, 2), bins):
        assert epsilon * (1 - 1e-6) <= found <= 1.01 * epsilon
        assert found < gaussian_epsilon(delta, 1 / sigma)


@pytest.mark.parametrize(("count", "times"), [(32, 1), *slow((32, 3))])
def test_there_is_no_cliff(count, times):
    """Epsilon grows slowly in log(1 / delta)."""
    run = Mechanism(Identity(64), BallsInBins(examples=1000, bins=count, steps=64), noise_std=3.0)
    found = [compose(run, times=times).epsilon(math.exp(-exponent)) for exponent in range(30, 90, 6)]
    steps = np.divide(found[1:], found[:-1])
    assert steps.min() > 1.0 and steps.max() < 1.35
