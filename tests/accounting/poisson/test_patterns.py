"""Groups of patterns of participation: never below the truth, close to it, and where they are needed."""

import math
from itertools import product

import numpy as np
import pytest
from scipy.special import logsumexp

from anechoic.accounting.gaussian import hockey_stick
from anechoic.accounting.poisson.epsilon import poisson_epsilon
from anechoic.accounting.poisson.patterns import (
    MOST,
    Group,
    GroupedPatterns,
    _apart,
    _chained,
    _hull,
    _lengths,
    _split,
    patterns_of,
    products,
)
from anechoic.mechanism.calibrate import calibrate
from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling import CyclicPoisson, Poisson
from anechoic.strategies import BLT, BandedToeplitz, Dense
from tests.marks import each_once


def exact_means(strategy, groups):
    """Means of all patterns of the units of group 0, shape (n, patterns), and their participations."""
    columns = strategy.to_dense()[:, ::groups]
    patterns = np.array(list(product([0.0, 1.0], repeat=columns.shape[1]))).T
    return columns @ patterns, patterns.sum(axis=0)


@pytest.mark.parametrize(("n", "groups"), [(6, 1), (7, 2), (1, 1)])
@pytest.mark.parametrize(("std", "rate"), each_once([0.7, 2.0], [0.02, 0.3]))
@pytest.mark.slow
def test_never_below_the_mixture_over_all_patterns(n, groups, rate, std):
    strategy = BandedToeplitz(n, [1.0, 0.8, 0.5, 0.2][:n])
    delta_at = patterns_of(strategy, groups, rate).profile(std, 1e-12)
    means, counts = exact_means(strategy, groups)
    chance = np.log(rate) * counts + np.log1p(-rate) * (counts.max() - counts)
    rng, count = np.random.default_rng(0), 100_000
    noise = std * rng.standard_normal((count, n))
    for direction in ("remove", "add"):
        drawn = rng.choice(len(chance), size=count, p=np.exp(chance))
        y = noise + (means[:, drawn].T if direction == "remove" else 0.0)
        losses = logsumexp(
            chance + (y @ means) / std**2 - np.square(means).sum(axis=0) / (2 * std**2), axis=1
        )
        for epsilon in (0.0, 0.2, 1.0, 3.0):
            sign = epsilon - losses if direction == "remove" else epsilon + losses
            values = -np.expm1(np.minimum(sign, 0.0))
            assert delta_at(epsilon) >= values.mean() - 4 * values.std() / math.sqrt(count)


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("count", [1, 2])
def test_each_group_lies_above_its_own_mixture(count, direction):
    """Chains too: the curve of each distance of two steps against samples of that group alone."""
    n, std, samples = 7, 0.9, 40_000
    matrix = BandedToeplitz(n, [1.0, 0.7, 0.3]).to_dense()
    groups = list(_chained(matrix.T @ matrix, 1.0, count))
    if count == 1:
        sets = [[(i,) for i in range(n)]]
    else:
        pairs = [(i, d) for first, last in _apart(n) for d in range(first, last + 1) for i in range(n - d)]
        edges = dict.fromkeys(pairs)
        halves = [
            [(i, i + d) for i, d in edges if first <= d <= last and i // d % 2 == half]
            for first, last in _apart(n)
            for half in (0, 1)
        ]
        sets = [half for half in halves if half]
        assert sorted(pair for one in sets for pair in one) == sorted((i, i + d) for i, d in edges)
    assert len(groups) == len(sets)
    assert sum(group.weight for group in groups) == pytest.approx(1.0)
    rng = np.random.default_rng(count)
    noise = std * rng.standard_normal((samples, n))
    for group, patterns in zip(groups, sets, strict=True):
        means = np.array([matrix[:, list(pattern)].sum(axis=1) for pattern in patterns])
        exponents = noise @ means.T / std**2 - np.square(means).sum(axis=1) / (2 * std**2)
        ratio = np.exp(logsumexp(exponents, axis=1)) / len(means)
        places, values = group.curve(std, direction, 1e-6)
        for level in (0.3, 1.0, 2.0, 6.0):
            found = np.maximum(ratio - level if direction == "remove" else level - ratio, 0.0)
            above = float(np.interp(level, places, values))
            assert above >= found.mean() - 4 * found.std() / math.sqrt(samples)
            # the longest of these patterns, for certain, is what no secret position would give
            if level >= 1.0 and len(patterns) > 3 and direction == "remove":
                mu = math.sqrt(np.square(means).sum(axis=1).max()) / std
                assert above < 0.9 * hockey_stick(math.log(level), mu)


def test_one_step_is_the_sampled_gaussian_exactly():
    """Against dp-accounting's closed form of subsampling: q H_{1 + (e^epsilon - 1) / q}."""
    patterns = GroupedPatterns(0.1, (Group(0.1, np.array([1.0]), np.array([1.0])),), 0.0)
    for delta in (1e-3, 1e-6):
        found = patterns.epsilon(delta, 0.8, 50.0)
        assert found == pytest.approx(poisson_epsilon(delta, 0.8, 0.1, 1), rel=1e-3)


def test_the_best_split_is_that_of_one_gaussian_mixture():
    """Collinear groups apart give what they give as one: the split is by one value of the noise."""
    apart = GroupedPatterns(
        0.3, tuple(Group(w, np.array([s]), np.ones(1)) for w, s in ((0.2, 1.0), (0.1, 4.0))), 0.0
    )
    together = GroupedPatterns(0.3, (Group(0.3, np.array([1.0, 4.0]), np.array([2.0, 1.0]) / 3),), 0.0)
    one, other = apart.profile(0.8, 1e-9), together.profile(0.8, 1e-9)
    for epsilon in (0.1, 0.5, 2.0, 5.0):
        assert one(epsilon) == pytest.approx(other(epsilon), rel=1e-3)
        # against the mixture itself, by integration
        x = np.linspace(-12.0, 25.0, 400_001)
        q = np.exp(-(x**2) / 2)
        p = 0.7 * q + 0.2 * np.exp(-((x - 1 / 0.8) ** 2) / 2) + 0.1 * np.exp(-((x - 2 / 0.8) ** 2) / 2)
        step = (x[1] - x[0]) / math.sqrt(2 * math.pi)
        exact = max(np.maximum(a - math.exp(epsilon) * b, 0.0).sum() * step for a, b in ((p, q), (q, p)))
        assert exact <= one(epsilon) * (1 + 1e-9) and one(epsilon) <= exact * 1.01 + 1e-15


def test_a_split_is_no_worse_than_any_other():
    rng = np.random.default_rng(0)
    curves = []
    for weight in (0.3, 0.5, 1.2):
        places = np.append(0.0, np.sort(rng.uniform(0.1, 5.0, 8)))
        curves.append((weight, _hull(places, np.append(1.0, np.sort(rng.uniform(0.0, 1.0, 8))[::-1]))))
    places, values = _split(curves)
    for _ in range(2000):
        levels = rng.uniform(0.0, 5.0, 3)
        total = sum(weight * level for (weight, _), level in zip(curves, levels, strict=True))
        found = sum(w * np.interp(level, *curve) for (w, curve), level in zip(curves, levels, strict=True))
        assert np.interp(total, places, values) <= found + 1e-12


@pytest.mark.parametrize(
    ("strategy", "groups"),
    [
        (BandedToeplitz(7, [1.0, 0.5, 0.2]), 1),
        (BandedToeplitz(7, [1.0, 0.5, 0.2]), 2),
        (Dense(np.tril(np.random.default_rng(0).uniform(0.1, 1.0, (7, 7)))), 3),
    ],
)
def test_products_are_at_least_those_of_every_group(strategy, groups):
    dense, found = strategy.to_dense(), products(strategy, groups)
    largest = np.zeros_like(found)
    for first in range(groups):
        columns = dense[:, first::groups]
        here = largest[: columns.shape[1], : columns.shape[1]]
        np.maximum(here, columns.T @ columns, out=here)
    assert (found >= largest).all()
    assert found == pytest.approx(largest, rel=1e-9)


def test_lengths_are_rounded_up():
    squares = np.random.default_rng(0).uniform(0.1, 5.0, 200)
    levels, shares = _lengths(squares)
    assert shares.sum() == pytest.approx(1.0)
    assert len(levels) <= 48
    reached = np.repeat(levels, np.rint(shares * 200).astype(int))
    assert (reached >= np.sort(squares)).all()


def test_few_participations_in_overlapping_bands():
    """2.75 without this bound; about .1 is near the truth."""
    strategy = BLT(200, [0.1, 0.05], [0.99, 0.9])
    assert patterns_of(strategy, 1, 0.004).epsilon(0.01, 3.0, 2.75) < 0.8
    assert patterns_of(strategy, 1, 0.5) is None


def test_what_is_not_looked_at_counts_in_full():
    strategy = BandedToeplitz(2100, [1.0, 0.5])
    patterns = patterns_of(strategy, 1, 0.0017)
    assert len(patterns.groups) == MOST
    assert patterns.profile(1e3, 1e-5)(100.0) == pytest.approx(patterns.more, rel=1e-6)
    total = sum(group.weight for group in patterns.groups) + patterns.more
    assert total == pytest.approx(patterns.taken, rel=1e-9)


@pytest.mark.slow
def test_the_accountant_and_calibration_take_the_least():
    strategy, sampling = BLT(60, [0.1, 0.05], [0.99, 0.9]), Poisson(1000, 4, 60)
    mechanism = calibrate(strategy, sampling=sampling, epsilon=0.5, delta=0.02)
    assert 0.45 < mechanism.epsilon() <= 0.5
    found = patterns_of(strategy, 1, 0.004).epsilon(0.02, mechanism.noise_std, 5.0)
    assert mechanism.epsilon() <= found * (1 + 1e-6)
    assert Mechanism(strategy, CyclicPoisson(1000, 4, 2, 60), 1.0, delta=0.01).epsilon() < 5.0
