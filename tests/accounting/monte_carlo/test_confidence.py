"""Confidence bounds: coverage, and against the exact binomial."""

import math

import numpy as np
import pytest
from scipy import stats

from anechoic.accounting.monte_carlo.confidence import upper_mean_of
from tests.marks import every_other


@pytest.mark.parametrize("guess", every_other([1e-6, 1e-3, 1.0]))
@pytest.mark.slow
def test_bound_from_the_values_covers_whatever_the_guess(guess):
    rng = np.random.default_rng(1)
    values = rng.beta(0.02, 2.0, size=(3000, 300))
    truth, failure = 0.02 / 2.02, 0.1
    missed = sum(upper_mean_of(row, 300, failure, guess) < truth for row in values)
    assert missed <= 3000 * failure


@pytest.mark.parametrize("count", [10, 1000, 10**6])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.3])
def test_at_least_the_exact_binomial_bound(count, share):
    """Values that are 0 or 1 have the exact bound of Clopper and Pearson, the least that is valid."""
    successes = math.floor(share * count)
    exact = stats.beta.isf(1e-6, successes + 1, count - successes)
    found = upper_mean_of(np.ones(successes), count, 1e-6, max(share, 1 / count))
    assert found >= exact * (1 - 1e-9)


def test_bound_from_the_values_is_sharper_for_small_values():
    """2000 values of 0.01 have the mean of 20 values of 1, which binomial bounds take them for."""
    values = np.full(2000, 0.01)
    sharp = upper_mean_of(values, 10**6, 1e-6, 2e-7)
    binomial = stats.beta.isf(1e-6, 21, 10**6 - 20)
    assert 2e-5 < sharp < 0.75 * binomial
    assert upper_mean_of(np.zeros(0), 10**6, 1e-6, 0.0) == pytest.approx(math.log(1e6) / 0.9e6, rel=1e-2)
    assert upper_mean_of(np.ones(5), 5, 0.1, 1.0) == 1.0
