"""Balls in bins: the Gram matrix, the deterministic bound against Monte Carlo, and what is refused."""

import math
from itertools import cycle, product
from types import SimpleNamespace

import numpy as np
import pytest

from anechoic.accounting import gaussian_epsilon
from anechoic.accounting.balls_in_bins import bound
from anechoic.accounting.balls_in_bins.bin_classes import Domination, _classes, dominations
from anechoic.accounting.balls_in_bins.bound import BinsBound, bins_gram, check_nonnegative
from anechoic.accounting.balls_in_bins.folded_gram import folded_gram
from anechoic.accounting.balls_in_bins.mixture import Mixture
from anechoic.accounting.loss_distributions.chains import COARSE, chains
from anechoic.accounting.random_allocation.epsilon import (
    random_allocation_epsilon,
    random_allocation_noise_multiplier,
)
from anechoic.accounting.search import smallest_epsilon
from anechoic.errors import UnsupportedError
from anechoic.strategies import (
    BLT,
    BandedToeplitz,
    ColumnNormalized,
    Dense,
    Identity,
    Restarted,
    Toeplitz,
    Tree,
)
from anechoic.strategies.column_scaled import ColumnScaled
from tests.accounting.integration import exact_deltas, random_gram, verify
from tests.marks import every_other, in_turn, slow

RNG = np.random.default_rng(0)
STRATEGIES = [
    Identity(24),
    BandedToeplitz(24, [1.0, 0.5, 0.375]),
    ColumnNormalized(BandedToeplitz(23, [1.0, 0.5, 0.375])),
    Toeplitz(24, 0.9 ** np.arange(24)),
    BLT(25, [0.3, 0.2], [0.9, 0.3]),
    Restarted(BLT(6, [0.3], [0.9]), 4),
    Dense(np.tril(RNG.uniform(0, 1, (20, 20))) + np.eye(20)),
]


def dense_gram(strategy, bins):
    c = strategy.to_dense()
    means = np.zeros((len(c), bins))
    for t in range(strategy.n):
        means[:, t % bins] += c[:, t]
    return means.T @ means


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
@in_turn("bins", [1, 3, 7, 24, 30])
def test_gram_is_that_of_the_summed_columns(strategy, bins):
    np.testing.assert_allclose(bins_gram(strategy, bins), dense_gram(strategy, bins), atol=1e-10)


@pytest.mark.parametrize("bins", [1, 2, 6, 7, 12, 13])
def test_classes_cover_every_bin_equally_often(bins):
    for count in range(1, bins + 1):
        classes = _classes(bins, count)
        assert all(len(set(row)) == count for row in classes.tolist())
        covered = np.bincount(classes.ravel(), minlength=bins)
        assert (covered == covered[0]).all()
        gaps = np.diff(np.sort(classes, axis=1), axis=1)
        assert count == 1 or gaps.min() >= bins // count


@pytest.mark.parametrize(("n", "bins", "epsilon"), [(3, 70, 0.1), (10, 70, 1.0), *slow((100, 1000, 1.0))])
@pytest.mark.slow
def test_less_than_one_pass_costs_what_random_allocation_does(n, bins, epsilon):
    """Of b bins n have a step: the two schemes are one law, where the noise is independent."""
    gram = bins_gram(Identity(n), bins)
    allocated = random_allocation_noise_multiplier(epsilon, 1e-6, bins, n)
    assert BinsBound(gram).noise_std(epsilon, 1e-6) == pytest.approx(allocated, rel=5e-4)
    assert BinsBound(gram).rough_noise_std(epsilon, 1e-6) == pytest.approx(allocated, rel=0.03)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_bins_without_a_step_are_bounded_as_nobody(seed):
    gram, std = np.zeros((5, 5)), 1.4
    gram[:2, :2] = random_gram(2, 3, seed)
    exact = np.array(exact_deltas(gram, std, EPSILONS))
    bound = BinsBound(gram)
    for epsilon, truth in zip(EPSILONS, exact.max(axis=1).tolist(), strict=True):
        if 1e-9 < truth < 0.4:
            assert bound.epsilon(truth, std) >= epsilon * (1 - 2e-3)
    for law in bound.profile_bounds(1e-3, std):
        assert (np.array([law(epsilon) for epsilon in EPSILONS]) >= exact * (1 - 3e-3) - 1e-9).all()
    assert bound.profile_bounds(1e-3, std)
    assert bound.epsilon(0.45, std) == pytest.approx(0.0)  # what happens that seldom tells nobody apart
    assert bound.profile_bounds(0.45, std) == []
    with pytest.raises(ValueError, match="any noise would do"):
        bound.noise_std(1.0, 0.45)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("bins", [6, 7])
def test_every_domination_lies_above_in_one_of_the_two_orders(strategy, bins):
    """That of semidefinite matrices (contraction), or entry by entry (Kahane's inequality)."""
    gram = bins_gram(strategy, bins)
    for found in dominations(gram):
        for row in _classes(bins, found.count):
            gap = found.length * np.eye(found.count) + found.shared - gram[np.ix_(row, row)]
            least = max(np.linalg.eigvalsh(gap)[0], gap.min())
            assert least >= -1e-12 * gram.max()


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
def test_a_class_shows_no_less_than_what_rules_it_out(strategy):
    gram = bins_gram(strategy, 6)
    for found in dominations(gram):
        for share, epsilon in product((0.3, 1.0), (0.0, 1.0, 4.0)):
            std = share * math.sqrt(gram.max())
            assert 0.0 < found.least_delta(epsilon, std) <= found.delta_at(std, 1e-6)(epsilon) * (1 + 1e-9)


@pytest.mark.parametrize("epsilon", [0.5, 4.0, 8.0])
def test_what_is_ruled_out_would_not_have_been_the_best(epsilon, monkeypatch):
    """Of chains to within what grids differ by."""
    gram = bins_gram(ColumnNormalized(BLT(60, [0.2], [0.9])), 20)
    std = BinsBound(gram).rough_noise_std(epsilon, 1e-6)
    found, kept = BinsBound(gram).epsilon(1e-6, std), BinsBound(gram).keeps(epsilon, 1e-6, 0.9 * std)
    monkeypatch.setattr(bound, "_nearest", lambda chains, std, *_: bound._first(chains, std))
    monkeypatch.setattr(Domination, "least_delta", lambda *_: 0.0)
    assert found == pytest.approx(BinsBound(gram).epsilon(1e-6, std), rel=1e-5)
    assert kept == BinsBound(gram).keeps(epsilon, 1e-6, 0.9 * std)


@pytest.mark.parametrize("strategy", every_other(STRATEGIES), ids=lambda s: type(s).__name__)
@pytest.mark.few(1)
def test_the_bound_lies_above_monte_carlo_and_below_no_sampling(strategy):
    gram = bins_gram(strategy, 6)
    std = 1.5 * math.sqrt(gram.max())
    unsampled = gaussian_epsilon(1e-4, math.sqrt(gram.diagonal().max()) / std)
    mixture = Mixture(gram)
    # each domination on its own is a bound: also those that are not the best
    for found in dominations(gram)[::3]:
        epsilon = smallest_epsilon(found.delta_at(std, 1e-4), 1e-4, 100.0)
        estimate = verify(mixture, epsilon, std, samples=50_000, failure=0.01)
        assert estimate.delta <= 1.05 * 1e-4
    assert BinsBound(gram).epsilon(1e-4, std) <= unsampled * (1 + 1e-9)


# rank, bins and steps small enough for integration; bins that do not divide the steps
SMALL = {
    "random, 3 bins in a plane": random_gram(3, 2, 0),
    "random, 4 bins in a plane": random_gram(4, 2, 1),
    "random, 4 bins in space": random_gram(4, 3, 2),
    "random, one bin idle": np.pad(random_gram(3, 2, 3), (0, 1)),
    "banded, 2 bins, 7 steps": bins_gram(BandedToeplitz(7, [1.0, 0.6]), 2),
    "lambda = .9, 3 bins, 8 steps": bins_gram(Toeplitz(8, 0.9 ** np.arange(8)), 3),
    "BLT, 3 bins, 10 steps": bins_gram(BLT(10, [0.3, 0.2], [0.9, 0.3]), 3),
    "independent, 3 bins, 7 steps": bins_gram(Identity(7), 3),
    "normalised, 2 bins, 5 steps": bins_gram(ColumnNormalized(BandedToeplitz(5, [1.0, 0.5, 0.4])), 2),
}
EPSILONS = (0.1, 0.7, 1.5, 2.5)


@pytest.mark.parametrize(
    ("name", "relative"),
    [
        *list(zip(SMALL, cycle((0.7, 1.8))))[::2],
        *slow(*list(zip(SMALL, cycle((0.7, 1.8))))[1::2]),
        *slow(*zip(SMALL, cycle((1.8, 0.7)))),
    ],
)
@pytest.mark.slow
def test_every_bound_lies_above_the_integral_in_both_directions(name, relative):
    gram = SMALL[name]
    std = relative * math.sqrt(gram.max())
    exact = np.array(exact_deltas(gram, std, EPSILONS))
    slack = 3e-3 * exact + 1e-9  # of the integration
    bound = BinsBound(gram)
    for epsilon, truth in zip(EPSILONS[1::2], exact.max(axis=1)[1::2].tolist(), strict=True):
        if truth > 1e-9:
            found = bound.epsilon(truth, std)
            assert found >= epsilon * (1 - 2e-3)
            assert found <= gaussian_epsilon(truth, math.sqrt(gram.max()) / std)
    for law in bound.profile_bounds(1e-6, std):
        assert (np.array([law(epsilon) for epsilon in EPSILONS]) >= exact - slack).all()
    for found in dominations(gram):
        ratio = found.ratio(std, 1e-6)
        if ratio is not None:
            mu = math.sqrt(found.shared) / std
            both = [(ratio.remove(epsilon, mu), ratio.add(epsilon, mu)) for epsilon in EPSILONS]
            assert (np.array(both) >= exact - slack).all()
    for chain in chains(gram)[::2]:
        law = chain.law(std, 3.0, 1e-6, COARSE)
        both = [(law.remove(epsilon), law.add(epsilon)) for epsilon in EPSILONS]
        assert (np.array(both) >= exact - slack).all()


def test_independent_noise_is_one_of_b_with_the_noise_over_sqrt_k():
    """Fixed bins with C = I over k epochs: exactly 1-of-b at sigma / sqrt(k)."""
    gram = bins_gram(Identity(40), 10)
    expected = random_allocation_epsilon(1e-6, 3.0 / 2.0, 10, 10)
    assert BinsBound(gram).epsilon(1e-6, 3.0) == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_one_parameter_noise_within_an_eighth():
    """n = 3900, b = 390, lambda = .9, std 7.435, delta = 1e-5: 1.01 by Monte Carlo (importance sampling,
    40,000 samples; plain Monte Carlo is in test_golden.py), 4.26 without sampling."""
    gram = bins_gram(Toeplitz(3900, 0.9 ** np.arange(3900)), 390)
    epsilon = BinsBound(gram).epsilon(1e-5, 7.435)
    assert 1.01 < epsilon < 1.13
    assert gaussian_epsilon(1e-5, math.sqrt(gram.diagonal().max()) / 7.435) == pytest.approx(4.26, abs=0.1)


def test_negative_entries_are_refused_by_name():
    with pytest.raises(UnsupportedError, match="Lemma 3.2 of arXiv 2410.06266"):
        bins_gram(Dense(np.array([[1.0, 0.0], [-1.0, 1.0]])), 2)
    with pytest.raises(UnsupportedError, match="too large"):
        bins_gram(Identity(50_000), 20_000)
    with pytest.raises(ValueError, match="bins=0"):
        bins_gram(Identity(5), 0)


def test_rectangular_strategies_are_refused():
    with pytest.raises(UnsupportedError, match="is rectangular"):
        check_nonnegative(Tree(6), "balls-in-bins sampling")


@pytest.mark.parametrize(("n", "bins"), [(1, 1), (5, 8), (12, 4), (47, 10), (60, 1), (60, 60)])
def test_folded_sums_of_fading_columns_are_those_of_the_diagonals(n, bins):
    blt = BLT(n, [0.3, 0.2, 0.1], [0.97, 0.5, 0.0])
    uneven = ColumnScaled(ColumnNormalized(blt), np.linspace(1.0, 2.0, n))
    for strategy in (blt, ColumnNormalized(blt), uneven):
        np.testing.assert_allclose(
            folded_gram(strategy, bins), dense_gram(strategy, bins), rtol=1e-13, atol=1e-14
        )
    assert folded_gram(BandedToeplitz(n, [1.0]), bins) is None


def test_long_runs_are_folded():
    strategy = ColumnNormalized(BLT(2050, [0.3], [0.9]))
    np.testing.assert_allclose(bins_gram(strategy, 7), dense_gram(strategy, 7), rtol=1e-12, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "share"), [(1.0, 0.5), (1.0, 0.97), (4.0, 0.97), (8.0, 1.05)])
def test_what_keeps_is_what_the_whole_bound_keeps(epsilon, share):
    """By early exits, and grids for the epsilon that is asked."""
    bound = BinsBound(bins_gram(ColumnNormalized(BLT(90, [0.2], [0.9])), 30))
    least = bound.noise_std(epsilon, 1e-6)
    assert bound.keeps(epsilon, 1e-6, 1.001 * least)
    assert not bound.keeps(epsilon, 1e-6, 0.5 * least)
    std = share * least
    assert bound.keeps(epsilon, 1e-6, std) == (bound.epsilon(1e-6, std) <= epsilon)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_a_search_from_near_the_least_ends_within_its_tolerance(epsilon):
    bound = BinsBound(bins_gram(ColumnNormalized(BLT(120, [0.2], [0.9])), 40))
    least = bound.noise_std(epsilon, 1e-6)
    for start in (0.9, 1.0, 1.1):
        found = bound.noise_std(epsilon, 1e-6, start=start * least, tolerance=0.005)
        assert (1 - 0.005) * epsilon <= bound.epsilon(1e-6, found) <= epsilon


def test_a_search_by_what_misleads_ends_where_the_whole_bound_keeps(monkeypatch):
    whole = BinsBound(bins_gram(ColumnNormalized(BLT(60, [0.2], [0.9])), 20))
    steep = SimpleNamespace(epsilon=lambda delta, std: std**-5)
    monkeypatch.setattr(BinsBound, "_narrowed", lambda *_: [steep] * 2)
    assert whole.epsilon(1e-6, whole.noise_std(4.0, 1e-6, tolerance=0.005)) <= 4.0
