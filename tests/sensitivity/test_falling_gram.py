"""Products of columns that fall from the separation on: exact where claimed, never too small."""

import numpy as np
import pytest

from anechoic.participation import MinSep
from anechoic.sensitivity import falling_gram
from anechoic.sensitivity.dispatch import sensitivity
from anechoic.strategies import BandedInverse, BandedToeplitz, Toeplitz
from tests.marks import in_turn
from tests.sensitivity.brute import supremum

SCHEMAS = [(2, 5), (3, 2), (3, 4), (4, 3), (5, 2), (10, 2)]


def coefficients(kind, n, rng):
    t = np.arange(n)
    match kind:
        case "falling":
            return 0.9**t / (1.0 + t) ** 0.3
        case "bumpy":  # rises at small lags only: products further apart fall
            return np.where(t == 1, 0.3, 0.8**t)
        case "waves":  # rises again and again
            return 0.85**t * (1.2 + np.cos(2.2 * t))
        case "spikes":
            return np.where(t % 4 == 0, 1.0, 0.01)
        case "mixed":
            return np.where(t == 0, 1.0, 0.6 * np.cos(2.1 * t) * 0.9**t)
        case _:
            return rng.random(n) + np.eye(1, n)[0]


@in_turn(("separation", "count"), SCHEMAS)
@pytest.mark.parametrize("kind", ["falling", "bumpy", "waves", "spikes", "mixed", "random"])
@in_turn("bands", [4, 11])
def test_it_is_a_bound_and_exact_where_it_says_so(kind, bands, separation, count):
    c = coefficients(kind, 11, np.random.default_rng(separation))[:bands]
    strategy = BandedToeplitz(11, c)
    found = falling_gram.later_and_farther(strategy, separation, count)
    least = supremum(strategy, MinSep(separation, count))
    assert found.value >= least * (1 - 1e-9)
    if found.exact:
        assert found.value == pytest.approx(least, rel=1e-9)
    if kind in ("falling", "bumpy"):
        assert found.exact
    chosen = sensitivity(strategy, MinSep(separation, count))
    assert least * (1 - 1e-9) <= chosen.value <= found.value * (1 + 1e-9)


def test_it_is_no_more_than_the_falling_majorant():
    c = coefficients("waves", 400, None)
    majorant = np.maximum.accumulate(c[::-1])[::-1]
    found = falling_gram.later_and_farther(Toeplitz(400, c), 60, 7)
    assert found.value**2 < Toeplitz(400, majorant).comb_norm_squared(60, 7)


def test_a_long_strategy_whose_coefficients_rise_at_first():
    # inverse of few bands, optimised: c_3 > c_2, and yet the comb is the worst pattern
    n, b, k = 10**5, 10**4, 10
    strategy = BandedInverse(n, [1.0, -0.341, -0.1227, -0.5076])
    found = sensitivity(strategy, MinSep(b, k))
    assert not strategy.structure.nonincreasing
    assert found.exact and "comb" in found.method
    assert found.value**2 == pytest.approx(strategy.comb_norm_squared(b, k), rel=1e-9)


def test_work_counts_what_is_transformed():
    strategy = Toeplitz(1000, 0.99 ** np.arange(1000))
    assert falling_gram.work(strategy, 100, 10) == 4 * 1000 * 11
    assert falling_gram.work(BandedToeplitz(1000, [1.0, 0.5]), 1, 10) == 4 * 4 * 4


def test_mixed_signs_are_bounded_by_their_sizes_and_exact_only_where_that_is_attained():
    waving = Toeplitz(11, coefficients("mixed", 11, None))
    found = falling_gram.later_and_farther(waving, 2, 5)
    assert not found.exact and found.value > supremum(waving, MinSep(2, 5)) * 1.01
    positive = Toeplitz(11, np.abs(coefficients("mixed", 11, None)))
    assert found.value == falling_gram.later_and_farther(positive, 2, 5).value
