"""Lower confidence bounds: they stay below the truth as often as they say, and approach it."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtri

from anechoic.accounting import gaussian_epsilon
from anechoic.audit.bounds import (
    bounds_by_ranks,
    lower_proportion,
    mu_by_fit,
    mu_by_threshold,
    noncentral_tail,
    noncentrality_bound,
    proved_rates,
    upper_proportion,
)
from tests.marks import every_other


def scores(mu, count, seed):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(count), mu + rng.standard_normal(count)


@pytest.mark.parametrize("successes", [0, 1, 7, 19, 20])
def test_proportions_are_those_of_clopper_and_pearson(successes):
    interval = stats.binomtest(successes, 20).proportion_ci(0.9, method="exact")
    assert float(lower_proportion(successes, 20, 0.05)) == pytest.approx(interval.low, abs=1e-12)
    assert float(upper_proportion(successes, 20, 0.05)) == pytest.approx(interval.high, abs=1e-12)


@pytest.mark.parametrize("mu", every_other([0.3, 1.3, 4.0]))
@pytest.mark.slow
def test_bounds_on_mu_exceed_it_as_rarely_as_stated(mu):
    high = {"threshold": 0, "fit": 0}
    for seed in range(600):
        out, into = scores(mu, 60, seed)
        high["threshold"] += mu_by_threshold(out, into, threshold=mu / 2, confidence=0.9).value > mu
        signal = np.repeat([0.0, 1.0], 60)
        high["fit"] += mu_by_fit(np.concatenate([out, into]), signal, confidence=0.9).value > mu
    assert high["threshold"] <= 60
    assert 36 <= high["fit"] <= 84  # exact: 60 expected, std 7.3


@pytest.mark.parametrize(("law", "shift"), [(stats.norm(), 1.0), (stats.geom(0.3), 2)])
def test_rates_at_the_scores_of_ranks_are_wrong_as_rarely_as_stated(law, shift):
    """Where one is wrong, the point lies above the curve of the law; with ties too."""
    points = np.linspace(40, -8, 48_001)
    curve, wrong = (law.sf(points), law.sf(points - shift)), 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        out, into = law.rvs(70, random_state=rng), law.rvs(90, random_state=rng) + shift
        true, false = proved_rates(out, into, 0.2)
        wrong += bool((true > np.interp(false, *curve) + 1e-4).any())
    assert wrong <= 40
    into[:] = out[:] = 0  # nothing tells them apart
    assert (proved_rates(out, into, 0.2)[0] < proved_rates(out, into, 0.2)[1]).all()


def test_the_fit_weighs_canaries_of_different_strength():
    rng = np.random.default_rng(0)
    signal = rng.choice([0.0, 0.3, 0.6, 1.0], size=4000)
    found = mu_by_fit(5.0 + 2.0 * (1.7 * signal + rng.standard_normal(4000)), signal, confidence=0.999)
    assert found.value < 1.7 < found.value + 0.3


@pytest.mark.parametrize(("t", "freedom", "shift"), [(3.0, 10, 1.0), (30.0, 998, 28.0), (180.0, 998, 178.0)])
def test_the_noncentral_t_law_is_that_of_scipy(t, freedom, shift):
    assert noncentral_tail(t, freedom, shift) == pytest.approx(stats.nct.sf(t, freedom, shift), rel=3e-4)
    assert stats.nct.sf(t, freedom, noncentrality_bound(t, freedom, 0.95)) == pytest.approx(0.05, rel=1e-3)


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.slow
def test_bounds_on_epsilon_exceed_it_as_rarely_as_stated(mirrored):
    mu, delta = 2.0, 0.05
    true, above = gaussian_epsilon(delta, mu), 0
    for seed in range(400):
        out, into = scores(mu, 80, seed)
        if mirrored:
            out, into = -into, -out
        above += bounds_by_ranks(out, into, delta=delta, confidence=0.9)[0].value > true
    assert above <= 40


def test_the_direction_that_shows_more_counts():
    """A score that is never high without the canary, and one that is never low with it."""
    only_high, _ = bounds_by_ranks(np.zeros(400), np.repeat([0.0, 1.0], 200), delta=1e-6)
    only_low, _ = bounds_by_ranks(np.repeat([0.0, 1.0], 200), np.ones(400), delta=1e-6)
    assert only_high.value == pytest.approx(only_low.value, rel=1e-6)
    each = 0.05 / (2 * 18)  # nine ranks from either side
    limit = math.log(each ** (-1 / 400) / (each ** (-1 / 400) - 1))
    assert 3.0 < only_high.value < limit


def test_a_perfect_separation_is_finite():
    out, into = np.zeros(100), np.ones(100)
    bound = mu_by_threshold(out, into, threshold=0.5)
    assert bound.value == pytest.approx(2 * ndtri(0.025 ** (1 / 100)), rel=1e-9)
    with pytest.raises(ValueError, match="no noise at all"):
        mu_by_fit(np.concatenate([out, into]), np.repeat([0.0, 1.0], 100))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mu_by_threshold([], [1.0], threshold=0.0), "without has shape"),
        (lambda: mu_by_threshold([0.0], [1.0], threshold=0.0, confidence=1.0), "confidence=1.0"),
        (lambda: mu_by_fit([1.0, 2.0, 3.0], [0.0, 0.0, 1.0]), "3 scores are too few"),
        (lambda: mu_by_fit([1.0, 2.0, 3.0, 4.0], [1.0] * 4), "all signals are equal"),
        (lambda: bounds_by_ranks([0.0] * 9, [1.0] * 9, delta=0.0), "delta=0.0"),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
