"""Releases of several kinds, against one kind, dp-accounting, and what must hold."""

import math

import pytest
from dp_accounting import dp_event
from dp_accounting.pld import pld_privacy_accountant

from anechoic.accounting import compose_sampled, gaussian_epsilon, poisson_epsilon

DELTA = 1e-6


def theirs(releases, delta, width):
    accountant = pld_privacy_accountant.PLDAccountant(value_discretization_interval=width)
    for sigma, rate, count in releases:
        event = dp_event.GaussianDpEvent(sigma)
        accountant.compose(dp_event.PoissonSampledDpEvent(rate, event) if rate < 1 else event, count)
    return accountant.get_epsilon(delta)


@pytest.mark.parametrize(("sigma", "rate", "count"), [(1.0, 0.01, 300), (0.7, 0.2, 5), (3.0, 0.05, 1)])
@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
def test_one_kind_is_one_kind(sigma, rate, count, adjacency):
    expected = poisson_epsilon(DELTA, sigma, rate, count, adjacency=adjacency)
    assert compose_sampled([(sigma, rate, count)], DELTA, adjacency=adjacency) == pytest.approx(
        expected, rel=1e-3
    )
    halves = [(sigma, rate, count), (sigma, rate, count)]
    twice = poisson_epsilon(DELTA, sigma, rate, 2 * count, adjacency=adjacency)
    assert compose_sampled(halves, DELTA, adjacency=adjacency) == pytest.approx(twice, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "releases",
    [
        [(1.0, 0.01, 200), (0.8, 0.03, 50)],
        [(2.0, 0.1, 20), (5.0, 1.0, 3)],
        [(0.6, 0.001, 40), (4.0, 0.3, 7), (9.0, 1.0, 2)],
    ],
)
def test_unlike_kinds_against_dp_accounting(releases):
    found = compose_sampled(releases, DELTA)
    assert found == pytest.approx(theirs(releases, DELTA, 1e-4), rel=2e-3)
    assert found == pytest.approx(compose_sampled(releases[::-1], DELTA), rel=1e-9)
    # no less than any part, no more than without samples
    assert found >= max(compose_sampled([kind], DELTA) for kind in releases) * (1 - 1e-9)
    mu = math.sqrt(sum(count / sigma**2 for sigma, _, count in releases))
    assert found <= gaussian_epsilon(DELTA, mu) * (1 + 1e-12)


def test_ends():
    assert compose_sampled([(1.0, 1e-9, 3), (0.1, 1e-8, 2)], 1e-6) == 0.0  # too seldom to be seen
    whole = compose_sampled([(2.0, 1.0, 3), (4.0, 1.0, 4)], DELTA)
    assert whole == pytest.approx(gaussian_epsilon(DELTA, 1.0), rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([], DELTA), "releases is empty"),
        (([(0.0, 0.1, 1)], DELTA), "noise multiplier=0.0"),
        (([(1.0, 0.0, 1)], DELTA), "rate=0.0"),
        (([(1.0, math.nan, 1)], DELTA), "rate=nan"),
        (([(1.0, 0.1, 0)], DELTA), "how often=0"),
        (([(1.0, 0.1, 1)], 1.0), "delta"),
    ],
)
def test_bad_arguments(arguments, words):
    with pytest.raises(ValueError, match=words):
        compose_sampled(*arguments)
    with pytest.raises(ValueError, match="adjacency"):
        compose_sampled([(1.0, 0.1, 1)], DELTA, adjacency="swap")
