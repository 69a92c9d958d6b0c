"""Confidence bounds: against the exact binomial, and their coverage."""

import math

import numpy as np
import pytest
from scipy import stats

from anechoic.accounting.confidence import bernoulli_divergence, samples_needed, upper_mean, upper_mean_of


@pytest.mark.parametrize("count", [1, 10, 1000, 10**6])
@pytest.mark.parametrize("mean", [0.0, 0.001, 0.3, 1.0])
@pytest.mark.parametrize("failure", [1e-9, 0.05])
def test_at_least_the_exact_binomial_bound(count, mean, failure):
    successes = math.floor(mean * count)
    exact = 1.0 if successes == count else stats.beta.isf(failure, successes + 1, count - successes)
    assert upper_mean(successes / count, count, failure) >= exact * (1 - 1e-9)


def test_zero_successes_have_the_rule_of_the_logarithm():
    assert upper_mean(0.0, 10**6, 1e-6) == pytest.approx(-math.expm1(math.log(1e-6) / 1e6), rel=1e-9)


def test_coverage_for_values_that_are_not_binary():
    rng = np.random.default_rng(0)
    values = rng.beta(0.02, 2.0, size=(4000, 200))
    truth, failure = 0.02 / 2.02, 0.1
    missed = sum(upper_mean(float(row.mean()), 200, failure) < truth for row in values)
    assert missed <= 4000 * failure


def test_divergence_is_accurate_for_tiny_means():
    import mpmath

    for q, p in ((1e-9, 2e-9), (1e-6, 1.0001e-6), (0.3, 0.9), (0.0, 1e-12)):
        with mpmath.workdps(50):
            a, b = mpmath.mpf(q), mpmath.mpf(p)
            first = a * mpmath.log(a / b) if q else mpmath.mpf(0)
            exact = float(first + (1 - a) * mpmath.log((1 - a) / (1 - b)))
        assert bernoulli_divergence(q, p) == pytest.approx(exact, rel=1e-6, abs=1e-18)


def test_samples_needed_are_enough_and_not_many_too_many():
    for delta, ratio in ((1e-5, 1.25), (1e-3, 1.05)):
        count = samples_needed(delta, ratio, 1e-7)
        assert upper_mean(delta, count, 1e-7) <= ratio * delta * (1 + 1e-9)
        assert upper_mean(delta, count // 2, 1e-7) > ratio * delta


@pytest.mark.parametrize("guess", [1e-6, 1e-3, 1.0])
def test_bound_from_the_values_covers_whatever_the_guess(guess):
    rng = np.random.default_rng(1)
    values = rng.beta(0.02, 2.0, size=(3000, 300))
    truth, failure = 0.02 / 2.02, 0.1
    missed = sum(upper_mean_of(row, 300, failure, guess) < truth for row in values)
    assert missed <= 3000 * failure


def test_bound_from_the_values_is_sharper_for_small_values():
    values = np.full(2000, 0.01)
    sharp = upper_mean_of(values, 10**6, 1e-6, 2e-7)
    assert 2e-5 < sharp < 0.7 * upper_mean(2e-5, 10**6, 1e-6)
    assert upper_mean_of(np.zeros(0), 10**6, 1e-6, 0.0) == pytest.approx(math.log(1e6) / 0.9e6, rel=1e-2)
    assert upper_mean_of(np.ones(5), 5, 0.1, 1.0) == 1.0
