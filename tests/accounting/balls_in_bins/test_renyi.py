"""Renyi divergences of balls in bins: oracles, brute force, bounds, and what epsilon they give."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anechoic.accounting import gaussian_epsilon
from anechoic.accounting.balls_in_bins.bound import bins_gram
from anechoic.accounting.balls_in_bins.mixture import Mixture
from anechoic.accounting.balls_in_bins.renyi import (
    ORDERS,
    _around,
    _bands_of,
    _bandwidth,
    _least,
    _moment,
    epsilon_of_order,
    jensen_add,
    renyi_bound,
    renyi_epsilon,
    renyi_exact,
)
from anechoic.strategies import BLT, Toeplitz
from tests.accounting.integration import exact_deltas, random_gram, verify
from tests.marks import each_once, in_turn


def delta_of_order(divergence, order, epsilon):
    """The bound of the hockey-stick divergence that the module states."""
    log = (order - 1) * (divergence - epsilon) + order * math.log1p(-1 / order) - math.log(order - 1)
    return min(1.0, math.exp(min(0.0, log)))


def band_on_a_circle(bins, width, seed):
    rng, gram = np.random.default_rng(seed), np.zeros((bins, bins))
    for lag, place in product(range(width), range(bins)):
        gram[place, (place + lag) % bins] = gram[(place + lag) % bins, place] = rng.uniform(0.1, 1)
    return gram


def by_indices(gram, std, order):
    """E_Q of the order-fold product over all tuples of components."""
    total, scaled = 0.0, gram / std**2
    for chosen in product(range(len(gram)), repeat=order):
        block = scaled[np.ix_(chosen, chosen)]
        total += math.exp((block.sum() - np.trace(block)) / 2)
    return math.log(total / len(gram) ** order) / (order - 1)


@settings(derandomize=True, max_examples=12, deadline=None)
@given(bins=st.integers(1, 20), rank=st.integers(1, 30), seed=st.integers(0, 100), std=st.floats(1.0, 20.0))
def test_second_order_oracle(bins, rank, seed, std):
    """R_2(P || Q) = log of the mean of exp(G_ij / s^2) for any Gram matrix."""
    gram = random_gram(bins, rank, seed) / 5
    exact = math.log(np.exp(gram / std**2).mean())
    assert renyi_exact(gram, std, 2) == pytest.approx(exact, rel=1e-6)
    assert renyi_bound(gram, std, 2) >= exact * (1 - 1e-9)
    assert _least(gram, std, 2) <= exact * (1 + 1e-12)


def renyi_add(gram, std, order):
    """R_order(Q || P) of the Gaussian that Jensen's inequality gives."""
    bins = len(gram)
    return float(np.trace(gram) + (order - 1) * gram.sum() / bins) / (2 * bins * std**2)


@pytest.mark.parametrize("order", [2, 3, 7, 20])
def test_one_bin_is_the_gaussian_mechanism(order):
    gram = np.array([[3.0]])
    assert renyi_exact(gram, 1.5, order) == pytest.approx(order * 3.0 / (2 * 1.5**2), rel=1e-7)
    assert renyi_add(gram, 1.5, order) == pytest.approx(order * 3.0 / (2 * 1.5**2), rel=1e-12)


@pytest.mark.parametrize(("bins", "order"), [(2, 5), (3, 4), (4, 3), (5, 3)])
def test_against_all_tuples_of_components(bins, order):
    gram = random_gram(bins, bins, seed=bins)
    assert renyi_exact(gram, 2.0, order) == pytest.approx(by_indices(gram, 2.0, order), rel=1e-7)


@in_turn(("bins", "width"), [(3, 2), (5, 2), (5, 3), (7, 3), (7, 4), (9, 1), (10, 2)])
@in_turn("order", [2, 3, 5])
def test_dynamic_programme_closes_the_circle(bins, width, order):
    gram = band_on_a_circle(bins, width, seed=bins)
    assert _bandwidth(gram) == width
    exact = renyi_exact(gram, 1.3, order)  # few bins: by enumeration
    scaled = gram / 1.3**2
    assert _moment(_around(_bands_of(scaled, width), order), bins, order) == pytest.approx(exact, rel=1e-9)


def test_a_longer_band_by_both_second_order_formulas():
    gram = band_on_a_circle(60, 4, seed=3)
    assert renyi_exact(gram, 1.1, 2) == pytest.approx(math.log(np.exp(gram / 1.1**2).mean()), rel=1e-7)
    assert renyi_exact(gram, 1.1, 9) is None or renyi_exact(gram, 1.1, 9) > renyi_exact(gram, 1.1, 2)
    assert renyi_exact(random_gram(60, 60, 1), 9.0, 6) is None  # no band, too many counts


@pytest.mark.parametrize("strategy", [Toeplitz(29, 0.9 ** np.arange(29)), BLT(24, [0.3, 0.2], [0.9, 0.3])])
@pytest.mark.parametrize("order", [2, 3, 4])
def test_bound_lies_above_and_grows(strategy, order):
    gram = bins_gram(strategy, 8)
    std = 1.4 * math.sqrt(gram.max())
    exact = renyi_exact(gram, std, order, work=1e9)
    without = order * gram.diagonal().max() / (2 * std**2)
    found = renyi_bound(gram, std, order)
    assert exact * (1 - 1e-9) <= found <= without * (1 + 1e-9)
    cheap = renyi_bound(np.kron(np.eye(5), gram) + 1e-3, std, order)  # 40 bins: not by enumeration
    assert cheap >= renyi_exact(np.kron(np.eye(5), gram) + 1e-3, std, 2) * (1 - 1e-9)


@pytest.mark.parametrize(("relative", "bins", "rank"), each_once([0.6, 1.5], [(1, 1), (3, 2), (4, 2)]))
@pytest.mark.slow
def test_deltas_lie_above_the_integral(bins, rank, relative):
    gram = random_gram(bins, rank, seed=7)
    std, epsilons = relative * math.sqrt(gram.max()), (0.3, 1.0, 2.5)
    for epsilon, (remove, add) in zip(epsilons, exact_deltas(gram, std, epsilons), strict=True):
        least = min(
            delta_of_order(renyi_exact(gram, std, order), order, epsilon) for order in (2, 3, 5, 8, 12, 20)
        )
        assert least >= remove * (1 - 3e-3)
        assert jensen_add(gram, std, epsilon) >= add * (1 - 3e-3) - 1e-12
        for order in (1.5, 3.0, 10.0):
            assert delta_of_order(renyi_add(gram, std, order), order, epsilon) >= add * (1 - 3e-3) - 1e-12
        found = renyi_epsilon(gram, max(remove, add), std)
        assert epsilon * (1 - 2e-3) <= found


@pytest.mark.parametrize("bins", [1, 3, 8])
@pytest.mark.parametrize("relative", [0.5, 1.0, 4.0])
def test_orders_that_are_skipped_give_no_less(bins, relative):
    """Every order is compared: none that a lower bound leaves out, in either use, has the least epsilon."""
    gram = random_gram(bins, bins, seed=bins)
    std = relative * math.sqrt(gram.max())
    orders = [epsilon_of_order(renyi_bound(gram, std, order), order, 1e-5) for order in ORDERS]
    least = min(*orders, gaussian_epsilon(1e-5, math.sqrt(gram.max()) / std))
    found = renyi_epsilon(gram, 1e-5, std)
    assert found == pytest.approx(least, rel=1e-9) or jensen_add(gram, std, least) > 1e-5
    assert renyi_epsilon(gram, 1e-5, std, 1.001 * found) == pytest.approx(found, rel=1e-9)


def test_jensen_is_exact_for_one_bin_and_sharper_than_its_divergences():
    assert jensen_add(np.array([[1.0]]), 1.0, 1.0) == pytest.approx(0.12693673750664397, rel=1e-8)
    gram = random_gram(20, 30, seed=5)
    std = math.sqrt(gram.max())
    for order in (2.0, 5.0, 20.0):
        by_order = delta_of_order(renyi_add(gram, std, order), order, 0.8)
        assert jensen_add(gram, std, 0.8) <= by_order * (1 + 1e-9)


def test_epsilon_and_delta_of_an_order_are_inverse():
    for order in (2, 5, 32):
        epsilon = epsilon_of_order(0.4, order, 1e-6)
        assert delta_of_order(0.4, order, epsilon) == pytest.approx(1e-6, rel=1e-6)


@pytest.mark.slow
def test_where_many_counts_would_be_needed_it_is_still_a_bound():
    """n = 780, b = 78, lambda = .9: importance sampling finds about 1e-5 at a smaller epsilon."""
    gram = bins_gram(Toeplitz(780, 0.9 ** np.arange(780)), 78)
    found = renyi_epsilon(gram, 1e-5, 9.0)
    assert found < gaussian_epsilon(1e-5, math.sqrt(gram.max()) / 9.0)
    assert verify(Mixture(gram), found, 9.0, samples=40_000, failure=1e-3).delta < 1e-5


def test_refusals():
    for call in (
        lambda: renyi_exact(np.eye(2), 1.0, 1),
        lambda: renyi_exact(np.eye(2), 0.0, 2),
        lambda: renyi_epsilon(np.eye(2), 1.0, 1.0),
    ):
        with pytest.raises(ValueError, match="must"):
            call()
