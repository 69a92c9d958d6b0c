"""The fast estimate of the Poisson noise multiplier, against dp-accounting's pessimistic distributions."""

import math
from itertools import cycle

import pytest

from anechoic.accounting import gaussian_mu, poisson_epsilon, poisson_noise_multiplier
from anechoic.accounting.poisson.search import poisson_noise_multiplier_estimate
from tests.marks import slow

# many releases and few, tiny rates (the law is then almost an atom), rates near 1, one release
SETTINGS = [
    (1.0, 1e-6, 0.2, 100),
    (8.0, 1e-6, 0.01, 400),
    (8.0, 1e-6, 0.7, 10),
    (4.0, 1e-5, 0.5, 1),
    (4.0, 1e-5, 0.9, 2),
    (16.0, 1e-6, 0.05, 5),
    (20.0, 1e-6, 0.01, 1000),
    (2.0, 1e-6, 0.01, 100),
]


@pytest.mark.parametrize(
    ("setting", "adjacency"),
    [
        *zip(SETTINGS, cycle(("zero_out", "replace_one"))),
        *slow(*zip(SETTINGS, cycle(("replace_one", "zero_out")))),
    ],
)
def test_the_estimate_is_that_of_the_grid(setting, adjacency):
    epsilon, delta, rate, releases = setting
    sigma = poisson_noise_multiplier_estimate(epsilon, delta, rate, releases, adjacency=adjacency)
    # the grid is pessimistic by some 1e-4 in epsilon
    reached = poisson_epsilon(delta, sigma, rate, releases, adjacency=adjacency)
    assert reached == pytest.approx(epsilon, rel=5e-4)


@pytest.mark.parametrize("setting", SETTINGS[:3])
@pytest.mark.few(2)
def test_the_multiplier_keeps_epsilon_and_is_nearly_the_least(setting):
    epsilon, delta, rate, releases = setting
    sigma = poisson_noise_multiplier(epsilon, delta, rate, releases)
    assert poisson_epsilon(delta, sigma, rate, releases) <= epsilon
    assert poisson_epsilon(delta, sigma * (1 - 2e-4), rate, releases) > epsilon


def test_rate_one_is_the_gaussian_mechanism():
    for adjacency, factor in (("zero_out", 1.0), ("replace_one", 2.0)):
        sigma = poisson_noise_multiplier_estimate(1.0, 1e-6, 1.0, 9, adjacency=adjacency)
        assert sigma == pytest.approx(3.0 * factor / gaussian_mu(1.0, 1e-6))


def test_sampling_never_needs_more_noise():
    plain = math.sqrt(10) / gaussian_mu(12.0, 1e-6)
    values = [poisson_noise_multiplier_estimate(12.0, 1e-6, rate, 10) for rate in (0.1, 0.5, 0.9, 0.99, 1.0)]
    assert values == sorted(values)
    assert values[-1] == pytest.approx(plain)
